"""Cross-checks of everything the memory store keeps twice, against the records themselves; and repair."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from msgspec.structs import replace

from penstock.core import lifecycle
from penstock.core.task import QUEUED, Record
from penstock.store.base import STATE_COUNTER, Finding
from penstock.store.memory.lanes import Lanes, MicroQueue
from penstock.store.memory.link_checks import check_links
from penstock.store.memory.records import place
from penstock.store.memory.sessions import Sessions
from penstock.store.memory.step import Step
from penstock.store.memory.tube import TubeState
from penstock.store.memory.unleased_checks import check_unleased

_REBUILD = "repair counts and sorts the tube anew"


def check(states: Sequence[TubeState], sessions: Sessions, repair: bool, step: Step) -> list[Finding]:
    """All findings; with repair, each is mended."""
    findings: list[Finding] = []
    for state in states:
        findings += check_links(state, repair, step)
        findings += check_unleased(state, repair)
        crooked = [*_counters(state), *_indexes(state), *_lanes(state)]
        orphans = list(_orphans(state, sessions))
        findings += crooked
        findings += (_orphan_finding(state, record) for record in orphans)
        if repair and crooked:
            _rebuild(state, step)
        for record in orphans if repair else ():
            state.apply(record, lifecycle.came_back(record, step.now, "release"), step)
    findings += _held(states, sessions, repair)
    findings += _waits(states, sessions, repair)
    return findings


def _true_counts(state: TubeState) -> dict[str, int]:
    """The counters that follow from the records: every id that was given out is here or done."""
    here = Counter(STATE_COUNTER[record.state] for record in state.records.values())
    counts = {name: here[name] for name in STATE_COUNTER.values()}
    return {**counts, "done": state.last_id - len(state.records), "put": state.last_id}


def _counters(state: TubeState) -> Iterator[Finding]:
    for name, number in _true_counts(state).items():
        if state.counts[name] != number:
            yield _wrong(state, None, f"counter {name} says {state.counts[name]}, there are {number}")
    for letter, ids in state.apart.items():
        stray = ids ^ {record.id for record in state.records.values() if record.state == letter}
        for id in sorted(stray):
            yield _wrong(state, id, f"the set of tasks in state {letter} is wrong about it")


def _indexes(state: TubeState) -> Iterator[Finding]:
    ready = state.ready.live() | set(state.aside)
    buried, timer, delivered = state.buried.live(), state.timer.live(), state.delivered.live()
    for record in state.records.values():
        if record.state == "r" and place(record) not in ready and not state.links.groups.cancelled(record):
            yield _wrong(state, record.id, "ready, but not in the ready index, so never taken")
        if record.state == "!" and place(record) not in buried:
            yield _wrong(state, record.id, "buried, but not in the buried index, so never kicked")
        if record.state == "t" and not state.tube.kind.leased and place(record) not in delivered:
            yield _wrong(state, record.id, "delivered, but not in the delivered index, so never recovered")
        if record.at is not None and (record.at, record.id) not in timer:
            yield _wrong(state, record.id, "has a deadline, but is not in the timer index, so it never comes")


def _lanes(state: TubeState) -> Iterator[Finding]:
    lanes = state.lanes
    if lanes is None:
        for record in state.records.values():
            if record.state == QUEUED:
                yield _wrong(state, record.id, "waits behind a micro-queue in a tube that has none")
        return
    members: dict[str, list[Record]] = {name: [] for name in lanes.by_name}
    for record in state.records.values():
        if record.state in "rqt":
            members.setdefault(record.utube or "", []).append(record)
    for name, records in members.items():
        lane = lanes.by_name.get(name)
        if lane is None:
            yield _wrong(state, None, f"micro-queue {name!r} has {len(records)} tasks, but is unknown")
        else:
            for what in _lane(lanes, lane, records):
                yield _wrong(state, None, f"micro-queue {name!r}: {what}")


def _lane(lanes: Lanes, lane: MicroQueue, records: list[Record]) -> Iterator[str]:
    numbers = lane.numbers
    here = Counter(record.state for record in records)
    if (numbers.taken, numbers.heads, numbers.waiting) != (here["t"], here["r"], here[QUEUED]):
        yield (
            f"says {numbers.taken} taken, {numbers.heads} heads, {numbers.waiting} waiting, "
            f"there are {here['t']}, {here['r']}, {here[QUEUED]}"
        )
    heads = {lanes.key(record) for record in records if record.state == "r"}
    waiting = {lanes.key(record) for record in records if record.state == QUEUED}
    room = lanes.limit - here["t"] - here["r"]
    if waiting and room > 0:
        yield f"{len(waiting)} wait although there is room for {room} more heads"
    if here["r"] and room < 0:
        yield f"{-room} more heads and taken tasks than its limit of {lanes.limit}"
    if heads and waiting and max(heads) > min(waiting):
        yield f"task {min(waiting)[2]} waits behind the less urgent {max(heads)[2]}"
    if lane.waiting.live() != waiting:
        yield "the index of its waiting tasks is wrong"
    if {(-a, -b, -id) for a, b, id in lane.heads.live()} != heads:
        yield "the index of its heads is wrong"
    if lanes.fair and any(record.rank2 != numbers.turn for record in records if record.state == "r"):
        yield f"a head does not stand at its turn, {numbers.turn}"


def _orphans(state: TubeState, sessions: Sessions) -> Iterable[Record]:
    taken = (record for record in state.records.values() if record.state == "t" and state.tube.kind.leased)
    return (record for record in taken if record.owner not in sessions.by_no)


def _orphan_finding(state: TubeState, record: Record) -> Finding:
    what = f"taken by session {record.owner}, which is not there"
    return Finding(state.tube.name, record.id, what, "repair releases it")


def _held(states: Sequence[TubeState], sessions: Sessions, repair: bool) -> Iterator[Finding]:
    held: dict[int, set[tuple[int, int]]] = {no: set() for no in sessions.by_no}
    for state in states:
        for record in state.records.values():
            if record.state == "t" and record.owner in held:
                held[record.owner].add((state.tube.no, record.id))
    names = {state.tube.no: state.tube.name for state in states}
    for no, tasks in held.items():
        for tube, id in sorted(tasks ^ sessions.held.get(no, set())):
            what = f"session {no} and the task do not agree on who holds it"
            yield Finding(names.get(tube, ""), id, what, "repair believes the task")
        if repair:
            sessions.held[no] = tasks


def _waits(states: Sequence[TubeState], sessions: Sessions, repair: bool) -> Iterator[Finding]:
    names = {state.tube.no: state.tube.name for state in states}
    for tube, handles in list(sessions.waits.items()):
        for handle in sorted(handles):
            if handle not in sessions.handles or tube not in names:
                what = f"handle {handle} is registered as waiting, but is not there"
                yield Finding(names.get(tube, ""), None, what, "repair takes the registration back")
                if repair:
                    sessions.stop_waiting(handle, tube)


def _rebuild(state: TubeState, step: Step) -> None:
    """Every counter and index anew, from the records; micro-queues keep their turns."""
    turns = {name: lane.numbers.turn for name, lane in state.lanes.by_name.items()} if state.lanes else {}
    state.last_id = max(state.last_id, max(state.records, default=0))
    state.counts.update(_true_counts(state))
    for letter, ids in state.apart.items():
        ids.clear()
        ids.update(record.id for record in state.records.values() if record.state == letter)
    state.index_anew()
    for record in list(state.records.values()):
        if state.lanes is not None and record.state in "rqt":
            state.lanes.restore(record, turns.get(record.utube or "", 0))
        elif record.state == QUEUED:
            state.records[record.id] = replace(record, state="r")
        state.index(state.records[record.id])
    if state.lanes is not None:
        state.lanes.settle_all(step)


def _wrong(state: TubeState, id: int | None, what: str) -> Finding:
    return Finding(state.tube.name, id, what, _REBUILD)
