"""One call on a MySQL or MariaDB server. Hot calls are one packet: one transaction and one round trip. The rest is the
shared step in a longer transaction (`together`). It decides nothing; the engine does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any

import pymysql
from msgspec.structs import astuple

from penstock.core.group import Group
from penstock.core.kind import Kind
from penstock.core.lifecycle import Move
from penstock.core.options import Tube, encode_given, make_tube
from penstock.core.refusals import tube_full
from penstock.core.results import Counts
from penstock.core.task import Entry, Record
from penstock.core.transfer import Kept, TubeCounters
from penstock.engine.lapse import LAPSE_MS
from penstock.engine.port import Acked, Audit, Conflict, Delta, Flushed
from penstock.errors import PenstockError
from penstock.store.mysql import takes
from penstock.store.mysql.changes import Flush, ack_packet, held_by
from penstock.store.mysql.mysql_connection import DUPLICATE_KEY, Answer, Link
from penstock.store.mysql.mysql_queries import COUNTED, NEVER, STORED, TIME, Q, counter
from penstock.store.mysql.server import Refused
from penstock.store.mysql.wire import Raw, fill, joined, literal, packed
from penstock.store.sql.sql_queries import COLUMNS, ID_MASK
from penstock.store.sql.sql_step import Row, SqlStep, count_states, encoded_kind, first_pk

if TYPE_CHECKING:
    from penstock.store.mysql.mysql_store import MysqlStore

_REPEATABLE = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"
_IMPORTED = ", ".join(COLUMNS[field] for field in COLUMNS if field != "id")


class MysqlStep(SqlStep):
    """Sends packets. `write` False: it only reads; with `snapshot`, all at one moment."""

    Q = Q
    optimistic = True

    def __init__(self, database: MysqlStore, now: int | None, *, write: bool, snapshot: bool = False) -> None:
        self.database = database
        self._server = database.server
        self._given = database.clock() if now is None and database.clock is not None else now
        self._seen: int | None = self._given
        self._write = write
        self._snapshot = snapshot
        self._link: Link | None = None  # of a transaction of several round trips

    def __enter__(self) -> MysqlStep:
        if self._snapshot and not self._server.bound:
            self._begin(_REPEATABLE, "START TRANSACTION WITH CONSISTENT SNAPSHOT")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._end(done=error is None and self._write)

    # the connection

    @property
    def now(self) -> int:
        """The clock of the last load, or an estimate if nothing was loaded yet.

        The server's own clock tests in the flush whether a decision still holds.
        """
        if self._seen is None:
            self._seen = self.database.now()
        return self._seen

    @now.setter
    def now(self, value: int) -> None:
        self._seen = value

    @property
    def moment(self) -> str:
        """The clock as SQL: the test's, or the server's."""
        return TIME if self._given is None else str(self._given)

    def set_clock(self, now: int) -> int:
        """Remember the server's clock, which a packet returned."""
        if self._given is None:
            self._seen = self.database.set_clock(now)
        return now

    def send(self, *statements: str, safe: bool = False) -> Answer:
        """Send one packet, as one transaction or as part of the one that is open."""
        if self._link is None:
            return self._server.send(statements, safe=safe)
        try:
            return self._link.send(statements, commit=False)
        except (pymysql.MySQLError, OSError) as error:
            raise self._server.error_for(error) from error

    def sql(self, query: str, **values: object) -> str:
        """A query with values, and the clock."""
        return fill(query, now=Raw(self.moment), **values)

    def rows(self, query: str, **values: Any) -> list[Row]:
        return self.send(self.sql(query, **values), safe=True).results[0]

    def change(self, query: str, **values: Any) -> int:
        return self.send(self.sql(query, **values)).oks[0].changed

    def several(self, asked: Sequence[tuple[str, dict[str, Any]]]) -> list[list[Row]]:
        return self.send(*(self.sql(query, **values) for query, values in asked), safe=True).results

    def _begin(self, *statements: str) -> None:
        self._link = self._server.borrow()
        for statement in statements:
            self.send(statement)

    def _end(self, *, done: bool) -> None:
        link, self._link = self._link, None
        if link is not None:
            self._server.give_back(link, done=done)

    @contextmanager
    def together(self) -> Iterator[None]:
        """Make everything within one transaction. It holds locks between round trips, so it is for rare calls only."""
        if self._link is not None:
            yield
            return
        self._begin()
        try:
            yield
        except BaseException as error:
            self._end(done=False)
            if isinstance(error, Refused):  # a name has come into use
                raise Conflict from error
            raise
        self._end(done=True)

    @contextmanager
    def _refusals(self, tube: Tube, new: int = 0) -> Iterator[None]:
        """Why a packet was refused: the tube is gone or full, or others were faster."""
        try:
            yield
        except Refused as refused:
            if refused.code != DUPLICATE_KEY:
                self.must_live(tube)
                if new and tube.capacity is not None:
                    stored = self.counters(tube).counts.stored
                    if stored + new > tube.capacity:
                        raise tube_full(tube, stored, new) from None
            raise Conflict from None

    def counted(self, tube: Tube) -> None:
        """A packet left a difference of a tube's counters; now and then they are folded."""
        if self.database.should_fold():
            self.fold(tube)

    def fold(self, tube: Tube) -> None:
        """Make one row of the differences of a tube's counters."""
        try:
            self._server.send([f"SET @p_t={abs(tube.no)}", Q.fold_find, Q.fold_add, Q.fold_drop], safe=True)
        except (Conflict, PenstockError):
            pass  # the next one does it

    # tubes and counters

    def add_tube(self, name: str, kind: Kind, given: dict[str, object]) -> Tube | None:
        values = {"name": name, "kind": encoded_kind(kind), "options": encode_given(given).decode()}
        with self.together():
            added = self.send(fill(Q.add_tube, **values)).oks[0]
            if not added.changed:
                return None
            self.send(fill(Q.add_id, tube=added.number))
        return make_tube(added.number, name, kind, given)

    def write_tube(
        self, tube: Tube, *, name: str | None = None, given: dict[str, object] | None = None, paused: bool | None = None
    ) -> bool:
        values = {
            "name": tube.name if name is None else name,
            "options": Raw("options") if given is None else encode_given(given).decode(),
            "paused": Raw("paused") if paused is None else int(paused),
        }
        lock = fill(Q.lock_tube, tube=tube.no)
        return bool(self.send(lock, self.sql(Q.set_tube, tube=tube.no, **values), safe=name is None).results[0])

    def lock_alone(self, tube: Tube) -> None:
        self.rows(Q.lock_tube, tube=tube.no)

    def make_counters(self, row: Row) -> TubeCounters:
        _, last, ms, seq, paused, *numbers = (int(value or 0) for value in row)
        counts = dict(zip(COUNTED, numbers, strict=True))
        ready = last - sum(counts[name] for name in STORED)
        return TubeCounters(last, (ms, seq), Counts(ready=ready, put=last, **counts), bool(paused))

    def set_counts(self, tube: Tube, states: Mapping[str, int], *, done: int) -> None:
        stored, counters = count_states(states), self.counters(tube)
        stored["done"] = counters.last_id - sum(states.values())
        wrong = {name: stored[name] - getattr(counters.counts, name) for name in STORED}
        if any(wrong.values()):
            self.add_counts(tube, wrong)

    def add_counts(self, tube: Tube, counts: Mapping[str, int], last_id: int = 0) -> None:
        names = [name for name in COUNTED if name in counts]
        columns = Raw(",".join(map(counter, names)))
        numbers = Raw(",".join(str(counts[name]) for name in names))
        self.change(Q.add_counts, tube=abs(tube.no), columns=columns, numbers=numbers)
        if last_id:
            self.change(Q.raise_last, tube=tube.no, last=last_id)

    def sweep(self, tube: Tube, limit: int) -> None:
        found = [fill(Q.find_old, limit=limit), fill(Q.old_outcomes, limit=limit)]
        setting = f"SET @p_t={tube.no},@p_now={self.moment},@p_fair={int(tube.fair)}"
        self.send(setting, *found, Q.forget_old_outcomes, Q.sweep_groups, Q.forget_empty_queues, safe=True)

    def next_at(self, tube: Tube) -> int | None:
        ((moment,),) = self.send(f"SET @p_t={tube.no}", Q.next_moment, safe=True).results[0]
        return None if int(moment) == NEVER else int(moment)

    # looking

    def look(self, tube: Tube, asked: Sequence[tuple[str, dict[str, Any]]], *, hidden: bool) -> list[list[Row]]:
        texts = [self.sql(self._reading(query), **{"tube": tube.no, **values}) for query, values in asked]
        ((now, live),), *results = self.send(self.sql(Q.look_at_tube, tube=tube.no), *texts, safe=True).results
        self.set_clock(int(now))
        if not (live or hidden):
            raise self.no_such_tube(tube)
        return results

    def _reading(self, query: str) -> str:
        """In the caller's transaction, which may have begun before what is asked for, only a lock sees it."""
        return f"{query} FOR UPDATE" if self._server.bound and self._write else query

    def _groups(self, query: str, tube: Tube, **values: object) -> list[Group]:
        return super()._groups(self._reading(query), tube, **values)

    # put and take

    def insert(self, tube: Tube, entries: Sequence[Entry]) -> list[Record]:
        if not entries:
            return []
        with self._refusals(tube, len(entries)):
            records = self._flush(Delta(tube, fresh=list(entries))).fresh
        self.set_clock(records[0].created)
        return records

    take, recover, undo_lost = takes.take, takes.recover, takes.undo_lost

    # ack

    def ack(self, tube: Tube, moves: Sequence[Move]) -> Acked:
        """Ack all of these tasks at once.

        If some cannot be acked, leave the last ones of groups to the engine, or ack the others if they are plain.
        """
        if not tube.kind.leased:
            lock = fill(Q.lock_named, tube=tube.no, texts=[str(move.name) for move in moves])
            return Acked({str(name) for name, _ in self._ack_found(tube, lock)[0]})
        held = [move for move in moves if 0 < move.id <= ID_MASK]
        seen = [move.seen for move in held if move.seen is not None]
        if not held or (tube.kind.per_utube and len(seen) < len(held)):
            return Acked(set())
        grouped = any(task.group_no is not None for task in seen)
        plain = not (grouped or tube.kind.per_utube or any(task.address is not None for task in seen))
        acked = self._ack_one(tube, held[0]) if plain and len(held) == 1 else None
        if acked is None:
            acked = self._ack_all(tube, held)
        if acked.keys:
            self.counted(tube)
            return acked
        if plain:
            held_now = held_by(tube, held, tied=False)
            found, others = self._ack_found(tube, self.sql(Q.lock_held, held=held_now), held_by(tube, held, tied=True))
            return Acked({id for _, id in found}, judged=not others[0][0])
        last = {task.group_no: task.id for task in seen if task.group_no is not None}
        most = [move for move in held if move.id not in last.values()]
        return self._ack_all(tube, most) if grouped and most else acked

    def _ack_one(self, tube: Tube, move: Move) -> Acked | None:
        """Ack one plain task; None if the server does not prepare such calls."""
        if self._given is not None or self._link is not None or move.lease is None:
            return None
        held = packed(first_pk(tube) | move.id, move.session or -1, move.lease)
        answers = self._server.run_prepared((Q.ack_one, held), (Q.count_one, packed(tube.no)), again=False)
        return None if answers is None else Acked({move.id} if answers[0].changed else set())

    def _ack_all(self, tube: Tube, moves: Sequence[Move]) -> Acked:
        packet, ended = ack_packet(tube, moves, self.moment)
        try:
            results = self.send(*packet).results
        except Refused:
            return Acked(set())
        return Acked({move.id for move in moves}, int(results[0][0][0]) if results else 0, [move.id for move in ended])

    def _ack_found(self, tube: Tube, lock: str, held: str = "FALSE") -> list[list[Row]]:
        """Ack what a statement has locked. Returns that, and how many of `held` are left."""
        with self._refusals(tube):
            found = self.send(
                f"SET @p_t={tube.no}", fill(Q.require_tube, tube=tube.no), lock, Q.count_acks, Q.show_acked,
                Q.delete_acked, self.sql(Q.still_held, held=Raw(held)),
            ).results  # fmt: skip
        if found[0]:
            self.counted(tube)
        return found

    # changes

    def flush(self, delta: Delta) -> Flushed:
        with self._refusals(delta.tube):
            return self._flush(delta)

    def _flush(self, delta: Delta) -> Flushed:
        flush = Flush(delta, self.moment)
        flushed = flush.read(self.send(*flush.statements()).results)
        self.counted(delta.tube)
        return flushed

    # sessions

    def add_session(self, id: str, ttr: int) -> int:
        return self.send(self.sql(Q.add_session, id=id, ttr=ttr, lapse=LAPSE_MS)).oks[0].number

    # integrity

    def audit(self, tube: Tube) -> Audit:
        """To be repaired, a tube is locked: nobody takes, puts or settles meanwhile."""
        if self._write and not self._server.bound:
            self._end(done=True)
            self._begin(_REPEATABLE, "START TRANSACTION", fill(Q.lock_tube, tube=tube.no))
        return super().audit(tube)

    # transfer

    def import_rows(self, tube: Tube, records: Sequence[Record], outcomes: Sequence[Kept]) -> None:
        base, none = first_pk(tube), {"taken": 0, "at": NEVER, "owner": 0}
        tasks = (
            literal((base | record.id, tube.no, *(
                none.get(field) if value is None else value
                for field, value in zip(record.__struct_fields__, astuple(record), strict=True) if field != "id"
            )))
            for record in records
        )  # fmt: skip
        for part in joined(tasks):
            self.send(f"INSERT INTO penstock_task (pk, tube, {_IMPORTED}) VALUES {part}")
        columns = "pk, tube, address, status, result, error, code, errors, until"
        kept = (literal((base | one.id, tube.no, one.address, *astuple(one.ending), one.until)) for one in outcomes)
        for part in joined(kept):
            self.send(f"INSERT IGNORE INTO penstock_outcome ({columns}) VALUES {part}")

    def set_serial(self, tube: Tube, serial: int) -> None:
        self.change(Q.raise_serial, tube=tube.no, serial=serial)
