"""One look at everything stored of a tube: its records, the index entries that these require, and those that exist.

The relations of its tasks (addresses, outcomes, groups) check and repair themselves here; the rest is in checks.py.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cached_property
from typing import cast

import msgspec

from penstock.core import group as rules
from penstock.core.group import CANCELLING, Group
from penstock.core.options import Tube
from penstock.core.task import UNSTARTED, Record
from penstock.errors import StoreCorrupt
from penstock.store.base import ADVANCE_STEP, STATE_COUNTER, Counts, Effects, Finding
from penstock.store.redis.connection import Argument
from penstock.store.redis.encoding import (
    UNREADABLE,
    decode,
    read_group,
    read_lane,
    read_outcome,
    sortable,
    task_id,
    task_key,
)
from penstock.store.redis.queries import count, scan
from penstock.store.redis.runner import Runner
from penstock.store.redis.steps import Steps

INDEXES = ("ready", "buried", "taken", "delivered", "due", "queue", "members")
Place = tuple[float, float, int]


class LaneSnapshot(msgspec.Struct):
    """A micro-queue: its stored numbers, and what its tasks say."""

    stored: tuple[int, int, int] = (0, 0, 0)
    turn: int = 0
    taken: int = 0
    heads: list[Place] = []
    waiting: list[Place] = []
    turns: list[float] = []

    @property
    def numbers(self) -> tuple[int, int, int]:
        """Taken, heads and waiting, counted from its tasks."""
        return self.taken, len(self.heads), len(self.waiting)


class Snapshot:
    """One look at a tube. `expected` and `stored`: index -> member -> score, by the records and in fact."""

    def __init__(self, tube: Tube, shape: str, relations: Relations) -> None:
        self.tube = tube
        self.relations = relations
        self._second = "2" in shape
        self.counts = Counts()
        self.states: dict[str, int] = dict.fromkeys(STATE_COUNTER, 0)
        self.expected: dict[str, dict[bytes, float]] = {index: {} for index in INDEXES}
        self.stored: dict[str, dict[bytes, float]] = {index: {} for index in INDEXES}
        self.lanes: dict[str, LaneSnapshot] = {}
        self.sessions: set[int] = set()
        self.orphans: list[tuple[int, int]] = []
        self.stale_waits: list[bytes] = []
        self.unreadable: list[bytes] = []
        self.incomplete: list[bytes] = []

    @cached_property
    def known_relations(self) -> dict[bytes, tuple[str, int | None, str]]:
        """Relations of tasks whose record may have lost them: address, number and name of the group, by key."""
        found: dict[bytes, tuple[str, int | None, str]] = {}
        for address, id in self.relations.addresses.items():
            found[task_key(id)] = (address, None, "")
        for name in self.stored["members"]:
            group = self.relations.groups.get(task_id(name[:6]))
            if name[6:7] == b"m" and group is not None:
                found[name[7:]] = (found.get(name[7:], ("",))[0], group.no, group.name)
        return found

    def counters(self) -> dict[str, tuple[int, int]]:
        """For each counter, what it says and what was counted."""
        counts, states = self.counts, self.states
        return {
            "taken": (counts.taken, states["t"]),
            "delayed": (counts.delayed, states["~"] + states[UNSTARTED]),
            "buried": (counts.buried, states["!"]),
            "total": (counts.stored, sum(states.values())),
        }

    def index_errors(self) -> Iterator[tuple[str, bytes, bool]]:
        """The index and member of each wrong index entry, and whether it is missing there, or else must go."""
        for index, expected in self.expected.items():
            stored = self.stored[index]
            yield from ((index, member, True) for member, score in expected.items() if stored.get(member) != score)
            yield from ((index, member, False) for member in stored.keys() - expected.keys())

    def add(self, record: Record) -> None:
        """Count a record, and note the index entries that it requires."""
        key, state = task_key(record.id), record.state
        self.states[state] += 1
        name = sortable(record.rank2) + key if self._second else key
        if state in "r!" and not (state == "r" and self._withdrawn(name, record)):
            self.expected["ready" if state == "r" else "buried"][name] = record.rank1
        if state == "t" and not self.tube.kind.leased:
            self.expected["delivered"][key] = record.rank1
        elif state == "t":
            self.expected["taken"][key] = record.owner or 0
            if record.owner not in self.sessions:
                self.orphans.append((record.id, record.owner or 0))
        if record.at is not None:
            self.expected["due"][key] = record.at
        if self.tube.kind.per_utube and state in "rqt":
            self._add_to_lane(record, key)
        if record.address is not None or record.group_no is not None:
            self._add_relations(record, key)
        elif record.reason == UNREADABLE and key in self.known_relations:
            self.incomplete.append(key)

    def _withdrawn(self, name: bytes, record: Record) -> bool:
        """Whether a take removed the task from the ready index after its group was cancelled."""
        group = None if record.group_no is None else self.relations.groups.get(record.group_no)
        return group is not None and group.state == CANCELLING and name not in self.stored["ready"]

    def _add_to_lane(self, record: Record, key: bytes) -> None:
        utube = record.utube or ""
        lane = self.lanes.setdefault(utube, LaneSnapshot())
        if record.state == "t":
            lane.taken += 1
            return
        letter, places = (b"h", lane.heads) if record.state == "r" else (b"w", lane.waiting)
        rank2 = 0 if self.tube.fair else record.rank2
        places.append((record.rank1, rank2, record.id))
        if record.state == "r":
            lane.turns.append(record.rank2)
        label = utube.encode()
        between = sortable(rank2) if self._second and not self.tube.fair else b""
        member = bytes([len(label)]) + label + letter + sortable(record.rank1) + between + key
        self.expected["queue"][member] = 0

    def _add_relations(self, record: Record, key: bytes) -> None:
        self.relations.tasks.append(TaskRelations(record.id, record.state, record.address, record.group_no))
        if record.group_no is None:
            return
        group = task_key(record.group_no)
        self.expected["members"][group + b"m" + key] = 0
        if record.state == UNSTARTED:
            place = sortable(record.rank1) + (sortable(record.rank2) if self._second else b"")
            self.expected["members"][group + b"u" + place + key] = 0


def read_snapshot(runner: Runner, tube: Tube) -> Snapshot:
    """Read a tube, in pages."""
    seen = Snapshot(tube, runner.shape(tube).letters, Relations(runner, tube))
    seen.counts = count(runner, [tube])
    seen.sessions = {int(no) for no, _ in scan(runner, tube, "ends")}
    for utube, stored in scan(runner, tube, "lanes"):
        taken, heads, waiting, turn = read_lane(stored)
        seen.lanes[utube.decode()] = LaneSnapshot((taken, heads, waiting), turn)
    for index in INDEXES:
        seen.stored[index] = {name: float(score) for name, score in scan(runner, tube, index)}
    for key, value in dict(scan(runner, tube, "tasks")).items():  # a scan may return a field twice
        try:
            seen.add(decode(task_id(key), value))
        except StoreCorrupt:
            seen.unreadable.append(key)
    seen.stale_waits = _stale_waits(runner, tube)
    return seen


def _stale_waits(runner: Runner, tube: Tube) -> list[bytes]:
    waits, handles = runner.keys.name(tube.no, "waits"), runner.keys.name(tube.no, "handles")
    waiting = cast("list[bytes]", runner.servers.command(waits, b"HKEYS", waits))
    known = set(cast("list[bytes]", runner.servers.command(handles, b"HKEYS", handles)))
    return [handle for handle in waiting if handle not in known]


class TaskRelations(msgspec.Struct, frozen=True):
    """The relations of a task, by its record."""

    id: int
    state: str
    address: str | None
    group_no: int | None


class Relations:
    """One look at a tube's addresses, outcomes and groups.

    Outcomes may be forgotten meanwhile, which no counter shows: so what is read first may contain more than the rest.
    """

    def __init__(self, runner: Runner, tube: Tube) -> None:
        self.tube = tube
        self.kept = {name for name, _ in scan(runner, tube, "kept")}
        self.outcomes = {task_id(key): read_outcome(stored)[0] for key, stored in scan(runner, tube, "outcomes")}
        self.addresses = {address.decode(): task_id(key) for address, key in scan(runner, tube, "addresses")}
        self.moving = {int(no) for no, _ in scan(runner, tube, "moving")}
        self.groups: dict[int, Group] = {}
        self.live: dict[str, int] = {}
        for name, stored in scan(runner, tube, "groups"):
            if name[:1] == b"g":
                self.groups[task_id(name)] = read_group(task_id(name), stored)
            elif name[:1] == b"n":
                self.live[name[1:].decode()] = int(stored)
        self.tasks: list[TaskRelations] = []

    def findings(self) -> Iterator[Finding]:
        """Everything that is wrong with the relations."""
        for id, what, remedy in (*self._tasks(), *self._loose()):
            yield Finding(self.tube.name, id, what, remedy)
        for no, problems in self._groups().items():
            for what, remedy in problems:
                yield Finding(self.tube.name, None, f"group {self.groups[no].name}: {what}", remedy)

    def repair(self, steps: Steps, now: int | None) -> None:
        """Repair in bounded steps, the tasks first: groups are counted from them."""
        pairs: list[Argument] = []
        for id, _, _ in self._tasks():
            pairs += ["task", task_key(id)]
        for address in self._dangling():
            pairs += ["address", address]
        for name in self._endless():
            pairs += ["outcome", name]
        for start in range(0, len(pairs), ADVANCE_STEP):
            steps.run("repair_relations", self.tube, Effects(), *pairs[start : start + ADVANCE_STEP], now=now)
        for no in self._groups():
            early = [
                task_key(task.id) for task in self.tasks if task.group_no == no and task.state not in (UNSTARTED, "!")
            ]
            for start in range(0, max(1, len(early)), ADVANCE_STEP):
                steps.run("repair_group", self.tube, Effects(), no, *early[start : start + ADVANCE_STEP], now=now)

    def _tasks(self) -> Iterator[tuple[int, str, str]]:
        for task in self.tasks:
            if task.address is not None and self.addresses.get(task.address) != task.id:
                yield task.id, f"address {task.address} is that of another task, or of none", "repair believes the task"
            if task.id in self.outcomes:
                yield task.id, "has an outcome, but is still there", "repair forgets the outcome"
            if task.group_no is not None and task.group_no not in self.groups:
                yield task.id, "its group is not there", "repair takes it out of the group"

    def _loose(self) -> Iterator[tuple[int | None, str, str]]:
        for address in self._dangling():
            yield None, f"address {address} leads to no task and to no outcome", "repair forgets it"
        for name in self._endless():
            yield task_id(name[1:7]), "its outcome has no end", "repair forgets the outcome"

    def _endless(self) -> list[bytes]:
        names = (b"o" + task_key(id) + address.encode() for id, address in self.outcomes.items())
        return [name for name in names if name not in self.kept]

    def _dangling(self) -> list[str]:
        there = {task.id for task in self.tasks} | self.outcomes.keys()
        return [address for address, id in self.addresses.items() if id not in there]

    def _groups(self) -> dict[int, list[tuple[str, str]]]:
        """The problems of each group that contradicts its tasks."""
        states: dict[int, Counter[str]] = defaultdict(Counter)
        for task in self.tasks:
            if task.group_no is not None:
                states[task.group_no][task.state] += 1
        found = {no: list(self._problems(group, states[no])) for no, group in self.groups.items()}
        return {no: problems for no, problems in found.items() if problems}

    def _problems(self, group: Group, states: Counter[str]) -> Iterator[tuple[str, str]]:
        left = states.total()
        if group.left != left:
            yield f"says {group.left} tasks are left, there are {left}", "repair counts them anew"
        if group.total < left:
            yield f"says {group.total} tasks were put, there are {left}", "repair counts them anew"
        if group.state in rules.OVER and left:
            yield f"is {group.state}, but has {left} tasks left", "repair takes it up again"
        if group.state in rules.OVER and not left and b"g" + task_key(group.no) not in self.kept:
            yield "is remembered for ever", "repair sets its end"
        if group.state in (rules.STARTED, rules.CANCELLING) and not left:
            yield "should have ended", "repair ends it"
        if group.state == rules.OPEN and (early := left - states[UNSTARTED] - states["!"]):
            yield f"is not started, but {early} of its tasks can be taken", "repair holds them back"
        waiting = {rules.STARTED: states[UNSTARTED], rules.CANCELLING: left}.get(group.state, 0)
        if waiting and group.no not in self.moving:
            yield f"{waiting} tasks do not follow its record", "repair lets them follow"
        if (self.live.get(group.name) == group.no) != (group.state in rules.LIVE):
            yield "its name leads to another group, or to none", "repair names it anew"
