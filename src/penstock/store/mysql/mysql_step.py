"""One call on a MySQL or MariaDB server. A hot call is one packet: one transaction and one round trip. Other calls use
the shared step in a longer transaction (`transaction`). All decisions are the engine's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from penstock.core.audit import Audit
from penstock.core.group import Group
from penstock.core.kind import CLOCK
from penstock.core.lifecycle import Move
from penstock.core.options import Tube
from penstock.core.task import Record
from penstock.engine.port import Acked, Conflict, Delta, Flushed, Found, LostTake, TakeAnswer, TakeRequest
from penstock.engine.store import first_found
from penstock.store.mysql.mysql_connection import REPEATABLE
from penstock.store.mysql.mysql_queries import COUNTED, NEVER, TIME, Q
from penstock.store.mysql.mysql_wire import Answer, Prepared, Raw, Statement, fill, literal
from penstock.store.mysql.mysql_writes import Flush, ack_packet, add_counts
from penstock.store.sql.server_step import ServerStep
from penstock.store.sql.sql_queries import ID_MASK
from penstock.store.sql.sql_step import Row, first_pk

if TYPE_CHECKING:
    from penstock.store.mysql.mysql_store import MysqlStore

# Above every rank, for a take without max_pri.
_ANY_RANK = 1e300
# How many more tasks are read than are wanted, because other takers may take some of them.
_MORE = 100
# Hand-outs per packet from a fair tube with several heads per micro-queue, where each one changes whose turn is next.
_TURNS = 20
# The statements that give messages their serials and deliver them.
_DELIVER: list[str] = [Q.serials, Q.hand_out_delivered]


class MysqlStep(ServerStep):
    """A step on MySQL or MariaDB: sends packets. With `held`, the whole step is one transaction."""

    db: MysqlStore

    @property
    def moment(self) -> str:
        """The clock as SQL: the given time, or the server's clock."""
        return TIME if self.given is None else str(self.given)

    def send(self, *statements: Statement, safe: bool = False) -> Answer:
        """Send one packet, as one transaction or as part of the open one."""
        if self.link is None:
            return self.db.server.send(statements, safe=safe)
        answer: Answer = self.link.send(statements, commit=False)
        return answer

    def sql(self, query: str, **values: object) -> str:
        """Return a query with its values and the clock filled in."""
        return fill(query, now=Raw(self.moment), **values)

    def change(self, query: str, **values: Any) -> int:
        return self.send(self.sql(query, **values), safe=True).oks[0].changed

    def several(self, asked: Sequence[tuple[str, dict[str, Any]]]) -> list[list[Row]]:
        return self.send(*(self.sql(query, **values) for query, values in asked), safe=True).results

    # tubes and counters

    def lock_alone(self, tube: Tube) -> None:
        self.rows(Q.lock_tube, tube=tube.no)

    def add_counts(self, tube: Tube, counts: Mapping[str, int], last_id: int = 0) -> None:
        self.send(add_counts(abs(tube.no), {name: counts[name] for name in COUNTED if name in counts}), safe=True)
        if last_id:
            self.change(Q.raise_last, tube=tube.no, last=last_id)

    # reading

    def look(self, tube: Tube, asked: Sequence[tuple[str, dict[str, Any]]], *, hidden: bool) -> list[list[Row]]:
        return super().look(tube, [(self._reading(query), values) for query, values in asked], hidden=hidden)

    def _reading(self, query: str) -> str:
        """Make a query of a bound write a locking read: the caller's snapshot may be too old for a plain read."""
        return f"{query} FOR UPDATE" if self.db.server.bound and self.write else query

    def _groups(self, query: str, tube: Tube, **values: object) -> list[Group]:
        return super()._groups(self._reading(query), tube, **values)

    # take

    def take_once(self, request: TakeRequest, call: int) -> TakeAnswer:
        return first_found(request, self._found(request, self.send(*self._take_packet(request, call)).results))

    def _found(self, request: TakeRequest, results: list[list[Row]]) -> Iterator[Found]:
        for tube in request.tubes:
            rows = results.pop(0)
            no, session, now, next_at = rows[0][:4]
            if no is None:
                raise self.no_such_tube(tube)
            self.note_clock(int(now))
            ranks = results.pop(0) if tube.kind.hand_out == CLOCK else []
            records = [Record(*row[4:]) for row in rows if row[4] is not None]
            moment = None if int(next_at) == NEVER else int(next_at)
            yield Found(session, int(now), moment, records, ranks[0][0] if ranks else None)

    def _take_packet(self, request: TakeRequest, call: int) -> list[str]:
        blocked, head = request.blocked, f"SET @p_h={literal(request.handle)},@p_k={call},@p_stop=0,@p_all=0,@p_due=0"
        packet: list[str] = []
        if _is_simple(request):
            clock = f"SET @p_now={self.moment},@p_id=NULL,@p_got=0,@p_held=1,@p_fair=0"
            single = [Q.look, clock, Q.find_one, Q.lease_one, Q.count_takes, Q.show_one]
            return [f"{head},@p_t={request.tubes[0].no},@p_forced=0", *single]
        for place, tube in enumerate(request.tubes):
            packet.append(f"{'SET ' if packet else head + ','}@p_t={tube.no},@p_forced={int(place < request.forced)}")
            packet += _take_from(tube, request, self.moment, forced=place < request.forced)
            if len(request.tubes) > 1 or blocked is not None:
                packet.append(Q.stop)
        values = {"handle": request.handle, "number": request.waiter}
        if blocked in ("register", "unregister_if_found"):
            packet.append(fill(Q.add_waiter, ids=[tube.no for tube in request.tubes], **values))
        if blocked in ("unregister_if_found", "unregister"):
            condition = f"(@p_all > 0 OR {int(blocked == 'unregister')}) AND NOT @p_due"
            packet.append(fill(Q.remove_waiter, condition=Raw(condition), **values))
        return packet

    def leased_by(self, lost: LostTake) -> list[list[Record]]:
        unregister = not self.is_registered(lost.waiter)
        packet = [
            fill(Q.lock_handle, handle=lost.handle),
            fill(Q.remove_waiter, handle=lost.handle, number=lost.waiter, condition=unregister),
            *(fill(Q.leased_by, tube=tube.no, handle=lost.handle, call=lost.call) for tube in lost.tubes),
        ]
        return [[Record(*row) for row in rows] for rows in self.send(*packet, safe=True).results[1:]]

    def recover(self, tube: Tube, count: int, elapsed: int) -> list[Record]:
        found = self.send(
            f"SET @p_t={tube.no},@p_now={self.moment},@p_k=0,@p_h='',@p_ids=NULL,@p_got=0,@p_held=0",
            Q.look,
            fill(Q.find_to_recover, elapsed=elapsed, count=count),
            *_DELIVER,
            Q.count_takes,
            Q.show_many,
        ).results[0]
        if found[0][0] is None:
            raise self.no_such_tube(tube)
        return [Record(*row[4:]) for row in found if row[4] is not None]

    # ack

    def ack(self, tube: Tube, moves: Sequence[Move]) -> Acked:
        """Ack all of these tasks together or, if that fails, all but the last one of each group. The rest is left to
        the engine."""
        held = [move for move in moves if 0 < move.id <= ID_MASK] if tube.kind.leased else list(moves)
        seen = [move.seen for move in held if move.seen is not None]
        if not held or held[0].verb == "delete" or (tube.kind.per_utube and len(seen) < len(held)):
            return Acked(set())
        acked = self._ack_one(tube, held[0]) if len(held) == 1 else self._ack_all(tube, held)
        last = {task.group_no: task.id for task in seen if task.group_no is not None}
        if not acked.keys and last and (most := [move for move in held if move.id not in last.values()]):
            acked = self._ack_all(tube, most)
        if acked.keys:
            self.count_changes(tube)
        return acked

    def _ack_one(self, tube: Tube, move: Move) -> Acked:
        seen, kind = move.seen, tube.kind
        tied = seen is not None and (seen.group_no is not None or seen.address is not None)
        if tied or kind.per_utube or not kind.leased or move.lease is None or self.given is not None:
            return self._ack_all(tube, [move])
        held = str(first_pk(tube) | move.id), str(move.session or -1), str(move.lease)
        acked = self.send(Q.ack_one.using(*held), Q.count_one.using(str(tube.no))).oks[0].changed
        return Acked({move.id} if acked else set())

    def _ack_all(self, tube: Tube, moves: Sequence[Move]) -> Acked:
        packet, ended = ack_packet(tube, moves, self.moment)
        try:
            results = self.send(*packet).results
        except Conflict:
            return Acked(set())
        keys = cast("set[int] | set[str]", {move.shown for move in moves})
        return Acked(keys, int(results[0][0][0]) if results else 0, [move.id for move in ended])

    # changes

    def flush(self, delta: Delta) -> Flushed:
        flush = Flush(delta, self.moment)
        flushed = flush.read(self.send(*flush.statements()).results)
        self.count_changes(delta.tube)
        return flushed

    # integrity

    def audit(self, tube: Tube) -> Audit:
        """Audit a tube. If it is to be repaired, lock it first against puts, takes and flushes."""
        if self.write and not self.db.server.bound:
            self._stack.close()  # the transaction of the previous tube
            self._stack.enter_context(self.transaction())
            self.send(REPEATABLE)
            self.lock_alone(tube)
        return super().audit(tube)

    # transfer

    def set_serial(self, tube: Tube, serial: int) -> None:
        self.change(Q.raise_serial, tube=tube.no, serial=serial)


