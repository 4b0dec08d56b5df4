"""Cross-checks of everything stored in Redis: the records against indexes, counters and relations; and repair.

A tube is read in pages, so others may change it meanwhile. Every change of a task changes a counter: findings of a look
during which no counter changed are final, otherwise only those that several looks agree on.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from penstock.core.ids import Mark, shown_mark
from penstock.core.kind import DELIVER
from penstock.core.options import Tube
from penstock.core.soundness import mended, needed_mark
from penstock.core.task import Record
from penstock.errors import StoreCorrupt
from penstock.store.base import ADVANCE_STEP, Finding
from penstock.store.redis.connection import Argument
from penstock.store.redis.encoding import decode, task_id, task_key
from penstock.store.redis.queries import scan
from penstock.store.redis.registry import Registry
from penstock.store.redis.runner import Runner
from penstock.store.redis.snapshot import LaneSnapshot, Snapshot, read_snapshot
from penstock.store.redis.steps import Steps

_LOOKS = 5
_REINDEX = "repair indexes it anew"
_RECOUNT = "repair counts anew"


def check(
    runner: Runner, steps: Steps, tubes: list[Tube], registry: Registry, repair: bool, now: int | None
) -> list[Finding]:
    """All findings; with `repair`, each is repaired."""
    findings: list[Finding] = []
    for tube in tubes:
        if not tube.kind.leased:
            findings += check_unleased(runner, tube, repair, now)
        found, seen = _look(runner, tube)
        if repair and (seen.unreadable or seen.incomplete):
            findings += _unreadable(seen)
            _repair_unreadable(runner, seen, now)
            found, seen = _look(runner, tube)  # now everything that depended on them can be judged
        findings += found
        if repair and found:
            _repair(runner, registry, seen, now)
            seen.relations.repair(steps, now)
    return findings


def _look(runner: Runner, tube: Tube) -> tuple[list[Finding], Snapshot]:
    agreed: list[Finding] | None = None
    looks = _LOOKS
    while True:
        looks -= 1
        before = _meta(runner, tube)
        seen = read_snapshot(runner, tube)
        found = [*_unreadable(seen), *_counters(seen), *_indexes(seen), *_lanes(seen), *_orphans(seen), *_waits(seen)]
        found += seen.relations.findings()
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
    for index, member, missing in seen.index_errors():
        what = (
            f"is not where it must be in the {index} index" if missing else f"stands in the {index} index and must not"
        )
        yield Finding(seen.tube.name, task_id(member), what, _REINDEX)


def _lanes(seen: Snapshot) -> Iterator[Finding]:
    for utube, lane in seen.lanes.items():
        label = f"micro-queue {utube!r}"
        if lane.stored != lane.numbers:
            yield Finding(seen.tube.name, None, f"{label} counts {lane.stored}, there are {lane.numbers}", _RECOUNT)
        for what in _misplaced(seen.tube, lane):
            yield Finding(seen.tube.name, None, f"{label}: {what}", "repair sets its heads anew")


def _misplaced(tube: Tube, lane: LaneSnapshot) -> Iterator[str]:
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
    for handle in seen.stale_waits:
        what = f"handle {handle.decode()} is registered as waiting, but is not there"
        yield Finding(seen.tube.name, None, what, "repair takes the registration back")


def _repair_unreadable(runner: Runner, seen: Snapshot, now: int | None) -> None:
    words: list[Argument] = []
    for key in (*seen.unreadable, *seen.incomplete):
        address, group, name = seen.known_relations.get(key, ("", None, ""))
        words += [key, address, "" if group is None else group, name]
    for start in range(0, len(words), ADVANCE_STEP):  # a multiple of four
        runner.on_tube("repair_unreadable", seen.tube, *words[start : start + ADVANCE_STEP], now=now)


def _repair(runner: Runner, registry: Registry, seen: Snapshot, now: int | None) -> None:
    """Repair in bounded steps that never make it worse: leases, indexes, micro-queues, counters, waits."""
    tube = seen.tube
    for owner in {owner for _, owner in seen.orphans}:
        registry.end_session(tube, owner, now)
    pairs: list[bytes | str] = []
    for index, member, missing in seen.index_errors():
        pairs += ["tasks", member[-6:]] if missing else [index, member]
    for start in range(0, len(pairs), ADVANCE_STEP):
        runner.on_tube("repair_indexes", tube, *pairs[start : start + ADVANCE_STEP], now=now)
    for utube, lane in seen.lanes.items():
        if lane.stored != lane.numbers or any(_misplaced(tube, lane)) or pairs:
            _repair_micro_queue(runner, tube, utube, lane.taken - lane.stored[0], now)
    wrong = {name: there - said for name, (said, there) in seen.counters().items() if name != "total"}
    total, counted = seen.counters()["total"]
    runner.on_tag("repair_counters", tube.no, *wrong.values(), total - counted, *seen.stale_waits)


def _repair_micro_queue(runner: Runner, tube: Tube, utube: str, wrong: int, now: int | None) -> None:
    more = True
    while more:
        reply = runner.on_tube("repair_micro_queue", tube, utube, wrong, ADVANCE_STEP, now=now)
        more, wrong = bool(reply[5]), 0


def check_unleased(runner: Runner, tube: Tube, repair: bool, now: int | None) -> Iterator[Finding]:
    """Tasks that their kind cannot have, and a last message id that would be given again.

    This comes before the checks of counters and indexes, which rely on the records.
    """
    newest: Record | None = None
    for key, value in scan(runner, tube, "tasks"):
        try:
            record = decode(task_id(key), value)
        except StoreCorrupt:
            continue  # the look that follows finds it
        newest = record if newest is None or record.id > newest.id else newest
        wrong = mended(tube, record)
        if wrong is not None:
            yield Finding(tube.name, record.address, wrong[0], "repair puts it right")
            if repair:
                runner.on_tube("repair_unleased", tube, task_key(record.id), now=now)
    if tube.kind.hand_out == DELIVER:
        yield from _last_mark(runner, tube, newest, repair)


def _last_mark(runner: Runner, tube: Tube, newest: Record | None, repair: bool) -> Iterator[Finding]:
    # Read after the messages: puts meanwhile only raise it.
    meta = runner.keys.name(tube.no, "meta")
    stored = cast("list[bytes | None]", runner.servers.command(meta, b"HMGET", meta, b"ms", b"seq"))
    last: Mark = (int(stored[0] or 0), int(stored[1] or 0))
    mark = needed_mark(last, newest)
    if mark is not None:
        what = f"the last id is kept as {shown_mark(last)}, there is {shown_mark(mark)}"
        yield Finding(tube.name, None, what, "repair keeps the newest")
        if repair:
            runner.on_tag("repair_last_message_id", tube.no, *mark, idempotent=True)
