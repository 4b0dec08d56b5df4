"""Hand-outs: one round trip for all tubes of a call; and the undoing of those whose answers were lost."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from penstock.core.kind import CLOCK
from penstock.core.lifecycle import round_wait_ms
from penstock.core.options import Tube
from penstock.core.results import Blocked, Effects
from penstock.core.task import Record
from penstock.engine import port
from penstock.engine.lost_takes import LostTake, give_back
from penstock.engine.port import Conflict, Handed, Request
from penstock.errors import OutcomeUnknown, PenstockError, StoreUnavailable
from penstock.store.postgres.changes import bounded
from penstock.store.postgres.listener import PROCESS
from penstock.store.postgres.wire import Call, Row
from penstock.store.sql.waiters import Waiter

if TYPE_CHECKING:
    from penstock.store.postgres.postgres_step import PostgresStep

log = logging.getLogger("penstock")

# How long a waiting take tries to reach a server that is away, and how much later it tries again.
AWAY_SECONDS = 1.0
# Above every rank, for a take without max_pri; and above every clock: what is delivered has no period.
_HIGHEST = 2**62
# A put that was under way when a taker registered saw no one to notify: the taker looks again after this time.
_SETTLING_MS = 25
# When others work on what is due, the next look is this much later.
BUSY_MS = 20
# Takes of one task that are sent at once, where each decides who is next.
_SINGLY = 100
# The columns before those of a task.
_LOOKED = 9


class _LostTake(LostTake, kw_only=True):
    waiter: Waiter
    number: int


def take(step: PostgresStep, request: Request) -> Handed:
    """Lease or hand out tasks of the first tube that has any.

    When the connection breaks, what the take may have done is undone, and it is made again.
    """
    numbers, blocked = [tube.no for tube in request.tubes], request.blocked
    waiters, before = step.db.waiters, Effects()
    waiter = waiters.find(request.handle, numbers, blocked)
    try:
        handed = _take_surely(step, request, waiter, before)
    except StoreUnavailable as error:
        if blocked != "unregister_if_found":
            raise
        waiters.keep(request.handle, numbers, waiter, waiter.counted)
        # The call keeps waiting: the server may be restarting. The next look finds out whether its session lives.
        log.warning("a waiting take cannot look now (%s); retrying", error)
        step.now = time.time_ns() // 1_000_000
        return Handed(next_at=step.now + int(AWAY_SECONDS * 1000), before=before)
    handed.before = before
    if handed.due is not None:
        if blocked in ("unregister_if_found", "unregister"):
            waiters.keep(request.handle, numbers, waiter, waiter.counted)
    elif handed.records:
        step.count_changes()
    elif handed.alive and blocked in ("register", "unregister_if_found"):
        waiters.keep(request.handle, numbers, waiter)
    if blocked == "register" and handed.due is None and not handed.records:
        handed.next_at = min(step.now + _SETTLING_MS, handed.next_at or _HIGHEST)
    return handed


def _take_surely(step: PostgresStep, request: Request, waiter: Waiter, before: Effects) -> Handed:
    patience = AWAY_SECONDS if request.blocked == "unregister_if_found" else None
    while True:
        undo_lost(step, before, patience=patience)
        call, number = port.new_call(), waiter.number
        try:
            return _take(step, request, waiter.word(request.blocked), number, call, patience)
        except OutcomeUnknown:
            step.db.lost.add(_LostTake(request.tubes, request.handle, call, waiter=waiter, number=number))


def _take(
    step: PostgresStep, request: Request, word: Blocked, number: int, call: int, patience: float | None
) -> Handed:
    tubes, handle = request.tubes, request.handle
    mark = str(call) if word is not None or len(tubes) > 1 else None
    calls = step.opened(*tubes, handle=handle)
    first = len(calls)
    calls += [_take_call(step, request, place, tube, mark, call) for place, tube in enumerate(tubes)]
    waits = {"tubes": [tube.no for tube in tubes], "handle": handle, "number": number, "mark": mark}
    if word == "register":
        calls.append(step.call(step.Q.enter, process=PROCESS.name, **waits))
    elif word is not None:
        calls.append(step.call(step.Q.leave, always=word == "unregister", **waits))
    handed = _handed(step, request, step.run(calls, patience=patience)[first : first + len(tubes)])
    if handed.tube is not None and _singly(handed.tube):
        _take_more(step, request, handed, handed.tube, call, patience)
    return handed


def _take_call(step: PostgresStep, request: Request, place: int, tube: Tube, mark: str | None, call: int) -> Call:
    on, kind, count = step.on(tube), tube.kind, request.wanted(place)
    query = on.take if not kind.per_utube else on.take_turns if _singly(tube) else on.take_heads
    return step.call(
        query if kind.leased else on.hand_out, tube=tube.no, handle=request.handle, forced=place < request.forced,
        mark=mark, call=call, top=float(_HIGHEST if request.max_pri is None else request.max_pri), fair=tube.fair,
        count=min(count, 1) if _singly(tube) else count, period=tube.period if kind.hand_out == CLOCK else _HIGHEST,
    )  # fmt: skip


def _singly(tube: Tube) -> bool:
    """Whether each hand-out moves its micro-queue behind the others, so that the next one is known only after it."""
    return tube.kind.per_utube and tube.fair and tube.utube_limit > 1


def _take_more(
    step: PostgresStep, request: Request, handed: Handed, tube: Tube, call: int, patience: float | None
) -> None:
    alone = msgspec.structs.replace(request, blocked=None, forced=1)
    opening = step.opened(tube, handle=request.handle)
    while (left := request.count - len(handed.records)) > 0:
        size = min(left, _SINGLY)
        calls = [*opening, *[_take_call(step, alone, 0, tube, None, call)] * size]
        answers = step.run(calls, patience=patience)[len(opening) :]
        found = [Record(*row[_LOOKED:]) for rows in answers for row in rows if row[_LOOKED] is not None]
        handed.records += found
        if len(found) < size:
            return


def _handed(step: PostgresStep, request: Request, answers: Sequence[list[Row]]) -> Handed:
    nexts: list[int] = []
    handed = Handed()
    for place, (tube, rows) in enumerate(zip(request.tubes, answers, strict=True)):
        no, clock, next_at, moving, due, session, low, _, first_rank, *_ = rows[0]
        step.heard(clock)
        if no is None:
            raise step.no_such_tube(tube)
        if due:
            return Handed(due=tube)
        if place < request.forced and (moving or (next_at is not None and next_at <= step.now)):
            nexts.append(step.soon)
        elif next_at is not None:
            nexts.append(next_at)
        if session is None:
            handed.alive = False
            break
        handed.records = _records(tube, rows)
        if handed.records:
            handed.tube = tube
            _raise_bounds(step, tube, handed.records, low)
            break
        if tube.kind.hand_out == CLOCK and first_rank is not None:
            wait = round_wait_ms(tube, first_rank, step.now)
            nexts.append(step.now + (BUSY_MS if wait is None else wait))
    handed.next_at = min(nexts, default=None)
    return handed


def _records(tube: Tube, rows: list[Row]) -> list[Record]:
    found = [row[_LOOKED:] for row in rows if row[_LOOKED] is not None]
    if not tube.kind.leased:
        return [Record(*row[1:]) for row in sorted(found, key=lambda row: int(row[0]))]
    records = [Record(*row) for row in found]
    if len(records) > 1:
        records.sort(key=lambda record: (record.rank1, record.rank2, record.id))
    return records


def raise_chance(passed: int) -> float:
    """How likely a take lets the next ones begin behind what it passed by."""
    return min(passed / 10_000, 0.2)


def _raise_bounds(step: PostgresStep, tube: Tube, records: Sequence[Record], low: int) -> None:
    """Now and then, the more likely the more was passed by, let takes begin to look where something is.

    Not always, because something old may be ready behind the others.
    """
    distance = min(record.id for record in records) - low
    if bounded(tube) and step.db.connections.relaxes and random.random() < raise_chance(distance):
        due = step.now + min((record.ttr for record in records if record.ttr is not None), default=0)
        raising = step.call(step.on(tube).raise_bounds, tube=tube.no, due=due)
        try:
            step.run([step.call(step.Q.open_alone_at_once, tube=tube.no), raising])
        except (PenstockError, Conflict):  # somebody is in the tube: another take does it
            pass


def undo_lost(step: PostgresStep, effects: Effects, *, again: bool = False, patience: float | None = None) -> None:
    """Undo takes whose answers were lost, so that no task is held by nobody, and nobody waits who does not.

    The lock of the handle is held alone, so that the take is not under way any more.
    """
    for lost in step.db.lost.left(again=again):
        assert isinstance(lost, _LostTake)
        leave = {"tubes": [tube.no for tube in lost.tubes], "number": lost.number, "always": True, "mark": ""}
        calls = [step.call(step.Q.lock_handle, handle=lost.handle)]
        calls.append(step.call(step.Q.leave, handle=lost.handle, **leave))
        mine = {"handle": lost.handle, "call": lost.call}
        calls += [step.call(step.on(tube).by_call, tube=tube.no, **mine) for tube in lost.tubes]
        for tube, rows in zip(lost.tubes, step.run(calls, twice=True, patience=patience)[2:], strict=True):
            for *_, clock in rows:
                step.heard(clock)
            give_back(step, tube, [Record(*fields) for *fields, _ in rows], effects)
        lost.waiter.undo(lost.number)
        step.db.lost.looked(lost)


def recover(step: PostgresStep, tube: Tube, count: int, elapsed: int) -> list[Record]:
    """Hand out again the first delivered messages, up to one that is younger."""
    calls = [*step.opened(tube), step.call(step.Q.lock_recovering, tube=tube.no)]
    calls.append(step.call(step.on(tube).recover, tube=tube.no, count=count, elapsed=elapsed))
    rows = step.run(calls)[-1]
    if not rows:
        raise step.no_such_tube(tube)
    step.heard(rows[0][1])
    return [Record(*row[3:]) for row in rows if row[2] is not None]
