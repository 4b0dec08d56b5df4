"""Cross-checks of everything stored in Redis: the records against all that is kept beside them; and repair.

A tube is read in pages, so others may change it meanwhile. Every change of a task moves a counter: a look during which
none moved is judged as it is, else only what several looks find alike.
"""

from __future__ import annotations

from collections.abc import Iterator

from penstock.core.options import Tube
from penstock.store.base import ADVANCE_STEP, Finding
from penstock.store.redis.keys import task_id
from penstock.store.redis.link import Argument
from penstock.store.redis.registry import Registry
from penstock.store.redis.runner import Runner
from penstock.store.redis.snapshot import LanePlace, Snapshot, read_snapshot
from penstock.store.redis.steps import Steps
from penstock.store.redis.unleased_checks import check_unleased

_LOOKS = 5
_REINDEX = "repair indexes it anew"
_RECOUNT = "repair counts anew"


def check(
    runner: Runner, steps: Steps, tubes: list[Tube], registry: Registry, repair: bool, now: int | None
) -> list[Finding]:
    """All findings; with repair, each is mended."""
    findings: list[Finding] = []
    for tube in tubes:
        if not tube.kind.leased:
            findings += check_unleased(runner, tube, repair, now)
        found, seen = _look(runner, tube)
        if repair and (seen.unreadable or seen.bereft):
            findings += _unreadable(seen)
            _mend_unreadable(runner, seen, now)
            found, seen = _look(runner, tube)  # now all that hung on them can be judged
        findings += found
        if repair and found:
            _mend(runner, registry, seen, now)
            seen.links.mend(steps, now)
    return findings


def _look(runner: Runner, tube: Tube) -> tuple[list[Finding], Snapshot]:
    agreed: list[Finding] | None = None
    looks = _LOOKS
    while True:
        looks -= 1
        before = _meta(runner, tube)
        seen = read_snapshot(runner, tube)
        found = [*_unreadable(seen), *_counters(seen), *_indexes(seen), *_lanes(seen), *_orphans(seen), *_waits(seen)]
        found += seen.links.findings()
        if before == _meta(runner, tube):
            return found, seen
        agreed = found if agreed is None else [finding for finding in agreed if finding in found]
        if not looks or not agreed:
            return agreed, seen


def _meta(runner: Runner, tube: Tube) -> object:
    key = runner.keys.name(tube.no, "meta")
    return runner.servers.command(key, b"HGETALL", key)


def _unreadable(seen: Snapshot) -> Iterator[Finding]:
    remedy = "repair buries it" if seen.tube.kind.leased else "repair keeps the bytes as its data"
    for key in seen.unreadable:
        yield Finding(seen.tube.name, task_id(key), "is stored in a form that penstock did not write", remedy)


def _counters(seen: Snapshot) -> Iterator[Finding]:
    for name, (said, there) in seen.counters().items():
        if said != there:
            yield Finding(seen.tube.name, None, f"counter {name} says {said}, there are {there}", _RECOUNT)


def _indexes(seen: Snapshot) -> Iterator[Finding]:
    for index, wanted in seen.wanted.items():
        there = seen.there[index]
        for name, (score, id) in wanted.items():
            if there.get(name) != score:
                yield Finding(seen.tube.name, id, f"is not where it must be in the {index} index", _REINDEX)
        for name in there.keys() - wanted.keys():
            id = int.from_bytes(name[-6:], "big")
            yield Finding(seen.tube.name, id, f"stands in the {index} index and must not", _REINDEX)


def _lanes(seen: Snapshot) -> Iterator[Finding]:
    for utube, lane in seen.lanes.items():
        label = f"micro-queue {utube!r}"
        if lane.said != lane.numbers:
            yield Finding(seen.tube.name, None, f"{label} counts {lane.said}, there are {lane.numbers}", _RECOUNT)
        for what in _misplaced(seen.tube, lane):
            yield Finding(seen.tube.name, None, f"{label}: {what}", "repair sets its heads anew")


def _misplaced(tube: Tube, lane: LanePlace) -> Iterator[str]:
    room = tube.utube_limit - lane.taken - len(lane.heads)
    if lane.waiting and room > 0:
        yield f"{len(lane.waiting)} wait although there is room for {room} more heads"
    if lane.heads and room < 0:
        yield f"{-room} more heads and taken tasks than its limit of {tube.utube_limit}"
    if lane.heads and lane.waiting and max(lane.heads) > min(lane.waiting):
        yield f"task {min(lane.waiting)[-1]} waits behind the less urgent {max(lane.heads)[-1]}"
    if tube.fair and any(turn != lane.turn for turn in lane.turns):
        yield f"a head does not stand at its turn, {lane.turn}"


def _orphans(seen: Snapshot) -> Iterator[Finding]:
    for id, owner in seen.orphans:
        yield Finding(seen.tube.name, id, f"taken by session {owner}, which is not there", "repair releases it")


def _waits(seen: Snapshot) -> Iterator[Finding]:
    for handle in seen.strays:
        what = f"handle {handle.decode()} is registered as waiting, but is not there"
        yield Finding(seen.tube.name, None, what, "repair takes the registration back")


def _mend_unreadable(runner: Runner, seen: Snapshot, now: int | None) -> None:
    words: list[Argument] = []
    for key in (*seen.unreadable, *seen.bereft):
        address, group, name = seen.led_to.get(key, ("", None, ""))
        words += [key, address, "" if group is None else group, name]
    for start in range(0, len(words), ADVANCE_STEP):  # a multiple of four
        runner.on_tube("repair_unreadable", seen.tube, *words[start : start + ADVANCE_STEP], now=now)


def _mend(runner: Runner, registry: Registry, seen: Snapshot, now: int | None) -> None:
    """In bounded steps, each of which leaves the tube no worse: leases, indexes, micro-queues, counters, waits."""
    tube = seen.tube
    for owner in {owner for _, owner in seen.orphans}:
        registry.end_in(tube, owner, now)
    pairs: list[bytes | str] = []
    for index, wanted in seen.wanted.items():
        there = seen.there[index]
        for name, (score, id) in wanted.items():
            if there.get(name) != score:
                pairs += ["tasks", id.to_bytes(6, "big")]
        for name in there.keys() - wanted.keys():
            pairs += [index, name]
    for start in range(0, len(pairs), ADVANCE_STEP):
        runner.on_tube("repair_indexes", tube, *pairs[start : start + ADVANCE_STEP], now=now)
    for utube, lane in seen.lanes.items():
        if lane.said != lane.numbers or any(_misplaced(tube, lane)) or pairs:
            _mend_lane(runner, tube, utube, lane.taken - lane.said[0], now)
    wrong = {name: there - said for name, (said, there) in seen.counters().items() if name != "total"}
    total, counted = seen.counters()["total"]
    runner.on_tag("repair_counters", tube.no, *wrong.values(), total - counted, *seen.strays)


def _mend_lane(runner: Runner, tube: Tube, utube: str, wrong: int, now: int | None) -> None:
    more = True
    while more:
        reply = runner.on_tube("repair_micro_queue", tube, utube, wrong, ADVANCE_STEP, now=now)
        more, wrong = bool(reply[5]), 0
