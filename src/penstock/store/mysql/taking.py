"""A take as one packet, for tubes of any kind, and what becomes of one whose answer was lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.core.kind import CLOCK
from penstock.core.lifecycle import round_wait_ms
from penstock.core.options import Tube
from penstock.core.results import Effects
from penstock.core.task import Record
from penstock.engine.lost_takes import LostTake, LostTakes, give_back
from penstock.engine.port import Handed, Request, new_call
from penstock.errors import OutcomeUnknown
from penstock.store.mysql.queries import NEVER, Q
from penstock.store.mysql.wire import Raw, Rows, fill, literal
from penstock.store.sql.waiters import Waiter

if TYPE_CHECKING:
    from penstock.store.mysql.database import MysqlStore
    from penstock.store.mysql.step import MysqlStep

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


class Taking:
    """One take."""

    def __init__(self, step: MysqlStep, database: MysqlStore, request: Request) -> None:
        self._step = step
        self._database = database
        self._request = request
        self._place = (request.handle, [tube.no for tube in request.tubes])
        self._waiter = database.waiters.find(*self._place, request.blocked)

    def run(self) -> Handed:
        """Take. If the connection breaks, what may have been done is undone, and the take starts again."""
        request, handed = self._request, Handed()
        while not self._sent(handed):
            pass
        waits = handed.due is not None or not handed.records
        if request.blocked in ("register", "unregister_if_found") and waits and handed.alive:
            counted = self._waiter.counted or handed.due is None
            self._database.waiters.keep(*self._place, self._waiter, counted)
        if handed.records:
            self._step.counted()
        return handed

    def _sent(self, handed: Handed) -> bool:
        """Send the take. Returns whether an answer came."""
        handed.before = handed.before or Effects()
        undo_lost(self._step, self._database.lost, handed.before)
        call, number, request = new_call(), self._waiter.number, self._request
        try:
            results = self._step.send(*self._statements(call, number)).results
        except OutcomeUnknown:
            lost = _LostTake(request.tubes, request.handle, call, waiter=self._waiter, number=number)
            self._database.lost.add(lost)
            return False
        self._read(results, handed)
        return True

    # asking

    def _statements(self, call: int, number: int) -> list[str]:
        request, now = self._request, self._step.moment
        (first, *others), blocked = request.tubes, self._waiter.word(request.blocked)
        plain = first.kind.leased and not first.kind.per_utube and request.max_pri is None and not request.forced
        head = f"SET @p_h={literal(request.handle)},@p_k={call},@p_stop=0,@p_all=0,@p_due=0"
        if request.count == 1 and plain and not others and blocked is None:
            # The clock is read after `look` has its locks: a lease starts when nothing is left to wait for.
            clock = f"SET @p_now={now},@p_id=NULL,@p_got=0,@p_held=1,@p_fair=0"
            single = [Q.look, clock, Q.find_one, Q.lease_one, Q.count_takes, Q.show_one]
            return [f"{head},@p_t={first.no},@p_forced=0", *single]
        statements = [head]
        for place, tube in enumerate(request.tubes):
            statements.append(f"SET @p_t={tube.no},@p_forced={int(place < request.forced)}")
            statements += self._from(tube, request.wanted(place), forced=place < request.forced)
            statements.append(Q.stop)
        values = {"handle": request.handle, "number": number}
        if blocked in ("register", "unregister_if_found"):
            statements.append(fill(Q.add_waiter, ids=[tube.no for tube in request.tubes], **values))
        if blocked in ("unregister_if_found", "unregister"):
            condition = f"(@p_all > 0 OR {int(blocked == 'unregister')}) AND NOT @p_due"
            statements.append(fill(Q.remove_waiter, condition=Raw(condition), **values))
        return statements

    def _from(self, tube: Tube, count: int, *, forced: bool) -> list[str]:
        """Take from one tube; the rows of its one result begin with what `look` found."""
        kind, now = tube.kind, self._step.moment
        rank = f"GREATEST({now}-{tube.period},0)" if kind.hand_out == CLOCK else "0"
        if kind.leased:
            rank = repr(_ANY_RANK) if self._request.max_pri is None else str(self._request.max_pri)
        variables = f"@p_m={rank},@p_held={int(kind.hand_out != CLOCK)},@p_fair={int(tube.fair)}"
        statements = [Q.look, f"SET @p_now={now},@p_ids=NULL,@p_some=NULL,@p_got=0,@p_gone=0,{variables}"]
        if tube.fair and tube.utube_limit > 1:
            return statements + self._by_turns(tube, min(count, _TURNS), forced=forced)
        if count:
            statements += self._find(tube, count, forced=forced)
            if kind.leased:
                statements += [Q.lease_many, *([Q.serve_queues] if kind.per_utube else [])]
            else:
                statements += [Q.hand_out_clocked] if kind.hand_out == CLOCK else DELIVER
        statements += [Q.count_takes, Q.show_many]
        if kind.hand_out == CLOCK:
            statements.append(fill(Q.first_rank, tube=tube.no))
        return statements

    def _find(self, tube: Tube, count: int, *, forced: bool) -> list[str]:
        laned = tube.kind.per_utube
        queue = Raw(Q.queue_of_task if laned else "")
        if not forced and self._request.max_pri is None and tube.kind.leased:
            return [fill(Q.find_many, queues=queue, limit=count)]
        lock = fill(Q.lock_some, queues=queue, limit=count, tables=Raw("k, l" if laned else "k"))
        return [Q.find_cancelled, fill(Q.find_some, limit=count + _MORE), lock]

    def _by_turns(self, tube: Tube, count: int, *, forced: bool) -> list[str]:
        """Take one after the other: each micro-queue that is served goes behind the others."""
        turn = [
            *self._find(tube, 1, forced=forced), Q.lease_many, Q.serve_queues, Q.turn_heads,
            "SET @p_every=JSON_MERGE_PRESERVE(@p_every,IFNULL(@p_ids,'[]')),@p_sum=@p_sum+@p_got",
        ]  # fmt: skip
        end = ["SET @p_ids=@p_every,@p_got=@p_sum", Q.count_takes, Q.show_many]
        return ["SET @p_every='[]',@p_sum=0", *turn * count, *end]

    # answers

    def _read(self, results: list[Rows], handed: Handed) -> None:
        moments: list[int] = []
        for place, tube in enumerate(self._request.tubes):
            rows = results.pop(0)
            ranks = results.pop(0) if tube.kind.hand_out == CLOCK else []
            no, session, now, next_at = rows[0][:4]
            if no is None:
                raise self._step.no_such_tube(tube)
            moment, next_at = self._step.set_clock(int(now)), int(next_at)
            if next_at <= moment and place >= self._request.forced:
                handed.due = tube
                return
            if next_at != NEVER:
                moments.append(next_at)
            handed.next_at = min(moments, default=None)
            if session is None:
                handed.alive = False
                return
            handed.records = [Record(*row[4:]) for row in rows if row[4] is not None]
            if handed.records:
                handed.tube = tube
                return
            for (rank,) in ranks:
                wait = round_wait_ms(tube, rank, moment)
                moments.append(moment + (_SOON_MS if wait is None else wait))
            handed.next_at = min(moments, default=None)


def undo_lost(step: MysqlStep, known: LostTakes, effects: Effects, *, again: bool = False) -> None:
    """Undo takes whose answers were lost: give back what they leased, and remove their waiters."""
    for lost in known.left(again=again):
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
        known.looked(lost)
