"""One call on a MySQL or MariaDB server. Hot calls are one packet: one transaction and one round trip. The rest is the
shared step in a longer transaction (`together`). It decides nothing; the engine does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

import pymysql
from msgspec.structs import astuple

from penstock.core.group import Group
from penstock.core.kind import Kind
from penstock.core.lifecycle import Move
from penstock.core.options import Tube, encode_given, make_tube
from penstock.core.refusals import tube_full
from penstock.core.results import Counts, Effects, Presence
from penstock.core.task import Entry, Record
from penstock.core.transfer import GroupTotals, ImportBatch, TubeCounters
from penstock.engine.lapse import LAPSE_MS
from penstock.engine.port import Acked, Audit, Conflict, Delta, Flushed, Handed, HandleRow, Request
from penstock.errors import PenstockError
from penstock.store.mysql import faults, queues
from penstock.store.mysql.connection import Answer, Link
from penstock.store.mysql.flush import Flush, forget_old_outcomes, require
from penstock.store.mysql.prepared import PreparedCalls
from penstock.store.mysql.puts import NewTasks
from penstock.store.mysql.queries import CALLS, COUNTED, NEVER, STORED, TIME, Q, counter
from penstock.store.mysql.server import Refused
from penstock.store.mysql.taking import DELIVER, Taking, undo_lost
from penstock.store.mysql.wire import Raw, fill, joined, literal
from penstock.store.sql.queries import COLUMNS, ID_MASK
from penstock.store.sql.step import Row, SqlStep, count_states, encoded_kind, first_pk, imported_counts

if TYPE_CHECKING:
    from penstock.store.mysql.database import MysqlStore

_REPEATABLE = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"
_IMPORTED = ", ".join(COLUMNS[field] for field in COLUMNS if field != "id")


class MysqlStep(SqlStep):
    """Sends packets. `write` False: it only reads; with `snapshot`, all at one moment."""

    Q = Q
    optimistic = True

    def __init__(self, database: MysqlStore, now: int | None, *, write: bool, snapshot: bool = False) -> None:
        self._database = database
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
        """The clock of the last load, or the current time if nothing was loaded yet."""
        if self._seen is None:
            self._seen = self._database.set_clock(int(self.rows(f"SELECT {TIME}")[0][0]))
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
            self._seen = self._database.set_clock(now)
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
        except BaseException:
            self._end(done=False)
            raise
        self._end(done=True)

    @contextmanager
    def _refusals(self, tube: Tube, new: int = 0) -> Iterator[None]:
        """Why a packet was refused: the tube is gone or full, or others were faster."""
        try:
            yield
        except Refused as refused:
            if refused.code != faults.DUPLICATE_KEY:
                self.must_live(tube)
                if new and tube.capacity is not None:
                    stored = self.counters(tube).counts.stored
                    if stored + new > tube.capacity:
                        raise tube_full(tube, stored, new) from None
            raise Conflict from None

    def counted(self) -> None:
        """A packet left a difference of counters; now and then they are folded."""
        if self._database.should_fold():
            self.fold()

    def fold(self) -> None:
        """Add differences to the counters they belong to."""
        try:
            self._server.send([Q.fold_upto, Q.fold_find, Q.fold_add, Q.fold_drop], safe=True)
        except (Conflict, PenstockError):
            pass  # the next one does it

    # tubes and counters

    def add_tube(self, name: str, kind: Kind, given: dict[str, object]) -> Tube | None:
        values = {"name": name, "kind": encoded_kind(kind), "options": encode_given(given).decode()}
        with self.together():
            added = self.send(fill(Q.add_tube, **values)).oks[0]
            if not added.changed:
                return None
            self.send(fill(Q.add_id, tube=added.number), fill(Q.add_counter, tube=added.number))
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

    def counters(self, tube: Tube) -> TubeCounters:
        found = self.rows(Q.counters, tube=tube.no, counted=abs(tube.no))
        if not found:
            raise self.no_such_tube(tube)
        last, ms, seq, *numbers = (int(value) for value in found[0])
        counts = dict(zip(COUNTED, numbers, strict=True))
        ready = last - sum(counts[name] for name in STORED)
        return TubeCounters(last, (ms, seq), Counts(ready=ready, put=last, **counts))

    def set_counts(self, tube: Tube, states: Mapping[str, int], *, done: int) -> None:
        stored, counters = count_states(states), self.counters(tube)
        stored["done"] = counters.last_id - sum(states.values())
        wrong = {name: stored[name] - getattr(counters.counts, name) for name in STORED}
        if any(wrong.values()):
            self._add_counts(tube, wrong)

    def _add_counts(self, tube: Tube, counts: Mapping[str, int]) -> None:
        columns = Raw(",".join(counter(name) for name in counts))
        numbers = Raw(",".join(map(str, counts.values())))
        self.change(Q.add_counts, tube=abs(tube.no), columns=columns, numbers=numbers)

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

    def open_group(self, tube: Tube, name: str) -> Group:
        found = self.groups(tube, name=name)
        if not found:
            with self._refusals(tube):
                self.send(fill(Q.require_tube, tube=tube.no), fill(Q.add_group, tube=tube.no, name=name), safe=True)
            found = self.groups(tube, name=name)
        return found[0]

    # put and take

    def insert(self, tube: Tube, entries: Sequence[Entry]) -> list[Record]:
        if not entries:
            return []
        new = NewTasks(tube, entries)
        statements = [f"SET @p_t={tube.no},@p_now={self.moment},@p_gained=0", *new.reserve()]
        if tube.capacity is not None:
            statements += [fill(Q.stored, tube=tube.no), require(f"@p_stored <= {tube.capacity}")]
        with self._refusals(tube, len(entries)):
            answer = self.send(*statements, *new.store(), *new.show())
        records, _ = new.records(answer.results)
        self.set_clock(records[0].created)
        if new.delayed:
            self.counted()
        return records

    def take(self, request: Request) -> Handed:
        return Taking(self, self._database, request).run()

    def undo_lost(self, effects: Effects, *, again: bool) -> None:
        undo_lost(self, self._database.lost, effects, again=again)

    def recover(self, tube: Tube, count: int, elapsed: int) -> list[Record]:
        found = self.send(
            f"SET @p_t={tube.no},@p_now={self.moment},@p_k=0,@p_h='',@p_ids=NULL,@p_got=0,@p_held=0",
            Q.look,
            fill(Q.find_to_recover, elapsed=elapsed, count=count),
            *DELIVER,
            Q.count_takes,
            Q.show_many,
        ).results[0]
        if found[0][0] is None:
            raise self.no_such_tube(tube)
        records = [Record(*row[4:]) for row in found if row[4] is not None]
        if records:
            self.counted()
        return records

    # ack

    def ack(self, tube: Tube, moves: Sequence[Move]) -> Acked:
        """Ack all of these tasks or none, which leaves them to the engine.

        What their end does to outcomes and groups is known from `Move.seen`.
        """
        if not tube.kind.leased:
            return self._ack_named(tube, [str(move.name) for move in moves])
        base, laned = first_pk(tube), tube.kind.per_utube
        guards: dict[tuple[int | None, int | None], list[int]] = {}
        for move in moves:
            if 0 < move.id <= ID_MASK:
                guards.setdefault((move.session, move.lease), []).append(base | move.id)
        if not guards:
            return Acked(set())
        pks = sorted(pk for group in guards.values() for pk in group)
        seen = [(move, move.seen) for move in moves if move.seen is not None]
        ended = [(move, task.address) for move, task in seen if task.address is not None]
        groups = Counter(task.group_no for _, task in seen if task.group_no is not None)
        (session, lease), *_ = guards
        plain = not (laned or ended or groups) and self._given is None and self._link is None
        if plain and len(pks) == 1 and lease is not None:
            one = partial(PreparedCalls.ack, tube=tube.no, pk=pks[0], session=session or -1, lease=lease)
            done = self._server.run_prepared(one, again=False)
            if done is not None:
                return self._acked(pks if done else [])
        statements: list[str] = []
        if laned or ended or groups:
            statements = [f"SET @p_t={tube.no},@p_now={self.moment}", fill(Q.require_tube, tube=tube.no)]
        for no, count in sorted(groups.items()):
            statements += [fill(Q.count_down, no=no, count=count), require("ROW_COUNT() = 1")]
        if ended:
            until = Raw(f"@p_now+{tube.retention}")
            rows = (literal((base | move.id, tube.no, name, "done", move.result, until)) for move, name in ended)
            statements += forget_old_outcomes(len(ended))
            statements += [f"{Q.add_outcomes} VALUES {part}" for part in joined(rows)]
        if laned:
            statements += [queues.setting(tube, None), fill(Q.queues_of, ids=pks)]
            passed = [Q.pass_on, require(f"ROW_COUNT() = {len(pks)}")]
            statements += passed if tube.utube_limit == 1 else [Q.lock_queues, fill(Q.leave_queues, ids=pks)]
        unlinked = "" if len(seen) == len(moves) else " AND group_no IS NULL AND address IS NULL"
        for guard, held in guards.items():
            statements.append(self.sql(Q.ack, ids=sorted(held), guards=Raw(_held(*guard) + unlinked)))
            statements.append(require(f"ROW_COUNT() = {len(held)}"))
        if laned:
            heads = queues.pass_on() if tube.utube_limit == 1 else queues.make_heads(tube, len(pks), overtaking=True)
            statements += [*heads, Q.forget_empty_queues, "SELECT @p_gained"]
        numbers = Raw(f"{-len(pks)},{len(pks)},{len(pks)}")
        statements.append(fill(Q.add_counts, tube=tube.no, columns=Raw("taken,done,ack_calls"), numbers=numbers))
        try:
            results = self.send(*statements).results
        except Refused:
            return Acked(set())
        return self._acked(pks, int(results[0][0][0]) if laned else 0, [move.id for move, _ in ended])

    def _acked(self, pks: Sequence[int], gained: int = 0, kept: Sequence[int] = ()) -> Acked:
        if pks:
            self.counted()
        return Acked({pk & ID_MASK for pk in pks}, gained, kept)

    def _ack_named(self, tube: Tube, names: list[str]) -> Acked:
        with self._refusals(tube):
            removed = self.send(
                f"SET @p_t={tube.no}",
                fill(Q.require_tube, tube=tube.no),
                fill(Q.lock_named, tube=tube.no, texts=names),
                *(Q.count_named, Q.show_named, Q.delete_named),
            ).results[0]
        if removed:
            self.counted()
        return Acked({str(name) for (name,) in removed})

    # changes

    def flush(self, delta: Delta) -> Flushed:
        flush = Flush(delta, self.moment)
        with self._refusals(delta.tube):
            flushed = flush.read(self.send(*flush.statements()))
        self.counted()
        return flushed

    # sessions

    def add_session(self, id: str, ttr: int) -> int:
        return self.send(self.sql(Q.add_session, id=id, ttr=ttr, lapse=LAPSE_MS)).oks[0].number

    def add_handle(self, presence: Presence, session: int, until: int) -> None:
        who = {"id": presence.handle, "host": presence.host, "pid": presence.pid, "locus": presence.locus}
        with self.together():
            if not any(alive for (alive,) in self.rows(Q.lock_session, no=session)):
                raise Conflict
            self.change(Q.resume_session, no=session)
            self.change(Q.add_handle, session=session, until=until, **who)

    def beat(self, handles: Sequence[str], lapse_ms: int) -> set[str]:
        beat = self.sql(Q.beat, texts=list(handles), lapse=lapse_ms)
        return {row[0] for row in self.send(beat, self.sql(Q.beating, texts=list(handles)), safe=True).results[0]}

    def lapsed(self) -> tuple[list[HandleRow], list[int]]:
        asked = self.sql(Q.lapsed_handles), self.sql(Q.ended_sessions)
        handles, sessions = self.send(*asked, safe=True).results
        return [HandleRow(*row) for row in handles], [int(no) for (no,) in sessions]

    def remove_handle(self, handle: HandleRow, moment: int) -> None:
        with self.together():
            self.rows(Q.lock_session, no=handle.session)
            super().remove_handle(handle, moment)

    # integrity

    def audit(self, tube: Tube) -> Audit:
        """To be repaired, a tube is locked: nobody takes, puts or settles meanwhile."""
        if self._write and not self._server.bound:
            self._end(done=True)
            self._begin(_REPEATABLE, "START TRANSACTION", fill(Q.lock_tube, tube=tube.no))
        return super().audit(tube)

    def rebuild(self, tube: Tube, audit: Audit) -> None:
        with self.together():
            super().rebuild(tube, audit)

    # transfer

    def import_batch(self, tube: Tube, batch: ImportBatch) -> None:
        base, none = first_pk(tube), {"taken": 0, "at": NEVER, "owner": 0}
        with self._refusals(tube), self.together():
            self.lock_alone(tube)
            last = self.counters(tube).last_id
            new = batch.above(last)
            upto = max([batch.upto, last, *(record.id for record in new.records)])
            tasks = (
                literal((base | record.id, tube.no, *(
                    none.get(field) if value is None else value
                    for field, value in zip(record.__struct_fields__, astuple(record), strict=True) if field != "id"
                )))
                for record in new.records
            )  # fmt: skip
            for part in joined(tasks):
                self.send(f"INSERT INTO penstock_task (pk, tube, {_IMPORTED}) VALUES {part}")
            outcomes = (
                literal((base | kept.id, tube.no, kept.address, *astuple(kept.ending), kept.until))
                for kept in batch.outcomes
            )
            for part in joined(outcomes):
                columns = "pk, tube, address, status, result, error, code, errors, until"
                self.send(f"REPLACE INTO penstock_outcome ({columns}) VALUES {part}")
            for no, count in sorted(new.members.items()):
                self.change(Q.import_members, no=no, count=count)
            self.send(f"UPDATE penstock_id SET last={upto} WHERE tube={tube.no}")
            counts = imported_counts(new, last, upto)
            self._add_counts(tube, {name: counts[name] for name in COUNTED if name in counts})

    def activate(self, tube: Tube, name: str, counters: TubeCounters, totals: GroupTotals) -> bool:
        ms, seq = counters.mark
        with self._refusals(tube), self.together():
            if not self.rows(Q.lock_tube, tube=tube.no):
                raise self.no_such_tube(tube)
            if self.tubes([name]):
                return False
            self._add_counts(tube, {call: getattr(counters.counts, call) for call in CALLS})
            self.change(Q.set_mark, tube=tube.no, ms=ms, seq=seq)
            self.change(Q.raise_serial, tube=tube.no, serial=counters.counts.take)
            for no, (total, failed) in sorted(totals.items()):
                self.change(Q.set_group_total, no=no, total=total, failed=failed)
            return self.write_tube(tube, name=name)


def _held(session: int | None, lease: int | None) -> str:
    return f"owner = {session or -1}{'' if lease is None else f' AND lease = {lease}'}"
