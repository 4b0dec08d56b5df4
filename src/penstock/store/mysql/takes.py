"""Takes as packets, for tubes of any kind, and what becomes of one whose answer was lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core.kind import CLOCK
from penstock.core.lifecycle import round_wait_ms
from penstock.core.options import Tube
from penstock.core.results import Effects
from penstock.core.task import Record
from penstock.engine import port
from penstock.engine.lost_takes import LostTake, give_back
from penstock.engine.port import Handed, Request
from penstock.errors import OutcomeUnknown
from penstock.store.mysql.mysql_queries import NEVER, Q
from penstock.store.mysql.wire import Raw, Rows, fill, literal
from penstock.store.sql.waiters import Waiter

if TYPE_CHECKING:
    from penstock.store.mysql.mysql_step import MysqlStep

# Above every rank, for a take without max_pri.
_ANY_RANK = 1e300
# How many more tasks are looked at than are wanted: others may take some of them.
_MORE = 100
# An element of a round tube that may be handed out now is locked by another taker, who will move it silently.
_SOON_MS = 20
# Hand-outs in one packet from a fair tube with several heads per micro-queue: each changes whose turn is next.
_TURNS = 20

# Give messages their serials, and deliver them.
DELIVER: list[str] = [Q.serials, Q.last_serial, Q.hand_out_delivered]


class _LostTake(LostTake, kw_only=True):
    waiter: Waiter
    number: int


def take(step: MysqlStep, request: Request) -> Handed:
    """Lease or hand out tasks of the first tube that has any.

    If the connection breaks, what may have been done is undone, and the take starts again.
    """
    waiters, place = step.database.waiters, (request.handle, [tube.no for tube in request.tubes])
    waiter, before = waiters.find(*place, request.blocked), Effects()
    handed: Handed | None = None
    while handed is None:
        undo_lost(step, before)
        call, number = port.new_call(), waiter.number
        try:
            handed = _handed(step, request, step.send(*_packet(step, request, waiter, call)).results)
        except OutcomeUnknown:
            step.database.lost.add(_LostTake(request.tubes, request.handle, call, waiter=waiter, number=number))
    handed.before = before
    if handed.records:
        step.counted(request.tubes[0])
    elif request.blocked in ("register", "unregister_if_found") and handed.alive:
        waiters.keep(*place, waiter, waiter.counted or handed.due is None)
    return handed


def _packet(step: MysqlStep, request: Request, waiter: Waiter, call: int) -> list[str]:
    (first, *others), blocked, now = request.tubes, waiter.word(request.blocked), step.moment
    plain = first.kind.leased and not first.kind.per_utube and request.max_pri is None and not request.forced
    head = f"SET @p_h={literal(request.handle)},@p_k={call},@p_stop=0,@p_all=0,@p_due=0"
    if request.count == 1 and plain and not others and blocked is None:
        # The clock is read after `look` has its locks: a lease starts when nothing is left to wait for.
        clock = f"SET @p_now={now},@p_id=NULL,@p_got=0,@p_held=1,@p_fair=0"
        single = [Q.look, clock, Q.find_one, Q.lease_one, Q.count_takes, Q.show_one]
        return [f"{head},@p_t={first.no},@p_forced=0", *single]
    packet = [head]
    for place, tube in enumerate(request.tubes):
        forced = place < request.forced
        packet.append(f"SET @p_t={tube.no},@p_forced={int(forced)}")
        packet += [*_from(tube, request, request.wanted(place), now, forced=forced), Q.stop]
    values = {"handle": request.handle, "number": waiter.number}
    if blocked in ("register", "unregister_if_found"):
        packet.append(fill(Q.add_waiter, ids=[tube.no for tube in request.tubes], **values))
    if blocked in ("unregister_if_found", "unregister"):
        condition = f"(@p_all > 0 OR {int(blocked == 'unregister')}) AND NOT @p_due"
        packet.append(fill(Q.remove_waiter, condition=Raw(condition), **values))
    return packet


def _from(tube: Tube, request: Request, count: int, now: str, *, forced: bool) -> list[str]:
    """Take from one tube; the rows of its one result begin with what `look` found."""
    kind = tube.kind
    rank = f"GREATEST({now}-{tube.period},0)" if kind.hand_out == CLOCK else "0"
    if kind.leased:
        rank = repr(_ANY_RANK) if request.max_pri is None else str(request.max_pri)
    variables = f"@p_m={rank},@p_held={int(kind.hand_out != CLOCK)},@p_fair={int(tube.fair)}"
    packet = [Q.look, f"SET @p_now={now},@p_ids=NULL,@p_some=NULL,@p_got=0,@p_gone=0,{variables}"]
    if tube.fair and tube.utube_limit > 1:
        # One after the other: each micro-queue that is served goes behind the others.
        turn = [
            *_find(tube, request, 1, forced=forced), Q.lease_many, Q.serve_queues, Q.turn_heads,
            "SET @p_every=JSON_MERGE_PRESERVE(@p_every,IFNULL(@p_ids,'[]')),@p_sum=@p_sum+@p_got",
        ]  # fmt: skip
        packet += ["SET @p_every='[]',@p_sum=0", *turn * min(count, _TURNS), "SET @p_ids=@p_every,@p_got=@p_sum"]
    elif count:
        packet += _find(tube, request, count, forced=forced)
        if kind.leased:
            packet += [Q.lease_many, *([Q.serve_queues] if kind.per_utube else [])]
        else:
            packet += [Q.hand_out_clocked] if kind.hand_out == CLOCK else DELIVER
    packet += [Q.count_takes, Q.show_many]
    return [*packet, fill(Q.first_rank, tube=tube.no)] if kind.hand_out == CLOCK else packet


def _find(tube: Tube, request: Request, count: int, *, forced: bool) -> list[str]:
    laned = tube.kind.per_utube
    queue = Raw(Q.queue_of_task if laned else "")
    if not forced and request.max_pri is None and tube.kind.leased:
        return [fill(Q.find_many, queues=queue, limit=count)]
    lock = fill(Q.lock_some, queues=queue, limit=count, tables=Raw("k, l" if laned else "k"))
    return [Q.find_cancelled, fill(Q.find_some, limit=count + _MORE), lock]


def _handed(step: MysqlStep, request: Request, results: list[Rows]) -> Handed:
    moments, handed = list[int](), Handed()
    for place, tube in enumerate(request.tubes):
        rows = results.pop(0)
        ranks = results.pop(0) if tube.kind.hand_out == CLOCK else []
        no, session, now, next_at = rows[0][:4]
        if no is None:
            raise step.no_such_tube(tube)
        moment, next_at = step.set_clock(int(now)), int(next_at)
        if next_at <= moment and place >= request.forced:
            handed.due = tube
            break
        if next_at != NEVER:
            moments.append(next_at)
        handed.next_at = min(moments, default=None)
        if session is None:
            handed.alive = False
            break
        handed.records = [Record(*row[4:]) for row in rows if row[4] is not None]
        if handed.records:
            handed.tube = tube
            break
        for (rank,) in ranks:
            wait = round_wait_ms(tube, rank, moment)
            moments.append(moment + (_SOON_MS if wait is None else wait))
        handed.next_at = min(moments, default=None)
    return handed


def undo_lost(step: MysqlStep, effects: Effects, *, again: bool = False) -> None:
    """Undo takes whose answers were lost: give back what they leased, and remove their waiters."""
    for lost in step.database.lost.left(again=again):
        assert isinstance(lost, _LostTake)
        for tube in lost.tubes:
            found = step.send(
                fill(Q.lock_handle, handle=lost.handle),
                fill(Q.remove_waiter, handle=lost.handle, number=lost.number, condition=1),
                fill(Q.leased_by, tube=tube.no, handle=lost.handle, call=lost.call),
                safe=True,
            ).results[1]
            give_back(step, tube, [Record(*row) for row in found], effects)
        lost.waiter.undo(lost.number)
        step.database.lost.looked(lost)


def recover(step: MysqlStep, tube: Tube, count: int, elapsed: int) -> list[Record]:
    """Deliver the first delivered messages again, up to one that is younger."""
    found = step.send(
        f"SET @p_t={tube.no},@p_now={step.moment},@p_k=0,@p_h='',@p_ids=NULL,@p_got=0,@p_held=0",
        Q.look,
        fill(Q.find_to_recover, elapsed=elapsed, count=count),
        *DELIVER,
        Q.count_takes,
        Q.show_many,
    ).results[0]
    if found[0][0] is None:
        raise step.no_such_tube(tube)
    return [Record(*row[4:]) for row in found if row[4] is not None]
