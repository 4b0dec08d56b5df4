"""Cross-checks of a stored tube, for `engine.integrity`: compares everything that scripts derive from tasks with the
tasks.

Repair sets wrong fields of hashes unless they have changed since, removes entries of indexes that no task has, and
rewrites tasks whose entries are wrong, which indexes them again.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import cast

from msgspec.structs import replace

from penstock.core import group as rules
from penstock.core.audit import EARLY_OUTCOME, Audit, Problem, audit_of, queue_problems
from penstock.core.ids import needed_mark, read_mark, shown_mark
from penstock.core.kind import CLOCK, DELIVER
from penstock.core.options import Tube
from penstock.core.results import Finding
from penstock.core.task import UNSTARTED, Record
from penstock.engine.integrity import check_tube
from penstock.engine.port import Step
from penstock.errors import StoreCorrupt
from penstock.store.redis.encoding import (
    decode,
    encode,
    index_entries,
    micro_queue_name,
    pack_micro_queue,
    read_groups,
    read_micro_queue,
    read_outcome,
    task_id,
    task_key,
    unreadable,
)
from penstock.store.redis.outbox import Outbox
from penstock.store.redis.redis_connection import Argument
from penstock.store.redis.redis_step import RedisStep
from penstock.store.redis.script_runner import ScriptRunner

_LOOKS = 5
_INDEXES = ("ready", "buried", "taken", "delivered", "due", "queue", "members")
# The parts of a tube, in reading order. Outcomes may be forgotten while parts are read, without a change of counters:
# parts that are read first may contain more.
_PARTS = (*"kept outcomes addresses moving groups ends micro_queues".split(), *_INDEXES, "tasks", "waits", "handles")
# The most repairs in one script call.
_STEP = 200
# By part of the tube (a hash) and field: the value to write, None to remove it.
Fields = Mapping[tuple[str, bytes], bytes | None]


def check(runner: ScriptRunner, outbox: Outbox, tube: Tube, repair: bool) -> list[Finding]:
    """Check a stored tube, and repair it if asked. In a busy tube, only findings that several reads agree on count."""
    step, agreed = CheckStep(runner, outbox, tube, repair), list[Finding]()
    for attempt in range(_LOOKS):
        found = check_tube(cast(Step, step), tube, repair=False)
        agreed = [finding for finding in agreed if finding in found] if attempt and not step.look.quiet else found
        if step.look.quiet or not agreed:
            break
    if repair and (agreed or step.look.fields):
        step.rebuild(tube, step.look.audit)  # first, because the repair of leases and groups relies on the indexes
        check_tube(cast(Step, step), tube, repair=True)
    return agreed


class CheckStep(RedisStep):
    """The step with which `engine.integrity` checks and repairs a tube."""

    look: Look

    def audit(self, tube: Tube) -> Audit:
        """See `Step.audit`."""
        self.look = Look(self._runner, tube)
        return self.look.audit

    def restore(self, tube: Tube, record: Record) -> None:
        """See `Step.restore`."""
        self._set({("tasks", task_key(record.id)): encode(record)})

    def rebuild(self, tube: Tube, audit: Audit) -> None:
        """Repair what the last look found, except for leases and groups."""
        look, name = self.look, self._runner.keys.name
        self._set(look.fields)
        commands = [(key := name(tube.no, part), (command, key, *words)) for command, part, words in look.commands]
        self._runner.servers.command_all(commands)
        self.rewrite(tube, list(look.again.values()))

    def _set(self, fields: Fields) -> None:
        """Write fields that have not changed since the last look."""
        words: list[Argument] = []
        for (part, field), wanted in fields.items():
            stored = self.look.stored[part].get(field)
            words += [part, field, *(b"" if value is None else b"=" + value for value in (stored, wanted))]
        for start in range(0, len(words), 4 * _STEP):
            self._runner.on_tube("write_unchanged", self._tube, *words[start : start + 4 * _STEP])


class Look:
    """A tube as read once: what is stored, what is wrong, and what repairs it."""

    def __init__(self, runner: ScriptRunner, tube: Tube) -> None:
        self.tube = tube
        self._now = runner.now(tube.no)
        before = runner.read_part(tube, "meta")
        self._counters = runner.read_counters([tube], frozen=True)[0]
        self.stored = {part: runner.read_part(tube, part) for part in (*_PARTS, "meta")}
        #: Whether nothing changed while the tube was read; else the counters are not compared.
        self.quiet = self.stored["meta"] == before
        self._problems: list[Problem] = []
        #: Fields of hashes to write.
        self.fields: dict[tuple[str, bytes], bytes | None] = {}
        #: Commands that remove entries from indexes, and set when outcomes and groups expire: command, part, words.
        self.commands: list[tuple[bytes, str, list[Argument]]] = []
        #: Tasks to index again, by id.
        self.again: dict[int, Record] = {}
        self._groups = read_groups(self.stored["groups"])
        for no, group in self._groups.items():
            group.moving = b"%d" % no in self.stored["moving"]
        tasks = self.stored["tasks"].items()
        self._records = {id: self._read(id, value) for key, value in tasks if (id := task_id(key))}
        queues = {name[1:].decode(): read_micro_queue(value) for name, value in self.stored["micro_queues"].items()}
        #: The facts that `core.audit` compares.
        self.audit = audit_of(
            tube, [self._records[id] for id in sorted(self._records)],
            sessions={int(no) for no in self.stored["ends"]}, groups=list(self._groups.values()), queues=queues,
            counters=self._counters, others=self._problems,
        )  # fmt: skip
        self._compare_queues()
        self._compare_indexes(second="2" in runner.shape(tube).letters)
        self._compare_addresses()
        self._compare_groups()
        waits = {handle: takes for handle, takes in self.stored["waits"].items() if handle in self.stored["handles"]}
        self._compare("waits", waits, "handle {} is registered as waiting, but does not exist", "forget it")
        self._count()

    def _compare(self, part: str, wanted: Mapping[bytes, bytes], what: str, remedy: str, *, lead: int = 0) -> None:
        """Compare a hash with what it should be. `what` is the problem with an entry, by its name without its lead."""
        stored = self.stored[part]
        for name in sorted(name for name in {**stored, **wanted} if stored.get(name) != wanted.get(name)):
            self._problems.append((None, what.format(name[lead:].decode()), remedy))
            self.fields[part, name] = wanted.get(name)

    def _read(self, id: int, value: bytes) -> Record:
        """The task as it should be. One that cannot be read has lost its address and its group."""
        kind, stored = self.tube.kind, None
        try:
            stored = record = decode(id, value)
        except StoreCorrupt:
            what = "is stored in a form that penstock did not write"
            self._problems.append((id, what, "bury it" if kind.leased else "keep the bytes as its data"))
            record = unreadable(id, value, self._now, leased=kind.leased)
        if record.address is None and not kind.leased:
            ms, seq = self._counters.mark
            own = f"reply-{id}" if kind.hand_out == CLOCK else shown_mark((max(ms, self._now), seq + id))
            record = replace(record, address=own)
        if record is not stored:
            self.fields["tasks", task_key(id)] = encode(record)
        return record

    # what is derived from tasks

    def _compare_queues(self) -> None:
        """Compare micro-queues. Rewriting the heads of a micro-queue chooses them again."""
        for utube, queue in self.audit.queues.items():
            if any(queue_problems(self.tube, {utube: queue})):
                heads = [self._records[id] for id, state in queue.ready if state == "r"]
                ready = heads or [self._records[id] for id, _ in queue.ready[:1]]
                turn = queue.turn or max((int(record.rank2) for record in heads if self.tube.fair), default=0)
                numbers = pack_micro_queue(*queue.counted, turn) if any(queue.counted) else None
                self.fields["micro_queues", micro_queue_name(utube)] = numbers
                self.again |= {record.id: record for record in ready}

    def _compare_indexes(self, *, second: bool) -> None:
        wanted: dict[str, dict[bytes, float]] = {part: {} for part in _INDEXES}
        for record in self._records.values():
            group = None if record.group_no is None else self._groups.get(record.group_no)
            for index, name, score in index_entries(self.tube, record, second=second):
                # A take removes a task from the ready index if its group was cancelled.
                withdrawn = index == "ready" and group is not None and group.state == rules.CANCELLING
                if not withdrawn or name in self.stored["ready"]:
                    wanted[index][name] = score
        for part, entries in wanted.items():
            stored = self.stored[part]
            for name in [name for name in stored | entries if stored.get(name) != entries.get(name)]:
                id, stray = task_id(name), name not in entries
                what = "is in the {} index, but should not be" if stray else "is missing or misplaced in the {} index"
                self._problems.append((id, what.format(part), "index it again"))
                self.commands += [(b"ZREM", part, [name])] if stray else []
                self.again |= {id: self._records[id]} if id in self._records else {}

    def _compare_addresses(self) -> None:
        stored, wanted = self.stored["addresses"], dict[bytes, bytes]()
        # All messages of a millisecond share one entry.
        spans = {ms: span for ms, span in stored.items() if self.tube.kind.hand_out == DELIVER and ms.isdigit()}
        for id, record in self._records.items():
            mark = read_mark(record.address or "") if spans else None
            span = mark and spans.get(b"%d" % mark[0])
            if mark and span and task_id(span[:6]) + mark[1] == id:
                wanted[b"%d" % mark[0]] = span
            elif record.address is not None:
                wanted[record.address.encode()] = task_key(id)
        ended = {name: key for name, key in stored.items() if key in self.stored["outcomes"]}
        what = "address {} belongs to no task and to no outcome, or to another task"
        self._compare("addresses", {**ended, **wanted}, what, "correct its entry")

    def _compare_groups(self) -> None:
        """Compare the names of live groups, and when outcomes and ended groups expire."""
        stored, kept, outcomes = self.stored["groups"], self.stored["kept"], self.stored["outcomes"]
        live = [group for group in self._groups.values() if group.state in rules.LIVE]
        names = {name: value for name, value in stored.items() if name[:1] != b"n"}
        names |= {b"n" + group.name.encode(): b"%d" % group.no for group in live}
        what = "group {}: its name belongs to another group, or to none"
        self._compare("groups", names, what, "restore its name", lead=1)
        known = {name[:1] + name[at : at + 6] for name in kept for at in range(1, len(name), 6)}
        over = [group for group in self._groups.values() if group.state in rules.OVER]
        what = "group {}: has ended, but never expires"
        ends: list[tuple[bytes, int | None, int | None, str]]
        ends = [(b"g" + task_key(group.no), group.until, None, what.format(group.name)) for group in over]
        for key, value in outcomes.items():
            id = task_id(key)
            if id in self._records:
                self._problems.append((id, *EARLY_OUTCOME))
                self.fields["outcomes", key] = None
            else:
                ends.append((b"o" + key, read_outcome(id, value).until, id, "its outcome never expires"))
        for name, until, task, what in ends:
            if name not in known:
                self._problems.append((task, what, "set its expiry"))
                self.commands.append((b"ZADD", "kept", [until or self._now, name]))

    def _count(self) -> None:
        meta, counts, states = self.stored["meta"], self._counters.counts, self.audit.states
        numbers = {"taken": states["t"], "delayed": states["~"] + states[UNSTARTED], "buried": states["!"]}
        numbers["delete"] = counts.delete + counts.stored - len(self._records)
        numbers["bury"] = counts.bury + sum(what.startswith("bury") for _, _, what in self._problems)
        if self.tube.kind.hand_out == DELIVER:
            mark = needed_mark(self._counters.mark, self.audit.newest)
            numbers |= {} if mark is None else {"ms": mark[0], "seq": mark[1]}
            waiting = min((record.id for record in self._records.values() if record.state == "r"), default=inf)
            if waiting <= int(meta.get(b"handed", 0)):
                what = f"messages up to {meta[b'handed'].decode()} count as handed out, but not all were"
                self._problems.append((None, what, "hand them out"))
                numbers["handed"] = int(waiting) - 1
        for name, number in numbers.items() if self.quiet else ():
            if int(meta.get(name.encode(), 0)) != number:
                self.fields["meta", name.encode()] = b"%d" % number
