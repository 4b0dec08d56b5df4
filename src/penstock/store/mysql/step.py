"""One call on a MySQL or MariaDB server. Every method is one packet, or a few: a packet is one transaction and one
round trip. It decides nothing; the engine does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any

import pymysql
from msgspec.structs import astuple

from penstock.core.group import Group
from penstock.core.ids import Mark
from penstock.core.kind import Kind
from penstock.core.lifecycle import Move
from penstock.core.options import Tube, encode_given, make_tube
from penstock.core.refusals import tube_full
from penstock.core.results import LAPSE_MS, STATE_COUNTER, Counts, Presence
from penstock.core.soundness import needed_mark
from penstock.core.task import Entry, Record
from penstock.core.transfer import Parcel, Tally
from penstock.engine import port
from penstock.engine.port import Acked, Audit, Conflict, Delta, Flushed, Handed, HandleRow, Loaded, Request
from penstock.errors import PenstockError
from penstock.store.mysql import faults, queues
from penstock.store.mysql.flush import Flush, abort_unless, listed, new_call, old_outcomes
from penstock.store.mysql.pool import Answer, Link, Prepared, Statement
from penstock.store.mysql.puts import NewTasks
from penstock.store.mysql.queries import CALLS, COUNTED, NEVER, RECORD, STORED, TIME, Q, counter
from penstock.store.mysql.server import Refused, rolled_back, told
from penstock.store.mysql.taking import DELIVER, Taking
from penstock.store.mysql.wire import Raw, fill, literal
from penstock.store.sql.queries import COLUMNS, ID_MASK
from penstock.store.sql.step import Row, SqlStep, encoded_kind, first_pk, make_group

if TYPE_CHECKING:
    from penstock.store.mysql.database import MysqlDatabase

# By session and lease, either of which may be any: the tasks.
_Guards = Mapping[tuple[int | None, int | None], list[int]]
_ONE_MOMENT = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; START TRANSACTION WITH CONSISTENT SNAPSHOT"
_IMPORTED = ", ".join(COLUMNS[field] for field in COLUMNS if field != "id")
# Bytes of an INSERT of tasks from elsewhere.
_MOST = 2**18


class MysqlStep(SqlStep):
    """Sends packets. `write` False: it only looks; with `snapshot`, all at one moment."""

    Q = Q
    optimistic = True

    def __init__(self, database: MysqlDatabase, now: int | None, *, write: bool, snapshot: bool = False) -> None:
        self._database = database
        self._server = database.server
        self._given = database.clock() if now is None and database.clock is not None else now
        self._seen: int | None = self._given
        self._write = write
        self._snapshot = snapshot
        self._pinned: Link | None = None
        self._gathered: list[Statement] | None = None

    def __enter__(self) -> MysqlStep:
        if self._snapshot and not self._server.bound:
            self._pin(_ONE_MOMENT)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._unpin(done=error is None)

    # the connection

    @property
    def now(self) -> int:
        """The clock of the last load, or of now, where nothing was loaded yet."""
        if self._seen is None:
            self._seen = self._database.heard(int(self.rows(Q.time)[0][0]))
        return self._seen

    @now.setter
    def now(self, value: int) -> None:
        self._seen = value

    @property
    def moment(self) -> str:
        """The clock as SQL: the test's, or the server's."""
        return TIME if self._given is None else str(self._given)

    def send(self, *statements: Statement, safe: bool = False) -> Answer:
        """One packet, which is one transaction."""
        if self._gathered is not None:
            self._gathered += statements
            return Answer([], [])
        if self._pinned is None:
            return self._server.send(statements, safe=safe)
        try:
            return self._pinned.send(statements, commit=False)
        except (pymysql.MySQLError, OSError) as error:
            raise told(error, self._server.name) from error

    def rows(self, query: str, **values: Any) -> list[Row]:
        return self.send(fill(query, {**values, "now": Raw(self.moment)}), safe=True).results[0]

    def change(self, query: str, **values: Any) -> int:
        changed = self.send(self.filled(query, **values)).told
        return changed[0].changed if changed else 0

    def filled(self, query: str, **values: object) -> str:
        """A query with values, and the clock."""
        return fill(query, {**values, "now": Raw(self.moment)})

    @contextmanager
    def together(self) -> Iterator[None]:
        """What is changed within is one transaction; nothing may be read there."""
        self._gathered = []
        try:
            yield
            statements = self._gathered
        finally:
            self._gathered = None
        if statements:
            self.send(*statements)

    def _pin(self, begin: str) -> None:
        """From here on all packets are one transaction on one connection."""
        self._unpin(done=True)
        link = self._server.pool.borrow()
        self._pinned = link
        for statement in begin.split("; "):
            link.send([statement], commit=False)

    def _unpin(self, *, done: bool) -> None:
        link, self._pinned = self._pinned, None
        if link is None:
            return
        broken = True
        try:
            if done:
                link.commit()
            broken = not done and not rolled_back(link)
        except (pymysql.MySQLError, OSError) as error:
            raise told(error, self._server.name) from error
        finally:
            self._server.pool.give_back(link, broken=broken)

    def counted(self) -> None:
        """A packet left a difference of counters; now and then they are folded."""
        if self._database.should_fold():
            self.fold()

    def fold(self) -> None:
        """Add differences to the counters they belong to. Where others are at it, that is left to them."""
        names = ("fold_lock", "fold_find", "fold_add", "fold_drop", "fold_mark")
        try:
            self._server.send([Prepared(getattr(Q, name)) for name in names], safe=True)
        except (Conflict, PenstockError):
            pass  # the next one does it

    # tubes and counters

    def add_tube(self, name: str, kind: Kind, given: dict[str, object]) -> Tube | None:
        values = {"name": name, "kind": encoded_kind(kind), "options": encode_given(given).decode()}
        answer = self.send(fill(Q.add_tube, values), Q.new_tube, Q.add_id, Q.add_counter, "SELECT @p_t")
        ((no,),) = answer.results[0]
        return None if no is None else make_tube(int(no), name, kind, given)

    def write_tube(
        self, tube: Tube, *, name: str | None = None, given: dict[str, object] | None = None, paused: bool | None = None
    ) -> bool:
        values = {
            "name": tube.name if name is None else name,
            "options": encode_given(tube.given if given is None else given).decode(),
            "paused": Raw("paused") if paused is None else int(paused),
        }
        share = fill(Q.lock_tube, {"tube": tube.no})
        answer = self.send(share, self.filled(Q.set_tube, tube=tube.no, **values), "SELECT @p_live", safe=name is None)
        return bool(answer.results[0][0][0])

    def hide_tube(
        self, tube: Tube, name: str, given: dict[str, object], *, waiting: bool
    ) -> tuple[bool, bool, bool] | None:
        held = int(waiting or tube.kind.leased)
        options = encode_given(given).decode()
        answer = self.send(
            fill(Q.lock_tube, {"tube": tube.no}),
            fill(Q.lock_id, {"tube": tube.no}),
            fill(Q.busy, {"tube": tube.no, "held": held, "waiting": int(waiting)}),
            fill(Q.hide_id, {"tube": tube.no}),
            fill(Q.hide_tube, {"tube": tube.no, "name": name, "options": options}),
            "SELECT @p_live,@p_a,@p_b,@p_c",
        )
        live, *busy = (bool(value) for value in answer.results[0][0])
        if not live:
            raise self.no_such_tube(tube)
        return (busy[0], busy[1], busy[2]) if any(busy) else None

    def forget_tube(self, tube: Tube) -> None:
        with self.together():
            self._forget_content(tube)
            for query in (Q.forget_counter, Q.forget_deltas):
                self.change(query, tube=abs(tube.no))
            for query in (Q.forget_id, Q.forget_tube):
                self.change(query, tube=tube.no)

    def clear_tube(self, tube: Tube) -> None:
        tally = self.tally(tube)
        with self.together():
            self._forget_content(tube)
            self._correct(tube, tally, Counter[str](done=tally.last_id))

    def tally(self, tube: Tube) -> Tally:
        found = self.rows(Q.tally, tube=tube.no, counted=abs(tube.no))
        if not found:
            raise self.no_such_tube(tube)
        last, ms, seq, *numbers = (int(value) for value in found[0])
        counts = dict(zip(COUNTED, numbers, strict=True))
        ready = last - sum(counts[name] for name in STORED)
        return Tally(last, (ms, seq), Counts(ready=ready, put=last, **counts))

    def set_counts(self, tube: Tube, states: Mapping[str, int], *, done: int) -> None:
        stored = Counter[str](done=done)
        for state, count in states.items():
            stored[STATE_COUNTER.get(state, "ready")] += count
        self._correct(tube, self._audited, stored)

    def _correct(self, tube: Tube, tally: Tally, stored: Mapping[str, int]) -> None:
        """Count the difference between what is counted and what is there."""
        wrong = {name: stored.get(name, 0) - getattr(tally.counts, name) for name in STORED}
        if any(wrong.values()):
            self._add_counts(tube, wrong)

    def _add_counts(self, tube: Tube, counts: Mapping[str, int]) -> None:
        columns = Raw(",".join(counter(name) for name in counts))
        numbers = Raw(",".join(map(str, counts.values())))
        sql = "INSERT INTO penstock_delta (tube, :columns) VALUES (:tube, :numbers)"
        self.change(sql, tube=abs(tube.no), columns=columns, numbers=numbers)

    def set_mark(self, tube: Tube, audit: Audit) -> None:
        mark: Mark | None = needed_mark(audit.tally.mark, audit.newest)
        if mark is not None:
            self.change(Q.set_mark, tube=tube.no, ms=mark[0], seq=mark[1])

    def sweep(self, tube: Tube, limit: int) -> None:
        names = ["forget_old_outcomes", "sweep_groups", *(["forget_empty_queues"] if tube.fair else [])]
        self.send(
            f"SET @p_t={tube.no},@p_now={self.moment},@p_fair=1",
            self.filled(Q.find_old, tube=tube.no, limit=limit, fair=int(tube.fair)),
            *[Prepared(getattr(Q, name)) for name in names],
            safe=True,
        )

    def next_at(self, tube: Tube) -> int | None:
        ((moment,),) = self.send(f"SET @p_t={tube.no}", Prepared(Q.next_moment), safe=True).results[0]
        return None if int(moment) == NEVER else int(moment)

    # looking

    def load(self, tube: Tube, select: port.Select, *, data: bool = True) -> Loaded:
        query, values = self._selected(tube, select)
        texts = [self._reading(self.filled(query, **{"tube": tube.no, **values}))]
        if isinstance(select, port.Find) and select.status == "~":
            texts.append(self.filled(Q.find_unstarted, **values))
        statements = [self.filled(Q.look_at_tube, tube=tube.no), *texts]
        if isinstance(select, port.Due):
            statements.append(self._reading(fill(Q.moving_groups, {"tube": tube.no})))
        if tube.no in self._database.grouped:
            statements.append(self._reading(_groups_of(texts[0], tube)))
        ((now, live),), *results = self.send(*statements, safe=True).results
        self.saw(int(now))
        if not live and not isinstance(select, port.Page):
            raise self.no_such_tube(tube)
        records = [Record(*row) for row in results.pop(0)]
        if isinstance(select, port.Find) and len(texts) > 1:
            more = [Record(*row) for row in results.pop(0)]
            records = sorted([*records, *more], key=lambda record: record.id)[: select.limit]
        if isinstance(select, port.Deliveries) and select.backwards:
            records.reverse()
        groups = {group.no: group for group in map(make_group, (row for result in results for row in result))}
        numbers = {record.group_no for record in records if record.group_no is not None}
        self._database.know(tube, records)
        if missing := numbers - groups.keys():
            groups |= {group.no: group for group in self._groups(Q.groups_by_no, tube, ids=sorted(missing))}
        return Loaded(records, groups)

    def _reading(self, sql: str) -> str:
        """In the caller's transaction, which may have begun before what is asked for, reads see it only by a lock."""
        return f"{sql} FOR UPDATE" if self._server.bound and self._write else sql

    def _groups(self, query: str, tube: Tube, **values: object) -> list[Group]:
        look = self.filled(Q.look_at_tube, tube=tube.no)
        asked = self._reading(self.filled(query, tube=abs(tube.no), **values))
        ((_, live),), rows = self.send(look, asked, safe=True).results
        if not (live or rows):
            raise self.no_such_tube(tube)
        return [make_group(row) for row in rows]

    def open_group(self, tube: Tube, name: str) -> Group:
        found = self.groups(tube, name=name)
        if not found:
            values: dict[str, object] = {"tube": tube.no, "name": name}
            answer = self.send(
                fill(Q.share_tube, values),
                fill(Q.add_group, values),
                self._reading(fill(Q.live_group, values)),
                safe=True,
            )
            found = [make_group(row) for row in answer.results[0]]
        if not found:
            raise self.no_such_tube(tube)
        return found[0]

    # put

    def insert(self, tube: Tube, entries: Sequence[Entry]) -> list[Record]:
        if not entries:
            return []
        new = NewTasks(tube, entries)
        statements: list[Statement] = [f"SET @p_t={tube.no},@p_now={self.moment},@p_gained=0", *new.reserve()]
        if tube.capacity is not None:
            statements += [fill(Q.stored, {"tube": tube.no}), abort_unless(f"@p_stored <= {tube.capacity}")]
        try:
            answer = self.send(*statements, *new.store(), *new.show())
        except Refused as refused:
            raise self._refused(tube, len(entries), refused) from None
        records, _ = new.records(answer.results)
        self.saw(records[0].created)
        if new.delayed:
            self.counted()
        return records

    def _refused(self, tube: Tube, new: int, refused: Refused) -> Exception:
        """Why a packet did nothing: the tube is gone or full, or others were faster."""
        if refused.code == faults.DUPLICATE_KEY:
            return Conflict()
        ((live,),) = self.send(fill(Q.share_tube, {"tube": tube.no}), "SELECT @p_live", safe=True).results[0]
        if not live:
            return self.no_such_tube(tube)
        if new and tube.capacity is not None:
            stored = self.tally(tube).counts.stored
            if stored + new > tube.capacity:
                return tube_full(tube, stored, new)
        return Conflict()

    # take

    def take(self, request: Request) -> Handed:
        return Taking(self, self._database, request).run()

    def saw(self, now: int) -> int:
        """A packet told its clock."""
        if self._given is None:
            self._seen = self._database.heard(now)
        return now

    def recover(self, tube: Tube, count: int, elapsed: int) -> list[Record]:
        answer = self.send(
            f"SET @p_t={tube.no},@p_now={self.moment},@p_k=0,@p_h='',@p_ids=NULL,@p_got=0,@p_held=0",
            Prepared(Q.look),
            fill(Q.find_to_recover, {"elapsed": elapsed, "count": count}),
            *DELIVER,
            Prepared(Q.count_many),
            Prepared(Q.show_many),
        )
        if answer.results[0][0][0] is None:
            raise self.no_such_tube(tube)
        records = [Record(*row[4:]) for row in answer.results[0] if row[4] is not None]
        if records:
            self.counted()
        return records

    # ack

    def ack(self, tube: Tube, moves: Sequence[Move]) -> Acked:
        if not tube.kind.leased:
            return self._ack_named(tube, [str(move.name) for move in moves])
        base = first_pk(tube)
        guards: dict[tuple[int | None, int | None], list[int]] = {}
        for move in moves:
            if 0 < move.id <= ID_MASK:
                guards.setdefault((move.session, move.lease), []).append(base | move.id)
        if not guards:
            return Acked(set())
        addressed = tube.no in self._database.addressed or any(move.result is not None for move in moves)
        grouped = tube.no in self._database.grouped
        if not (tube.kind.per_utube or addressed or grouped):
            if self._ack_plain(tube, guards):
                return self._acked(Acked({pk & ID_MASK for pks in guards.values() for pk in pks}))
            addressed = grouped = True  # perhaps others put such tasks
        elif tube.utube_limit == 1 and not (addressed or grouped):
            acked = self._ack_heads(tube, guards)
            if acked is not None:
                return self._acked(acked)
            addressed = grouped = True
        return self._acked(self._ack_marked(tube, moves, guards, addressed=addressed, grouped=grouped))

    def _acked(self, acked: Acked) -> Acked:
        if acked.keys:
            self.counted()
        return acked

    def _ack_plain(self, tube: Tube, guards: _Guards) -> bool:
        """Ack tasks without links, all of them or none."""
        total = sum(map(len, guards.values()))
        if total == 1:
            counted = fill(Q.count_ack, {"tube": tube.no})
            return self.send(*self._removals(guards), counted).told[0].changed == 1
        try:
            self.send(*self._removals(guards), fill(Q.count_acks, {"tube": tube.no, "count": total}))
        except Refused:
            return False
        return True

    def _removals(self, guards: _Guards, *, one: bool = False) -> list[Statement]:
        statements: list[Statement] = []
        for (session, lease), pks in guards.items():
            values = {"ids": sorted(pks), "session": session or -1, "lease": lease, "any": int(lease is None)}
            statements.append(self.filled(Q.ack_plain, **values))
            if one or len(guards) > 1 or len(pks) > 1:
                statements.append(abort_unless(f"ROW_COUNT() = {len(pks)}"))
        return statements

    def _ack_heads(self, tube: Tube, guards: _Guards) -> Acked | None:
        """Ack tasks without links where each has the one place of its micro-queue; None where it is not so of all."""
        pks = sorted(pk for group in guards.values() for pk in group)
        statements: list[Statement] = [
            f"SET @p_now={self.moment}",
            fill(Q.share_tube, {"tube": tube.no}),
            queues.setting(tube, None),
            fill(Q.queues_of, {"ids": pks}),
            Prepared(Q.pass_on),
            abort_unless(f"ROW_COUNT() = {len(pks)} AND @p_live"),
            *self._removals(guards, one=True),
            *queues.pass_on(),
            Prepared(Q.forget_empty_queues),
            fill(Q.count_acks, {"tube": tube.no, "count": len(pks)}),
            "SELECT @p_gained",
        ]
        try:
            ((gained,),) = self.send(*statements).results[0]
        except Refused:
            return None
        return Acked({pk & ID_MASK for pk in pks}, int(gained))

    def _ack_marked(
        self, tube: Tube, moves: Sequence[Move], guards: _Guards, *,
        addressed: bool, grouped: bool,
    ) -> Acked:  # fmt: skip
        """Mark those that are held, do what follows from their end, and remove them."""
        pks = sorted(pk for group in guards.values() for pk in group)
        held = " OR ".join(
            f"(owner = {session or -1}{'' if lease is None else f' AND lease = {lease}'}"
            f"{'' if len(guards) == 1 else f' AND pk IN {literal(group)}'})"
            for (session, lease), group in guards.items()
        )
        laned = tube.kind.per_utube
        statements: list[Statement] = [
            f"SET @p_t={tube.no},@p_now={self.moment},@p_k={new_call()},@p_gained=0,@p_groups=''",
            fill(Q.share_tube, {"tube": tube.no}),
        ]
        if grouped:
            statements.append(fill(Q.groups_to_count, {"ids": pks, "count": len(pks)}))
        if laned:
            statements += [queues.setting(tube, None), fill(Q.queues_of, {"ids": pks}), Prepared(Q.lock_queues)]
        unlinked = "" if addressed else " AND address IS NULL"
        statements += [
            fill(Q.mark_acks, {"ids": pks, "guards": Raw(f"({held}){unlinked}")}),
            fill(Q.marked, {"ids": pks}),
        ]
        if addressed:
            results = {move.id: None if move.result is None else move.result.hex() for move in moves}
            outcomes = listed([(pk, results[pk & ID_MASK]) for pk in pks])
            statements += old_outcomes(tube.no, len(pks))
            statements.append(fill(Q.ack_outcomes, {"results": outcomes, "retention": tube.retention}))
        statements += [Prepared(Q.count_down)] if grouped else []
        statements += [Prepared(Q.left_queues)] if laned else []
        statements += [Prepared(Q.count_marked_acks), Prepared(Q.show_marked), Prepared(Q.delete_marked)]
        if laned:
            statements += queues.make_heads(tube, len(pks), overtaking=tube.utube_limit > 1)
            statements.append(Prepared(Q.forget_empty_queues))
        statements.append("SELECT @p_live,@p_gained")
        marked, ((live, gained),) = self.send(*statements).results
        if not live:
            raise self.no_such_tube(tube)
        kept = [int(id) for id, address in marked if address is not None]
        return Acked({int(id) for id, _ in marked}, int(gained), kept)

    def _ack_named(self, tube: Tube, names: list[str]) -> Acked:
        values: dict[str, object] = {"tube": tube.no, "texts": names}
        answer = self.send(
            f"SET @p_t={tube.no},@p_now={self.moment},@p_k={new_call()}",
            fill(Q.share_tube, values),
            fill(Q.mark_named_acks, values),
            fill(Q.marked_named, values),
            Prepared(Q.count_marked_acks),
            Prepared(Q.show_marked),
            Prepared(Q.delete_marked),
            "SELECT @p_live",
        )
        if not answer.results[1][0][0]:
            raise self.no_such_tube(tube)
        return self._acked(Acked({str(address) for _, address in answer.results[0]}))

    # changes

    def flush(self, delta: Delta) -> Flushed:
        flush = Flush(delta, self.moment)
        try:
            flushed = flush.read(self.send(*flush.statements()))
        except Refused as refused:
            raise self._refused(delta.tube, 0, refused) from None
        self._database.know(delta.tube, flushed.fresh)
        self.counted()
        return flushed

    # sessions

    def add_session(self, id: str, ttr: int) -> int:
        add = self.filled(Q.add_session, id=id, ttr=ttr, lapse=LAPSE_MS)
        return self.send(add).told[0].number

    def add_handle(self, presence: Presence, session: int, until: int) -> None:
        who = {"id": presence.handle, "host": presence.host, "pid": presence.pid, "locus": presence.locus}
        try:
            self.send(
                self.filled(Q.lock_session, no=session),
                abort_unless("@p_live = 1"),
                self.filled(Q.resume_session, no=session),
                self.filled(Q.add_handle, session=session, until=until, **who),
            )
        except Refused:
            raise Conflict from None

    def beat(self, handles: Sequence[str], lapse_ms: int) -> set[str]:
        beat = self.filled(Q.beat, texts=list(handles), lapse=lapse_ms)
        found = self.send(beat, self.filled(Q.beating, texts=list(handles)), safe=True).results[0]
        return {row[0] for row in found}

    def lapsed(self) -> tuple[list[HandleRow], list[int]]:
        handles, sessions = self.send(
            self.filled(Q.lapsed_handles), self.filled(Q.ended_sessions), safe=True
        ).results  # fmt: skip
        return [HandleRow(*row) for row in handles], [int(row[0]) for row in sessions]

    def remove_handle(self, handle: HandleRow, moment: int) -> None:
        self.send(
            fill(Q.lock_any_session, {"no": handle.session}),
            fill(Q.presence, {"id": handle.id}),
            fill(Q.forget_handle_waiters, {"id": handle.id}),
            fill(Q.forget_handle, {"id": handle.id}),
            fill(Q.linger, {"no": handle.session, "moment": moment}),
            safe=True,
        )

    # integrity

    def audit(self, tube: Tube) -> Audit:
        """To be repaired, a tube is locked: nobody takes, puts or settles meanwhile."""
        if self._write and not self._server.bound:
            self._pin("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; START TRANSACTION")
            self.send(fill(Q.lock_tube, {"tube": tube.no}), fill(Q.lock_id, {"tube": tube.no}))
        audit = super().audit(tube)
        self._audited = audit.tally
        return audit

    def rebuild(self, tube: Tube, audit: Audit) -> None:
        with self.together():
            super().rebuild(tube, audit)

    # transfer

    def import_batch(self, tube: Tube, parcel: Parcel) -> None:
        last, base = self.tally(tube).last_id, first_pk(tube)
        new = parcel.above(last)
        upto = max([parcel.upto, last, *(record.id for record in new.records)])
        counts = {
            "taken": new.count("t"),
            "delayed": new.count("~", "g"),
            "buried": new.count("!"),
            "delay": -new.due,
            "done": upto - last - len(new.records),
        }
        statements: list[Statement] = [
            f"UPDATE penstock_id SET last={upto} WHERE tube={tube.no} AND last={last}",
            abort_unless(f"{int(upto == last)} OR ROW_COUNT() = 1"),
        ]
        head = f"INSERT INTO penstock_task (pk, tube, {_IMPORTED}) VALUES "
        tasks = [_imported(base, tube, record) for record in new.records]
        statements += [head + ",".join(part) for part in _divided(tasks)]
        for no, count in sorted(new.members.items()):
            statements.append(fill(Q.import_members, {"no": no, "count": count}))
        head = "REPLACE INTO penstock_outcome (pk, tube, address, status, result, error, code, until) VALUES "
        outcomes = [
            literal((base | kept.id, tube.no, kept.address, *astuple(kept.ending), kept.until))
            for kept in parcel.outcomes
        ]
        statements += [head + ",".join(part) for part in _divided(outcomes)]
        try:
            with self.together():
                self.send(*statements)
                self._add_counts(tube, counts)
        except Refused as refused:
            raise self._refused(tube, 0, refused) from None

    def activate(self, tube: Tube, name: str, tally: Tally, totals: Mapping[int, int]) -> bool:
        ms, seq = tally.mark
        given = encode_given(tube.given).decode()
        try:
            with self.together():
                self.send(fill(Q.lock_tube, {"tube": tube.no}), abort_unless("@p_live = 1"))
                self._add_counts(tube, {call: getattr(tally.counts, call) for call in CALLS})
                self.change(Q.raise_mark, tube=tube.no, ms=ms, seq=seq)
                self.change(Q.raise_serial, tube=tube.no, serial=tally.counts.take)
                for no, total in sorted(totals.items()):
                    self.change(Q.set_group_total, no=no, total=total)
                self.change(Q.set_tube, tube=tube.no, name=name, options=given, paused=Raw("paused"))
        except Refused as refused:
            if refused.code == faults.DUPLICATE_KEY:
                return False
            raise self._refused(tube, 0, refused) from None
        return True


def _groups_of(loading: str, tube: Tube) -> str:
    """The groups of the tasks that a query finds."""
    numbers = loading.replace(RECORD, "group_no", 1)
    return (
        "SELECT no, name, state, total, remaining, end_work, cancel_work, moving, until FROM "
        f"(SELECT DISTINCT f.group_no AS g FROM ({numbers}) f WHERE f.group_no IS NOT NULL) d "
        f"STRAIGHT_JOIN penstock_group ON no = d.g WHERE tube = {abs(tube.no)}"
    )


def _imported(base: int, tube: Tube, record: Record) -> str:
    values = dict(zip(record.__struct_fields__, astuple(record), strict=True))
    values |= {"taken": record.taken or 0, "at": NEVER if record.at is None else record.at, "owner": record.owner or 0}
    return literal((base | record.id, tube.no, *(value for field, value in values.items() if field != "id")))


def _divided(rows: list[str]) -> Iterator[list[str]]:
    """As many rows together as a statement should have."""
    part: list[str] = []
    size = 0
    for row in rows:
        if part and size + len(row) > _MOST:
            yield part
            part, size = [], 0
        part.append(row)
        size += len(row)
    if part:
        yield part
