"""Cross-checks of a tube: what is stored beside its tasks is derived from them once more, and compared.

Repair writes the differences, each unless the task or the entry that it rests on has changed since. Leases without a
session are released as the session's end would, and groups repaired by a script that can end them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import cast

from msgspec.structs import replace

from penstock.core import group as rules
from penstock.core.group import Group
from penstock.core.ids import Mark, needed_mark, read_mark, shown_mark
from penstock.core.kind import CLOCK, DELIVER
from penstock.core.options import Tube
from penstock.core.results import STATE_COUNTER, Finding
from penstock.core.task import UNSTARTED, Record
from penstock.engine.integrity import (
    Problem,
    counter_problems,
    group_problems,
    heads_wanted,
    queue_problems,
    repair_group,
    repaired,
)
from penstock.engine.port import QueueAudit, Step
from penstock.errors import StoreCorrupt
from penstock.store.redis import redis_queries as queries
from penstock.store.redis.encoding import (
    UNREADABLE,
    decode,
    encode,
    index_entries,
    lane_name,
    pack_lane,
    read_lane,
    read_outcome,
    task_id,
    task_key,
)
from penstock.store.redis.outbox import Steps
from penstock.store.redis.redis_connection import Argument
from penstock.store.redis.redis_step import RedisStep
from penstock.store.redis.registry import Registry
from penstock.store.redis.runner import Runner

_LOOKS = 5
_INDEXES = ("ready", "buried", "taken", "delivered", "due", "queue", "members")
# Repairs in one script.
_STEP = 200
# What must still be stored: part, field of a hash, value or None. What is written: command, part, words.
Guard = tuple[str, bytes | str, bytes | None]
Write = tuple[Argument, ...]
Item = tuple[Sequence[Guard], Sequence[Write]]


def check(runner: Runner, steps: Steps, tube: Tube, registry: Registry, repair: bool, now: int | None) -> list[Finding]:
    """All findings in a stored tube; with `repair`, each is repaired."""
    found, seen = _look(runner, tube, now)
    if repair and (found or seen.changed):
        for owner in {owner for _, owner in seen.orphans}:
            registry.end_session(tube, owner, now)
        items = list(seen.repairs())
        for start in range(0, len(items), _STEP):
            runner.on_tube("repair", tube, *_words(items[start : start + _STEP]), now=now)
        for no in seen.wrong_groups():
            step = cast(Step, RedisStep(runner, steps, tube, True, now))
            repair_group(step, tube, no, Counter(seen.members[no].values()))
    return [Finding(tube.name, *problem) for problem in found]


def _words(items: Sequence[Item]) -> Iterator[Argument]:
    """Items as arguments of the script."""
    for guards, writes in items:
        yield len(guards)
        for part, field, value in guards:
            yield from (part, field, b"" if value is None else b"=" + value)
        yield len(writes)
        for write in writes:
            yield from (len(write) - 2, *write)


def _look(runner: Runner, tube: Tube, now: int | None) -> tuple[list[Problem], Look]:
    """What is found while nothing changes; in a busy tube, what each of several looks finds."""
    agreed: list[Problem] | None = None
    looks = _LOOKS
    while True:
        looks -= 1
        before = runner.command(tube.no, "meta", b"HGETALL")
        seen = Look(runner, tube, now)
        found = list(seen.findings())
        seen.quiet = before == runner.command(tube.no, "meta", b"HGETALL")
        if seen.quiet:
            return found, seen
        agreed = found if agreed is None else [problem for problem in agreed if problem in found]
        if not looks or not agreed:
            return agreed, seen


class Look:
    """One look at a tube: what is stored, and what should be. `records` and `indexes` are as they should be."""

    def __init__(self, runner: Runner, tube: Tube, now: int | None) -> None:
        self.tube = tube
        #: Whether nothing changed during the look; else the counters are not compared.
        self.quiet = False
        self._now = runner.now(tube.no, now)
        self._second = "2" in runner.shape(tube).letters
        # Outcomes may be forgotten during the look, which no counter shows: what is read first may contain more.
        self._kept = {name for name, _ in queries.scan(runner, tube, "kept")}
        outcomes = queries.scan(runner, tube, "outcomes")
        self._outcomes = {task_id(key): read_outcome(task_id(key), value) for key, value in outcomes}
        addresses = dict(queries.scan(runner, tube, "addresses"))
        self._spans = {
            name: addresses.pop(name) for name in [*addresses] if tube.kind.hand_out == DELIVER and name.isdigit()
        }
        self._addresses = {name.decode(): task_id(key) for name, key in addresses.items()}
        self._handed = queries.handed(runner, tube)
        moving = {int(no) for no, _ in queries.scan(runner, tube, "moving")}
        live = queries.scan(runner, tube, "groups")
        self._live = {name[1:].decode(): int(no) for name, no in live if name[:1] == b"n"}
        self._groups = queries.groups(runner, tube)
        for no, group in self._groups.items():
            group.moving = no in moving
        self._sessions = {int(no) for no, _ in queries.scan(runner, tube, "ends")}
        self._lanes = {name[1:]: stored for name, stored in queries.scan(runner, tube, "lanes")}
        self._stored = {
            index: {name: float(score) for name, score in queries.scan(runner, tube, index)} for index in _INDEXES
        }
        self._values = dict(queries.scan(runner, tube, "tasks"))  # a scan may return a field twice
        self._counters = queries.read_counters(runner, [tube], frozen=True)[0]
        known = set(cast("list[bytes]", runner.command(tube.no, "handles", b"HKEYS")))
        waiting = cast("list[bytes]", runner.command(tube.no, "waits", b"HKEYS"))
        self._waits = [handle for handle in waiting if handle not in known]
        #: Tasks that are stored in another form than they should be, and what is said of them.
        self.changed: dict[int, list[Problem]] = {}
        self.members: defaultdict[int, dict[int, str]] = defaultdict(dict)
        self.orphans: list[tuple[int, int]] = []
        lost = self._lost_relations()
        self._records = {
            id: self._sound(id, value, lost) for key, value in self._values.items() if (id := task_id(key))
        }
        self._queues = self._set_heads() if tube.kind.per_utube else {}
        self._indexes: dict[str, dict[bytes, float]] = {index: {} for index in _INDEXES}
        for record in self._records.values():
            self._place(record)
        self._states = Counter(record.state for record in self._records.values())
        self._needed_mark: Mark | None = None
        if tube.kind.hand_out == DELIVER and self._records:
            self._needed_mark = needed_mark(self._counters.mark, self._records[max(self._records)])
        self._needed_handed: int | None = None
        self._wrong_spans: list[tuple[bytes, bytes | None]] = []
        self._found: list[Problem] = []
        self._writes: defaultdict[int, list[Write]] = defaultdict(list)  # by the task that they rest on
        for id in self.changed:
            self._writes[id].append(("HSET", "tasks", task_key(id), encode(self._records[id])))
        self._compare_indexes()
        self._compare_addresses()

    # tasks as they should be

    def _lost_relations(self) -> dict[int, tuple[str | None, Group | None]]:
        """Address and group of tasks, as the indexes know them: a task that could not be read has lost them."""
        found: dict[int, tuple[str | None, Group | None]] = {id: (name, None) for name, id in self._addresses.items()}
        for member in self._stored["members"]:
            group = self._groups.get(task_id(member[:6]))
            if member[6:7] == b"m" and group is not None:
                found[task_id(member)] = found.get(task_id(member), (None, None))[0], group
        return found

    def _sound(self, id: int, value: bytes, lost: dict[int, tuple[str | None, Group | None]]) -> Record:
        try:
            record = decode(id, value)
        except StoreCorrupt:
            leased = self.tube.kind.leased
            what = "is stored in a form that penstock did not write"
            self._report(id, what, "bury it" if leased else "keep the bytes as its data")
            record = unreadable(id, value, self._now, leased=leased)
        if record.reason == UNREADABLE or id in self.changed:
            address, group = lost.get(id, (self._spanned_name(id), None))
            if record.address is None and record.group_no is None and (address or group):
                record = replace(record, address=address, group=group and group.name, group_no=group and group.no)
                self.changed.setdefault(id, [])
        if not self.tube.kind.leased:
            record = self._sound_unleased(record)
        if record.group_no is not None and record.group_no not in self._groups:
            self._report(id, "its group is not there", "take it out of the group")
            waits = record.state == UNSTARTED  # it is ready when the clock is next looked at
            state, at = ("~", self._now) if waits else (record.state, record.at)
            record = replace(record, state=state, at=at, group=None, group_no=None)
        return record

    def _sound_unleased(self, record: Record) -> Record:
        wrong = repaired(self.tube, record)
        if wrong is not None:
            self._report(record.id, wrong[0], "put it right", shown=record.address)
            record = wrong[1]
        if record.address is None and self.tube.kind.hand_out == CLOCK:
            return replace(record, address=f"reply-{record.id}")
        if record.address is None:
            ms, seq = self._counters.mark
            return replace(record, address=shown_mark((max(ms, self._now), seq + record.id)))
        return record

    def _spanned_name(self, id: int) -> str | None:
        """The name of a message that could not be read, from the entry of its millisecond."""
        aheads = {int.from_bytes(span[:6], "big"): ms for ms, span in self._spans.items()}
        ahead = max((ahead for ahead in aheads if ahead < id), default=None)
        return None if ahead is None else f"{aheads[ahead].decode()}-{id - ahead}"

    def _report(self, id: int, what: str, remedy: str, *, shown: int | str | None = None) -> None:
        self.changed.setdefault(id, []).append((id if shown is None else shown, what, remedy))

    def _set_heads(self) -> dict[str, QueueAudit]:
        """The micro-queues; their ready tasks become heads and waiting ones as they should be."""
        members: dict[str, list[Record]] = {utube.decode(): [] for utube in self._lanes}
        for record in self._records.values():
            if record.state in "rqt":
                members.setdefault(record.utube or "", []).append(record)
        fair, queues = self.tube.fair, dict[str, QueueAudit]()
        for utube, records in members.items():
            ready = [record for record in records if record.state != "t"]
            ready.sort(key=lambda record: (record.rank1, 0 if fair else record.rank2, record.id))
            heads = [record for record in ready if record.state == "r"]
            counted = len(records) - len(ready), len(heads), len(ready) - len(heads)
            stored = self._lanes.get(utube.encode())
            *numbers, turn = (0, 0, 0, 0) if stored is None else read_lane(stored)
            if stored is None:
                turn = max((int(record.rank2) for record in heads), default=0) if fair else 0
            kept = cast("tuple[int, int, int]", tuple(numbers))
            queue = QueueAudit(counted, kept, turn, [(record.id, record.state) for record in ready])
            queues[utube] = queue
            wanted = heads_wanted(self.tube, queue)
            for place, record in enumerate(ready):
                state = "r" if place < wanted else "q"
                rank2 = record.rank2 if not fair else turn if state == "r" else 0
                if (state, rank2) != (record.state, record.rank2):
                    self.changed.setdefault(record.id, [])
                    self._records[record.id] = replace(record, state=state, rank2=rank2)
        return queues

    # indexes as they should be

    def _place(self, record: Record) -> None:
        for index, name, score in index_entries(self.tube, record, second=self._second):
            if index != "ready" or not self._withdrawn(name, record):
                self._indexes[index][name] = score
        if record.state == "t" and self.tube.kind.leased and record.owner not in self._sessions:
            self.orphans.append((record.id, record.owner or 0))
        if record.group_no is not None:
            self.members[record.group_no][record.id] = record.state

    def _withdrawn(self, name: bytes, record: Record) -> bool:
        """Whether a take removed the task from the ready index after its group was cancelled."""
        group = None if record.group_no is None else self._groups.get(record.group_no)
        return group is not None and group.state == rules.CANCELLING and name not in self._stored["ready"]

    # what is stored against what should be

    def _wrong(self, id: int, what: str, remedy: str, *writes: Write) -> None:
        self._found.append((id, what, remedy))
        self._writes[id] += writes

    def _compare_indexes(self) -> None:
        for index, wanted in self._indexes.items():
            stored = self._stored[index]
            for name in stored.keys() - wanted.keys():
                what = f"is in the {index} index by mistake"
                self._wrong(task_id(name), what, "index it again", ("ZREM", index, name))
            for name, score in wanted.items():
                if stored.get(name) != score:
                    what = f"is not where it must be in the {index} index"
                    self._wrong(task_id(name), what, "index it again", ("ZADD", index, repr(score), name))

    def _compare_addresses(self) -> None:
        held = {id: record.address for id, record in self._records.items() if record.address is not None}
        if self.tube.kind.hand_out == DELIVER:
            self._compare_spans(held)
        for id, address in held.items():
            if self._addresses.get(address) != id:
                what = f"address {address} is that of another task, or of none"
                self._wrong(id, what, "believe the task", ("HSET", "addresses", address, task_key(id)))
        ending = {name[at : at + 6] for name in self._kept if name[:1] == b"o" for at in range(1, len(name), 6)}
        for id, kept in self._outcomes.items():
            key = task_key(id)
            if id in self._records:
                what = "has an outcome, but is still there"
                self._wrong(id, what, "forget the outcome", ("HDEL", "outcomes", key))
            elif key not in ending:
                self._wrong(id, "its outcome has no end", "set its end", ("ZADD", "kept", kept.until, b"o" + key))
        leads = self._addresses.items()
        self._dangling = [name for name, id in leads if held.get(id) != name and id not in self._outcomes]

    def _compare_spans(self, held: dict[int, str]) -> None:
        """Messages in the order of their ids, by the millisecond of their names. They are taken out of those `held`."""
        wanted: dict[bytes, list[int]] = {}
        for id, address in sorted(held.items()):
            mark = read_mark(address)
            ahead = -1 if mark is None else id - mark[1]
            if mark is not None and ahead >= 0:
                span = wanted.setdefault(str(mark[0]).encode(), [ahead, 0])
                if span[0] == ahead and self._addresses.get(address) != id:
                    span[1] += 1
                    del held[id]
        spans = {ms: task_key(ahead) + left.to_bytes(4, "big") for ms, (ahead, left) in wanted.items() if left}
        for ms in self._spans.keys() | spans.keys():
            if self._spans.get(ms) != spans.get(ms):
                self._wrong_spans.append((ms, spans.get(ms)))
        waiting = min((record.id for record in self._records.values() if record.state == "r"), default=None)
        self._needed_handed = waiting - 1 if waiting is not None and waiting <= self._handed else None

    # findings

    def findings(self) -> Iterator[Problem]:
        """Everything that is wrong."""
        for found in self.changed.values():
            yield from found
        yield from self._found
        yield from queue_problems(self.tube, self._queues)
        yield from counter_problems(self._counters.counts, self._states)
        for id, owner in self.orphans:
            yield id, f"taken by session {owner}, which is not there", "release it"
        for handle in self._waits:
            yield None, f"handle {handle.decode()} is registered as waiting, but is not there", "forget it"
        if (mark := self._needed_mark) is not None:
            kept = shown_mark(self._counters.mark)
            yield None, f"the last id is kept as {kept}, there is {shown_mark(mark)}", "keep the newest"
        if self._needed_handed is not None:
            yield None, f"messages up to {self._handed} count as handed out, but not all were", "hand them out"
        for ms, _ in self._wrong_spans:
            yield None, f"the ids of {ms.decode()} do not lead to its messages", "list them again"
        for address in self._dangling:
            yield None, f"address {address} leads to no task and to no outcome", "forget it"
        for no, problems in self.wrong_groups().items():
            for what, remedy in problems:
                yield None, f"group {self._groups[no].name}: {what}", remedy

    def wrong_groups(self) -> dict[int, list[tuple[str, str]]]:
        """The problems of each group that contradicts its tasks."""
        found = {no: list(self._problems(group)) for no, group in self._groups.items()}
        return {no: problems for no, problems in found.items() if problems}

    def _problems(self, group: Group) -> Iterator[tuple[str, str]]:
        yield from group_problems(group, Counter(self.members.get(group.no, {}).values()))
        if group.state in rules.OVER and b"g" + task_key(group.no) not in self._kept:
            yield "is remembered for ever", "set its end"
        if (self._live.get(group.name) == group.no) != (group.state in rules.LIVE):
            yield "its name leads to another group, or to none", "name it again"

    # repair

    def repairs(self) -> Iterator[Item]:
        """What is to be written, but for leases and groups."""
        yield from self._by_queue()
        yield from (([self._is(id)], writes) for id, writes in self._writes.items())
        for dangling in self._dangling:
            yield [("addresses", dangling, task_key(self._addresses[dangling]))], [("HDEL", "addresses", dangling)]
        yield from self._group_entries()
        for ms, span in self._wrong_spans:
            write = ("HDEL", "addresses", ms) if span is None else ("HSET", "addresses", ms, span)
            yield [("addresses", ms, self._spans.get(ms))], [write]
        if self.quiet:
            yield [], [*self._counter_writes(), *(("HDEL", "waits", handle) for handle in self._waits)]

    def _group_entries(self) -> Iterator[Item]:
        """Names of live groups, and ends of groups that are over."""
        for no, group in self._groups.items():
            key, name, led = b"g" + task_key(no), f"n{group.name}", self._live.get(group.name)
            if (led == no) != (group.state in rules.LIVE):
                write: Write = ("HDEL", "groups", name) if led == no else ("HSET", "groups", name, no)
                yield [("groups", name, None if led is None else b"%d" % led)], [write]
            if group.state in rules.OVER and key not in self._kept:
                yield [], [("ZADD", "kept", group.until or self._now, key)]

    def _is(self, id: int) -> Guard:
        return "tasks", task_key(id), self._values.get(task_key(id))

    def _by_queue(self) -> Iterator[Item]:
        """What depends on each other in micro-queues: their tasks, and their numbers. It is taken out of the writes."""
        ids: defaultdict[str, list[int]] = defaultdict(list)
        for record in self._records.values():
            if record.id in self._writes:
                ids[record.utube or ""].append(record.id)
        for utube, queue in self._queues.items():
            heads, stored = heads_wanted(self.tube, queue), self._lanes.get(utube.encode())
            numbers = queue.counted[0], heads, len(queue.ready) - heads
            if queue.stored != numbers or ids[utube]:
                writes = [write for id in ids[utube] for write in self._writes.pop(id)]
                writes.append(("HSET", "lanes", lane_name(utube), pack_lane(*numbers, queue.turn)))
                yield [("lanes", lane_name(utube), stored), *map(self._is, ids[utube])], writes

    def _counter_writes(self) -> Iterable[Write]:
        counts, there = self._counters.counts, Counter[str]()
        for state, number in self._states.items():
            there[STATE_COUNTER[state]] += number
        for name in ("taken", "delayed", "buried"):
            yield "HINCRBY", "meta", name, there[name] - getattr(counts, name)
        yield "HINCRBY", "meta", "delete", counts.stored - len(self._records)
        buried = sum(self._records[id].reason == UNREADABLE for id, found in self.changed.items() if found)
        yield "HINCRBY", "meta", "bury", buried
        if (mark := self._needed_mark) is not None:
            yield "HSET", "meta", "ms", mark[0], "seq", mark[1]
        if self._needed_handed is not None:
            yield "HSET", "meta", "handed", self._needed_handed


def unreadable(id: int, value: bytes, now: int, *, leased: bool = True) -> Record:
    """Bytes that penstock did not write, as the data of a task: see unreadable in lua/tasks.lua."""
    state, reason = ("!", UNREADABLE) if leased else ("r", None)
    return Record(id, state, 0, 0, 0, None, 0, 0, now, None, None, None, None, None, reason, None, b"\xff" + value)
