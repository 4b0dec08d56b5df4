"""A take as one packet, for tubes of any kind, and what becomes of one whose answer was lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from penstock.core.handout import clock_wait
from penstock.core.kind import CLOCK
from penstock.core.lifecycle import came_back
from penstock.core.options import Tube
from penstock.core.results import Effects
from penstock.core.task import Record
from penstock.engine.port import Handed, Request
from penstock.engine.work import Work
from penstock.errors import OutcomeUnknown
from penstock.store.mysql.flush import new_call
from penstock.store.mysql.pool import Prepared, Statement
from penstock.store.mysql.queries import NEVER, Q
from penstock.store.mysql.wire import Rows, fill, literal
from penstock.store.sql.waiters import Waiter

if TYPE_CHECKING:
    from penstock.store.mysql.database import MysqlDatabase
    from penstock.store.mysql.step import MysqlStep

# Above every rank, for a take without max_pri.
_ANY_RANK = 1e300
# More than is wanted, for others may be at some.
_MORE = 100
# An element of a round tube that may be handed out now is in another's hands, who moves it in a moment without a word.
_SOON_MS = 20
# Hand-outs of a fair tube with several heads a micro-queue in one packet: each changes whose turn is next.
_TURNS = 20


# Give messages their serials, and deliver them.
DELIVER: list[Statement] = [Prepared(Q.serials), Q.last_serial, Prepared(Q.hand_out_delivered)]


class LostTake(msgspec.Struct, frozen=True):
    """A take without an answer: what it did in one tube is undone."""

    tube: Tube
    handle: str
    call: int
    waiter: Waiter
    number: int


class Taking:
    """One take."""

    def __init__(self, step: MysqlStep, database: MysqlDatabase, request: Request) -> None:
        self._step = step
        self._database = database
        self._request = request
        tubes, handle = request.tubes, request.handle
        self._place = (handle, [tube.no for tube in tubes])
        self._waiter = database.waiters.find(*self._place, request.blocked)

    def run(self) -> Handed:
        """Take. When the connection breaks, what was perhaps done is undone, and it begins anew."""
        request, handed = self._request, Handed()
        while not self._sent(handed):
            pass
        waits = handed.due is not None or not handed.records
        if request.blocked in ("enter", "stay") and waits and handed.alive:
            counted = self._waiter.counted or handed.due is None
            self._database.waiters.keep(*self._place, self._waiter, counted)
        if handed.records and handed.tube is not None:
            self._database.know(handed.tube, handed.records)
            self._step.counted()
        return handed

    def _sent(self, handed: Handed) -> bool:
        """Whether an answer came."""
        self._undo_lost(handed)
        call, number, request = new_call(), self._waiter.number, self._request
        try:
            results = self._step.send(*self._statements(call, number)).results
        except OutcomeUnknown:
            lost = [LostTake(tube, request.handle, call, self._waiter, number) for tube in request.tubes]
            self._database.lost += lost
            return False
        self._read(results, handed)
        return True

    # asking

    def _statements(self, call: int, number: int) -> list[Statement]:
        request = self._request
        (first, *others), blocked = request.tubes, self._waiter.word(request.blocked)
        plain = first.kind.leased and not first.kind.per_utube and request.max_pri is None and not request.forced
        single = request.count == 1 and plain and not others and blocked is None
        head = (
            f"SET @p_now={self._step.moment},@p_h={literal(request.handle)},@p_k={call},@p_stop=0,"
            f"@p_t={first.no},@p_forced={int(request.forced > 0)},"
        )
        if single:
            names = ("look", "find_one", "lease_one", "count_one", "show_one")
            return [f"{head}@p_id=NULL", *[Prepared(getattr(Q, name)) for name in names]]
        statements: list[Statement] = [f"{head}@p_n={request.count},@p_all=0,@p_due=0"]
        for place, tube in enumerate(request.tubes):
            if place:
                statements.append(f"SET @p_t={tube.no},@p_forced={int(place < request.forced)},@p_n={request.count}")
            statements += self._from(tube, request.wanted(place), forced=place < request.forced)
            statements.append(Prepared(Q.stop))
        values: dict[str, object] = {"handle": request.handle, "number": number}
        if blocked in ("enter", "stay"):
            statements.append(fill(Q.add_waiter, {**values, "ids": [tube.no for tube in request.tubes]}))
        if blocked in ("stay", "leave"):
            statements.append(fill(Q.remove_waiter, {**values, "anyway": int(blocked == "leave")}))
        return statements

    def _from(self, tube: Tube, count: int, *, forced: bool) -> list[Statement]:
        """Take from one tube; the rows of its one result begin with what `look` found."""
        kind = tube.kind
        rank = f"GREATEST(@p_now-{tube.period},0)" if kind.hand_out == CLOCK else "0"
        if kind.leased:
            rank = repr(_ANY_RANK) if self._request.max_pri is None else str(self._request.max_pri)
        held = int(kind.hand_out != CLOCK)
        statements: list[Statement] = [
            Prepared(Q.look),
            f"SET @p_ids=NULL,@p_got=0,@p_m={rank},@p_held={held},@p_fair={int(tube.fair)},@p_gone=0,@p_some=NULL",
        ]
        if tube.fair and tube.utube_limit > 1:
            return statements + self._by_turns(tube, min(count, _TURNS), forced=forced)
        statements += self._find(tube, count, forced=forced) if count else []
        if not count:
            pass  # it is looked at, and nothing is taken
        elif not kind.leased:
            statements += [Prepared(Q.hand_out_clocked)] if kind.hand_out == CLOCK else DELIVER
        elif not kind.per_utube:
            statements.append(Prepared(Q.lease_many))
        elif tube.utube_limit == 1:
            statements.append(Prepared(Q.lease_heads))
        else:
            statements += [Prepared(Q.lease_many), Prepared(Q.serve_queues)]
        statements += [Prepared(Q.count_many), Prepared(Q.show_many)]
        if kind.hand_out == CLOCK:
            statements.append(fill(Q.first_rank, {"tube": tube.no}))
        return statements

    def _find(self, tube: Tube, count: int, *, forced: bool) -> list[Statement]:
        laned = tube.kind.per_utube
        if not forced and self._request.max_pri is None and tube.kind.leased:
            return [Prepared(Q.find_heads if laned else Q.find_many, count)]
        return [
            Prepared(Q.find_gone),
            f"SET @p_n={count + _MORE}",
            Prepared(Q.find_some, count + _MORE),
            f"SET @p_n={count}",
            Prepared(Q.lock_some_heads if laned else Q.lock_some, count),
        ]

    def _by_turns(self, tube: Tube, count: int, *, forced: bool) -> list[Statement]:
        """One after the other: each micro-queue that is served goes behind the others."""
        statements: list[Statement] = ["SET @p_n=1,@p_every='',@p_sum=0"]
        names = ("lease_many", "serve_queues", "turn_taken", "turn_heads")
        for _ in range(count):
            statements += self._find(tube, 1, forced=forced)
            statements += [Prepared(getattr(Q, name)) for name in names]
            statements.append(
                "SET @p_every=CONCAT(@p_every,IF(@p_got>0,CONCAT(IF(@p_every='','',','),"
                "SUBSTRING(@p_ids,2,CHAR_LENGTH(@p_ids)-2)),'')),@p_sum=@p_sum+@p_got"
            )
        statements.append("SET @p_ids=CONCAT('[',@p_every,']'),@p_got=@p_sum")
        return [*statements, Prepared(Q.count_many), Prepared(Q.show_many)]

    # answers

    def _read(self, results: list[Rows], handed: Handed) -> None:
        moments: list[int] = []
        for place, tube in enumerate(self._request.tubes):
            rows = results.pop(0)
            ranks = results.pop(0) if tube.kind.hand_out == CLOCK else []
            no, session, now, next_at = rows[0][:4]
            if no is None:
                raise self._step.no_such_tube(tube)
            moment, next_at = self._step.saw(int(now)), int(next_at)
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
                wait = clock_wait(tube, rank, moment)
                moments.append(moment + (_SOON_MS if wait is None else wait))
            handed.next_at = min(moments, default=None)

    # lost answers

    def _undo_lost(self, handed: Handed) -> None:
        """Undo takes whose answers were lost, so that no task is held by nobody, and nobody waits who does not."""
        database, step = self._database, self._step
        while database.lost:
            lost = database.lost.pop()
            try:
                values: dict[str, object] = {"handle": lost.handle, "number": lost.number}
                found = step.send(
                    fill(Q.lock_handle, values),
                    fill(Q.forget_waiter, values),
                    fill(Q.leased_by, {"tube": lost.tube.no, "call": lost.call}),
                    safe=True,
                ).results[1]
                lost.waiter.undo(lost.number)
                handed.before = handed.before or Effects()
                work = Work(step, lost.tube, handed.before)
                for record in (Record(*row) for row in found):
                    work.change(record, came_back(record, step.now, "release", unstarted=True))
                work.flush()
            except BaseException:
                database.lost.append(lost)
                raise
