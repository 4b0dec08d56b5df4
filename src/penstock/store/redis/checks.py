"""Cross-checks of a stored tube, for `engine.integrity`: derives everything that scripts derive from tasks, and
compares it with what is stored.

Repair writes each difference, unless the task or the entry that it depends on has changed since.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from math import inf
from typing import cast

from msgspec.structs import replace

from penstock.core import group as rules
from penstock.core.group import Group
from penstock.core.ids import needed_mark, read_mark, shown_mark
from penstock.core.kind import CLOCK, DELIVER
from penstock.core.options import Tube
from penstock.core.results import STATE_COUNTER, Finding
from penstock.core.task import Record
from penstock.engine.integrity import EARLY_OUTCOME, Problem, audit_of, check_tube, heads_wanted
from penstock.engine.port import Audit, QueueAudit, Step
from penstock.errors import StoreCorrupt
from penstock.store.redis import redis_queries as queries
from penstock.store.redis.encoding import (
    UNREADABLE,
    decode,
    encode,
    index_entries,
    micro_queue_name,
    pack_micro_queue,
    read_micro_queue,
    read_outcome,
    task_id,
    task_key,
    unreadable,
)
from penstock.store.redis.outbox import Steps
from penstock.store.redis.redis_connection import Argument
from penstock.store.redis.redis_step import RedisStep
from penstock.store.redis.runner import Runner

_LOOKS = 5
_INDEXES = ("ready", "buried", "taken", "delivered", "due", "queue", "members")
# The parts of a tube, in reading order. Outcomes may be forgotten while parts are read, without a change of counters:
# parts that are read first may contain more.
_PARTS = (
    "kept",
    "outcomes",
    "addresses",
    "moving",
    "groups",
    "ends",
    "micro_queues",
    *_INDEXES,
    "tasks",
    "waits",
    "handles",
)
# The most repairs in one script call.
_STEP = 200
# A Guard is what must still be stored: part, field of a hash, value or None. A Write is command, part, words.
Guard = tuple[str, bytes, bytes | None]
Write = tuple[Argument, ...]
Item = tuple[Iterable[Guard], Sequence[Write]]


def check(runner: Runner, steps: Steps, tube: Tube, repair: bool, now: int | None) -> list[Finding]:
    """Check a stored tube, and repair it if asked. In a busy tube, only findings that several reads agree on count."""
    step, agreed = CheckStep(runner, steps, tube, repair, now), list[Finding]()
    for attempt in range(_LOOKS):
        found = check_tube(cast(Step, step), tube, repair=False)
        agreed = [finding for finding in agreed if finding in found] if attempt and not step.look.quiet else found
        if step.look.quiet or not agreed:
            break
    if repair and (agreed or step.look.differences):
        step.write(step.look.repairs())  # first, because the repair of leases and groups relies on the indexes
        check_tube(cast(Step, step), tube, repair=True)
    return agreed


class CheckStep(RedisStep):
    """The step with which `engine.integrity` checks and repairs a tube."""

    look: Look

    def audit(self, tube: Tube) -> Audit:
        """As the port says."""
        self.look = Look(self._runner, tube, self._given)
        return self.look.audit()

    def restore(self, tube: Tube, record: Record) -> None:
        """As the port says."""
        key = task_key(record.id)
        self.write([([self.look.unchanged(key)], [("HSET", "tasks", key, encode(record))])])

    def rebuild(self, tube: Tube, audit: Audit) -> None:
        """As the port says."""
        self.write(self.look.repairs())

    def write(self, items: Iterable[Item]) -> None:
        """Write each item whose guards hold."""
        found = list(items)
        for start in range(0, len(found), _STEP):
            self._runner.on_tube("repair", self._tube, *_words(found[start : start + _STEP]), now=self._given)


def _words(items: Iterable[Item]) -> Iterator[Argument]:
    """Items as arguments of the script repair."""
    for guards, writes in items:
        held = list(guards)
        yield len(held)
        for part, field, value in held:
            yield from (part, field, b"" if value is None else b"=" + value)
        yield len(writes)
        for write in writes:
            yield from (len(write) - 2, *write)


class Look:
    """A tube as read once: by part, what is stored, and what should be."""

    def __init__(self, runner: Runner, tube: Tube, now: int | None) -> None:
        self.tube = tube
        self._now = runner.now(tube.no, now)
        self._second = "2" in runner.shape(tube).letters
        before = queries.read_part(runner, tube, "meta")
        self._counters = queries.read_counters(runner, [tube], frozen=True)[0]
        self._stored = {part: queries.read_part(runner, tube, part) for part in (*_PARTS, "meta")}
        #: Whether nothing changed while the tube was read; else the counters are not compared.
        self.quiet = self._stored["meta"] == before
        self._problems: list[Problem] = []
        self._groups = queries.groups(self._stored["groups"])
        for no, group in self._groups.items():
            group.moving = b"%d" % no in self._stored["moving"]
        self._outcomes = {task_id(key): read_outcome(task_id(key), value) for key, value in self._of("outcomes")}
        # What should be stored: indexes are derived from scratch; in other parts, only wrong entries are changed.
        self._wanted = {part: {} if part in _INDEXES else dict(fields) for part, fields in self._stored.items()}
        lost = self._lost_relations()
        self._records = {id: self._read(id, value, lost) for key, value in self._of("tasks") if (id := task_id(key))}
        self._queues = self._set_heads() if tube.kind.per_utube else {}
        for record in self._records.values():
            self._index(record)
        self._list_addresses()
        self._list_groups()
        self._wanted["waits"] = {handle: n for handle, n in self._of("waits") if handle in self._stored["handles"]}
        self._states = Counter(record.state for record in self._records.values())
        self._count()
        #: The wrong entries: part and field.
        self.differences = [
            (part, field)
            for part, wanted in self._wanted.items()
            for field in {**self._stored[part], **wanted}
            if self._stored[part].get(field) != wanted.get(field)
        ]

    def _of(self, part: str) -> Iterable[tuple[bytes, bytes]]:
        return self._stored[part].items()

    def unchanged(self, key: bytes) -> Guard:
        """The guard that the task with that key is stored unchanged."""
        return "tasks", key, self._stored["tasks"].get(key)

    # tasks as they should be

    def _lost_relations(self) -> dict[int, tuple[str | None, Group | None]]:
        """Address and group of tasks by id, from the indexes: an unreadable task has lost its own."""
        found: dict[int, tuple[str | None, Group | None]] = {
            task_id(key): (name.decode(), None) for name, key in self._of("addresses") if not self._is_span(name)
        }
        for member in self._stored["members"]:
            group = self._groups.get(task_id(member[:6]))
            if member[6:7] == b"m" and group is not None:
                found[task_id(member)] = found.get(task_id(member), (None, None))[0], group
        return found

    def _read(self, id: int, value: bytes, lost: dict[int, tuple[str | None, Group | None]]) -> Record:
        leased, stored = self.tube.kind.leased, None
        try:
            stored = decode(id, value)
        except StoreCorrupt:
            what = "is stored in a form that penstock did not write"
            self._problems.append((id, what, "bury it" if leased else "keep the bytes as its data"))
        record = stored or unreadable(id, value, self._now, leased=leased)
        if stored is None or record.reason == UNREADABLE:
            address, group = lost.get(id, (self._spanned_name(id), None))
            if record.address is None and record.group_no is None and (address or group):
                record = replace(record, address=address, group=group and group.name, group_no=group and group.no)
        if record.address is None and not leased:
            ms, seq = self._counters.mark
            own = f"reply-{id}" if self.tube.kind.hand_out == CLOCK else shown_mark((max(ms, self._now), seq + id))
            record = replace(record, address=own)
        if record is not stored:
            self._wanted["tasks"][task_key(id)] = encode(record)
        return record

    def _is_span(self, name: bytes) -> bool:
        """Whether an entry of `addresses` is the shared one of all messages of a millisecond."""
        return self.tube.kind.hand_out == DELIVER and name.isdigit()

    def _spanned_name(self, id: int) -> str | None:
        """The name of an unreadable message, from the entry of its millisecond."""
        spans = {task_id(span[:6]): ms for ms, span in self._of("addresses") if self._is_span(ms)}
        ahead = max((ahead for ahead in spans if ahead < id), default=None)
        return None if ahead is None else f"{spans[ahead].decode()}-{id - ahead}"

    def _set_heads(self) -> dict[str, QueueAudit]:
        """Audit the micro-queues, and set which of their ready tasks should be heads and which waiting."""
        members: dict[str, list[Record]] = {name[1:].decode(): [] for name in self._stored["micro_queues"]}
        for record in self._records.values():
            if record.state in "rqt":
                members.setdefault(record.utube or "", []).append(record)
        fair, queues = self.tube.fair, dict[str, QueueAudit]()
        for utube, records in members.items():
            ready = [record for record in records if record.state != "t"]
            ready.sort(key=lambda record: (record.rank1, 0 if fair else record.rank2, record.id))
            heads = [record for record in ready if record.state == "r"]
            counted = len(records) - len(ready), len(heads), len(ready) - len(heads)
            stored = self._stored["micro_queues"].get(micro_queue_name(utube))
            taken, first, waiting, turn = (0, 0, 0, 0) if stored is None else read_micro_queue(stored)
            if stored is None:
                turn = max((int(record.rank2) for record in heads), default=0) if fair else 0
            shown = [(record.id, record.state) for record in ready]
            queues[utube] = QueueAudit(counted, (taken, first, waiting), turn, shown)
            wanted = heads_wanted(self.tube, queues[utube])
            self._wanted["micro_queues"][micro_queue_name(utube)] = pack_micro_queue(
                counted[0], wanted, len(ready) - wanted, turn
            )
            for place, record in enumerate(ready):
                state = "r" if place < wanted else "q"
                rank2 = record.rank2 if not fair else turn if state == "r" else 0
                if (state, rank2) != (record.state, record.rank2):
                    self._records[record.id] = sound = replace(record, state=state, rank2=rank2)
                    self._wanted["tasks"][task_key(record.id)] = encode(sound)
        return queues

    # what is derived from tasks

    def _index(self, record: Record) -> None:
        group = None if record.group_no is None else self._groups.get(record.group_no)
        for index, name, score in index_entries(self.tube, record, second=self._second):
            # A take removes a task from the ready index if its group was cancelled.
            withdrawn = index == "ready" and group is not None and group.state == rules.CANCELLING
            if not withdrawn or name in self._stored["ready"]:
                self._wanted[index][name] = score

    def _list_addresses(self) -> None:
        wanted, spans = self._wanted["addresses"], dict[bytes, list[int]]()
        held = {record.address.encode(): id for id, record in self._records.items() if record.address is not None}
        for name, key in self._of("addresses"):
            if self._is_span(name) or (held.get(name) != task_id(key) and task_id(key) not in self._outcomes):
                del wanted[name]
        if self.tube.kind.hand_out == DELIVER:  # one entry per millisecond, if names follow the order of ids
            for name, id in sorted(held.items(), key=lambda pair: pair[1]):
                mark = read_mark(name.decode())
                if mark is not None and id >= mark[1]:
                    span = spans.setdefault(str(mark[0]).encode(), [id - mark[1], 0])
                    if span[0] == id - mark[1] and name not in wanted:
                        span[1] += 1
                        del held[name]
        wanted.update((name, task_key(id)) for name, id in held.items())
        wanted.update((ms, task_key(ahead) + left.to_bytes(4, "big")) for ms, (ahead, left) in spans.items() if left)

    def _list_groups(self) -> None:
        """List the names of live groups, and when outcomes and ended groups expire."""
        names, kept = self._wanted["groups"], self._wanted["kept"]
        for no, group in self._groups.items():
            name, ends = b"n" + group.name.encode(), b"g" + task_key(no)
            if (names.get(name) == b"%d" % no) != (group.state in rules.LIVE):
                what = f"group {group.name}: its name leads to another group, or to none"
                self._problems.append((None, what, "name it again"))
                if names.pop(name, None) != b"%d" % no:
                    names[name] = b"%d" % no
            if group.state in rules.OVER and ends not in kept:
                self._problems.append((None, f"group {group.name}: is remembered for ever", "set its end"))
                kept[ends] = float(group.until or self._now)
        ending = {name[at : at + 6] for name in kept if name[:1] == b"o" for at in range(1, len(name), 6)}
        for id, outcome in self._outcomes.items():
            if id in self._records:
                self._problems.append((id, *EARLY_OUTCOME))
                del self._wanted["outcomes"][task_key(id)]
            elif task_key(id) not in ending:
                self._problems.append((id, "its outcome has no end", "set its end"))
                kept[b"o" + task_key(id)] = float(outcome.until)

    def _count(self) -> None:
        meta, counts = self._wanted["meta"], self._counters.counts
        numbers = {"taken": 0, "delayed": 0, "buried": 0, "ready": 0}
        for state, number in self._states.items():
            numbers[STATE_COUNTER[state]] += number
        del numbers["ready"]  # computed
        numbers["delete"] = int(meta.get(b"delete", 0)) + counts.stored - len(self._records)
        numbers["bury"] = counts.bury + sum(what.startswith("bury") for _, _, what in self._problems)
        if self.tube.kind.hand_out == DELIVER:
            mark = needed_mark(self._counters.mark, self._newest())
            numbers |= {} if mark is None else {"ms": mark[0], "seq": mark[1]}
            waiting = min((record.id for record in self._records.values() if record.state == "r"), default=inf)
            if waiting <= int(meta.get(b"handed", 0)):
                what = f"messages up to {meta[b'handed'].decode()} count as handed out, but not all were"
                self._problems.append((None, what, "hand them out"))
                numbers["handed"] = int(waiting) - 1
        if self.quiet:
            for name, number in numbers.items():
                if int(meta.get(name.encode(), 0)) != number:
                    meta[name.encode()] = b"%d" % number

    def _newest(self) -> Record | None:
        return self._records[max(self._records)] if self._records else None

    # findings

    def audit(self) -> Audit:
        """The facts that `engine.integrity` compares."""
        found = audit_of(
            self.tube, [self._records[id] for id in sorted(self._records)],
            sessions={int(no) for no in self._stored["ends"]},
            groups=list(self._groups.values()), queues={}, counters=self._counters,
            others=[*self._problems, *(said for differs in self.differences for said in self._said(*differs))],
        )  # fmt: skip
        return replace(found, queues=self._queues)

    def _said(self, part: str, field: bytes) -> Iterator[Problem]:
        """The problem with a wrong entry, unless the rules of `engine.integrity` report it."""
        wanted = self._wanted[part].get(field)
        if part in _INDEXES:
            what = "is in the {} index by mistake" if wanted is None else "is not where it must be in the {} index"
            yield task_id(field), what.format(part), "index it again"
        elif part == "waits":
            yield None, f"handle {field.decode()} is registered as waiting, but is not there", "forget it"
        elif part == "addresses" and self._is_span(field):
            yield None, f"the ids of {field.decode()} do not lead to its messages", "list them again"
        elif part == "addresses" and wanted is None:
            yield None, f"address {field.decode()} leads to no task and to no outcome", "forget it"
        elif part == "addresses":
            what = f"address {field.decode()} is that of another task, or of none"
            yield task_id(wanted or b""), what, "believe the task"

    # repair

    def repairs(self) -> Iterable[Item]:
        """What to write, except for leases and groups. All writes of a micro-queue are one item."""
        items: dict[object, tuple[set[Guard], list[Write]]] = {}
        for part, field in self.differences:
            stored, wanted = self._stored[part].get(field), self._wanted[part].get(field)
            scored, key = part in queries.SORTED, None
            if part in ("tasks", "outcomes", *_INDEXES):
                key = field[-6:]
            elif part == "addresses" and not self._is_span(field):
                key = wanted or stored
            micro_queue = field if part == "micro_queues" else self._micro_queue_of(key)
            guards, writes = items.setdefault((key, part, field) if micro_queue is None else micro_queue, (set(), []))
            guards.update([] if scored else [(part, field, stored)])
            guards.update([] if key is None else [self.unchanged(key)])
            guards.update(
                []
                if micro_queue is None
                else [("micro_queues", micro_queue, self._stored["micro_queues"].get(micro_queue))]
            )
            if wanted is None:
                writes.append(("ZREM" if scored else "HDEL", part, field))
            else:
                writes.append(("ZADD", part, repr(wanted), field) if scored else ("HSET", part, field, wanted))
        return items.values()

    def _micro_queue_of(self, key: bytes | None) -> bytes | None:
        record = None if key is None else self._records.get(task_id(key))
        return micro_queue_name(record.utube or "") if record is not None and self.tube.kind.per_utube else None