def _is_simple(request: TakeRequest) -> bool:
    """Return whether a take is for one task of one plain tube, the first in its order, and its caller does not wait."""
    kind, others = request.tubes[0].kind, len(request.tubes) > 1 or request.forced or request.blocked
    return request.count == 1 and kind.leased and not (kind.per_utube or others or request.max_pri is not None)


def _take_from(tube: Tube, request: TakeRequest, now: str, *, forced: bool) -> list[str]:
    """Return the statements that take from one tube. The rows of their result begin with what `look` found."""
    kind, count = tube.kind, request.count
    rank = f"GREATEST({now}-{tube.period},0)" if kind.hand_out == CLOCK else "0"
    if kind.leased:
        rank = repr(_ANY_RANK) if request.max_pri is None else str(request.max_pri)
    variables = f"@p_m={rank},@p_held={int(kind.hand_out != CLOCK)},@p_fair={int(tube.fair)}"
    # Read the clock after `look` has acquired its locks, so that waiting for locks does not shorten the lease.
    packet = [Q.look, f"SET @p_now={now},@p_ids=NULL,@p_some=NULL,@p_got=0,@p_gone=0,{variables}"]
    if tube.fair and tube.utube_limit > 1:
        # One at a time: each hand-out moves its micro-queue behind the others.
        turn = [
            *_find(tube, request, 1, forced=forced), Q.lease_many, Q.serve_queues, Q.turn_heads,
            "SET @p_every=JSON_MERGE_PRESERVE(@p_every,IFNULL(CAST(@p_ids AS CHAR),'[]')),@p_sum=@p_sum+@p_got",
        ]  # fmt: skip
        packet += ["SET @p_every='[]',@p_sum=0", *turn * min(count, _TURNS), "SET @p_ids=@p_every,@p_got=@p_sum"]
    elif count:
        packet += _find(tube, request, count, forced=forced)
        if kind.leased:
            packet += [Q.lease_many, *([Q.serve_queues] if kind.per_utube else [])]
        else:
            packet += [Q.hand_out_clocked] if kind.hand_out == CLOCK else _DELIVER
    packet += [Q.count_takes, Q.show_many]
    return [*packet, fill(Q.first_rank, tube=tube.no)] if kind.hand_out == CLOCK else packet


def _find(tube: Tube, request: TakeRequest, count: int, *, forced: bool) -> list[Statement]:
    per_utube = tube.kind.per_utube
    queue = Raw(Q.queue_of_task if per_utube else "")
    if not forced and request.max_pri is None and tube.kind.leased:
        return [Prepared(fill(Q.find_many, queues=queue)).using(str(count))]
    lock = fill(Q.lock_some, queues=queue, limit=count, tables=Raw("k, l" if per_utube else "k"))
    return [Q.find_cancelled, fill(Q.find_some, limit=count + _MORE), lock]
