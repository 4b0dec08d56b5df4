"""The store in a MySQL or MariaDB database: procedures do each verb in one round trip, this tells what they did."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import pymysql

from penstock.core.entry import stands_alone
from penstock.core.kind import Kind
from penstock.core.lifecycle import Move
from penstock.core.options import Tube
from penstock.core.task import Entry, Record
from penstock.store import base
from penstock.store.base import ADVANCE_STEP, GONE, Advanced, Counts, Effects, Event, Settled, Stored
from penstock.store.moving import named
from penstock.store.mysql import checks, faults, records, sessions, tubes
from penstock.store.mysql.answers import moment_of, sql
from penstock.store.mysql.bound import BoundDatabase
from penstock.store.mysql.calls import Clock
from penstock.store.mysql.database import Database, Refused
from penstock.store.mysql.describe import describe
from penstock.store.mysql.linked import LinkedCalls
from penstock.store.mysql.location import parse
from penstock.store.mysql.moving import MovingCalls
from penstock.store.mysql.plain import make_plain_put
from penstock.store.mysql.pool import Link
from penstock.store.mysql.putting import put
from penstock.store.mysql.queries import Q, several
from penstock.store.mysql.records import Report, make_record
from penstock.store.mysql.schema import migrate
from penstock.store.mysql.settling import acked, acking, are_acks, settling
from penstock.store.mysql.taking import TakingCalls
from penstock.store.mysql.ties import tied
from penstock.store.mysql.unleased import ONE_MOMENT, UnleasedCalls
from penstock.store.mysql.watch import Watch
from penstock.store.mysql.wire import Rows
from penstock.store.refusals import tube_missing
from penstock.store.sql.waiters import Waiters

# public status -> the stored states that show as it
_STATES = {"t": "tt", "~": "~g", "!": "!!"}
_MAX_ID = 2**63 - 1


def open_mysql(url: str, clock: Clock | None = None) -> MysqlStore:
    """The store of a mysql:// URL."""
    return MysqlStore(Database(parse(url)), clock)


class MysqlStore(LinkedCalls, UnleasedCalls, TakingCalls, MovingCalls):
    """Keeps the contract of `store.base` and its parts in one database."""

    shared = True
    remote = True

    def __init__(self, database: Database, clock: Clock | None) -> None:
        self._db = database
        self._clock = clock
        self._watch = Watch(lambda: self._db.read(Q.look))
        self._offset = (0.0, 0.0)
        self._lost, self._waiters = [], Waiters()
        try:
            self.identity = f"mysql:{migrate(database)}"
            tubes.remove_hidden(database, self._moment(None))
        except BaseException:
            database.close()
            raise

    def close(self) -> None:
        self._db.close()

    def bind(self, connection: object) -> MysqlStore:
        bound = object.__new__(MysqlStore)
        bound._db = BoundDatabase(self._db, connection, self.identity)
        bound._clock = self._clock
        bound._offset = self._offset
        bound._lost, bound._waiters = [], Waiters()
        bound.identity = self.identity
        return bound

    def describe(self) -> base.Description:
        return self._db.run(lambda link: describe(link, self._db.location), safe=True)

    # waiting

    def wait(self, wake: threading.Event, seconds: float, *, watch: bool) -> bool:
        return self._watch.wait(wake, seconds, watch=watch)

    # tubes

    def save_tube(self, name: str, kind: Kind, given: dict[str, object], *, exist_ok: bool) -> Tube:
        def save(link: Link) -> Tube:
            try:
                return tubes.save(link, name, kind, given, exist_ok=exist_ok)
            except pymysql.IntegrityError as error:
                if faults.number(error) != faults.DUPLICATE_KEY:
                    raise
                link.rollback()  # another process was faster: now it is there
                return tubes.save(link, name, kind, given, exist_ok=exist_ok)

        return self._db.run(save)

    def load_tube(self, name: str) -> Tube | None:
        return named([tubes.load(row) for row in self._db.read(Q.find_tube, (name,) * 4)], name)

    def load_tubes(self) -> list[Tube]:
        return [tubes.load(row) for row in self._db.read(Q.all_tubes)]

    def drop_tube(self, tube: Tube) -> Effects:
        report, moment = Report(), self._moment(None)
        with self._refusals(tube):
            rows = self._db.run(lambda link: tubes.drop(link, tube, moment))
        report.swept(rows, int(rows[-1][1]))
        report.swept(tubes.remove_hidden(self._db, moment), 0)
        return report.effects

    def pause_tube(self, tube: Tube, paused: bool) -> None:
        def pause(link: Link) -> None:
            if not link.rows(Q.lock_tube, (tube.no,)):
                raise tube_missing(tube)
            link.change(Q.set_paused, (int(paused), tube.no))

        with self._refusals(tube):
            self._db.run(pause, safe=True)

    def paused(self, tube: Tube) -> bool:
        rows = self._db.read(Q.is_paused, (tube.no,))
        if not rows:
            raise self._no_such_tube(tube)
        return bool(rows[0][0])

    # tasks

    def put(self, tube: Tube, entries: Sequence[Entry], *, now: int | None = None) -> Stored:
        if not entries:
            return Stored([], Effects())
        if tied(tube, entries):
            return self._put_tied(tube, entries, now)
        if len(entries) == 1 and not (entries[0].delay or tube.capacity or tube.kind.per_utube):
            return self._put_one(tube, entries[0], now)
        delayed = sum(1 for entry in entries if entry.delay)
        values = [records.row(tube, place, entry) for place, entry in enumerate(entries, 1)]
        limits = f"{sql(tube.capacity)}, {sql(self._moment(now))}"
        reserve = f"CALL penstock_reserve({tube.no}, {len(entries)}, {delayed}, {limits})"
        with self._refusals(tube, len(entries)):
            rows = self._db.run(lambda link: put(link, tube, reserve, values), committed=True)
        return self._stored(tube, entries, rows)

    def _put_one(self, tube: Tube, entry: Entry, now: int | None) -> Stored:
        with self._refusals(tube):
            id, moment = make_plain_put(tube, entry, self._moment(now)).run(self._db, entry.payload)
        record = records.stored(tube, id, entry, self._heard(moment), None)
        return Stored([record], Effects([Event(tube.no, "put", record)], {tube.no: 1}))

    def plain_put(self, tube: Tube, entry: Entry) -> Callable[[bytes], Record | None] | None:
        if self._clock is not None or not stands_alone(tube, entry):
            return None
        plain = make_plain_put(tube, entry, None)

        def put(payload: bytes) -> Record:
            try:
                id, moment = plain.run(self._db, payload)
            except Refused:
                with self._refusals(tube):
                    raise
            expires = None if entry.ttl is None else moment + entry.ttl
            return Record(
                id, "r", entry.rank1.base, entry.rank2.base, entry.pri, entry.utube, 0, 0, moment, None, expires,
                expires, entry.ttr, entry.max_attempts, None, None, entry.callback, payload,
            )  # fmt: skip

        return put

    def _stored(self, tube: Tube, entries: Sequence[Entry], rows: Rows) -> Stored:
        report = Report()
        _, last, moment, _ = rows[0]
        moment = self._heard(int(moment))
        seen = {id: (state, rank2) for what, id, state, rank2 in rows if what == "state"}
        made = [
            records.stored(tube, id, entry, moment, seen.get(id)) for id, entry in enumerate(entries, int(last) + 1)
        ]
        if tube.kind.per_utube:
            report.swept(rows, moment)
        else:
            report.readied(tube.no, sum(1 for record in made if record.state == "r"))
        report.effects.events += [Event(tube.no, "put", record) for record in made]
        return Stored(made, report.effects)

    def settle(self, tube: Tube, moves: Sequence[Move], *, brief: bool = False, now: int | None = None) -> Settled:
        if not moves:
            return Settled([], Effects())
        brief = brief and tube.kind.leased and are_acks(tube, moves)
        with self._refusals(tube):
            rows = self._db.call((acking if brief else settling)(tube, moves, self._moment(now)))
        if brief and (gone := acked(moves, rows)) is not None:
            found = [GONE if move.id in gone else None for move in moves]
            return Settled(found, Effects(removed={tube.no: len(gone)} if gone else {}))
        moment = moment_of(rows)
        report = Report()
        report.swept(rows, moment)
        return Settled(report.settled(tube.no, moves, rows, moment), report.effects)

    def kick(self, tube: Tube, count: int, *, now: int | None = None) -> Settled:
        return self._sweep(tube, "kick", count, now)

    def release_all(self, tube: Tube, *, now: int | None = None) -> Settled:
        return self._sweep(tube, "release", 0, now)

    def _sweep(self, tube: Tube, what: str, count: int, now: int | None) -> Settled:
        with self._refusals(tube):
            rows = self._db.call(f"CALL penstock_sweep_all({tube.no}, '{what}', {count}, {sql(self._moment(now))})")
        mark = next(place for place, row in enumerate(rows) if row[0] == "mark")
        moment = int(rows[mark][1])
        report = Report()
        report.swept(rows[:mark], moment)
        done = report.swept(rows[mark:], moment)
        return Settled([record for _, record in done], report.effects)

    def advance(self, tube: Tube, *, limit: int = ADVANCE_STEP, now: int | None = None) -> Advanced:
        with self._refusals(tube):
            rows = self._db.call(f"CALL penstock_advance({tube.no}, {limit}, {sql(self._moment(now))})")
        _, moment, wait_ms, more = rows[-1]
        self._heard(int(moment))
        report = Report()
        report.swept(rows, int(moment))
        return Advanced(bool(more), wait_ms, report.effects)

    def truncate(self, tube: Tube, *, now: int | None = None) -> Settled:
        """As the contract says; a task put while it runs has a higher id than the last one seen first."""
        last = self._last_id(tube)
        report = Report()
        gone: list[Record] = []
        while True:
            rows = self._db.call(
                f"CALL penstock_truncate({tube.no}, {last}, {tubes.REMOVE_STEP}, {sql(self._moment(now))})"
            )
            _, moment, count, _ = rows[-1]
            done = report.swept(rows, int(moment))
            gone += [record for change, record in done if change.events == ("delete",)]
            if not count:
                gone.sort(key=lambda record: record.id)
                return Settled(list(gone), report.effects)

    def _last_id(self, tube: Tube) -> int:
        rows = self._db.read(Q.last_id, (tube.no,))
        if not rows:
            raise self._no_such_tube(tube)
        return int(rows[0][0])

    def get(self, tube: Tube, ids: Sequence[int], *, now: int | None = None) -> list[Record | None]:
        moment = self.now() if now is None else now
        with self._refusals(tube):
            rows = self._db.run(lambda link: self._look(link, tube, ids), safe=True)
        found: list[Record] = [make_record(*row) for row in rows]
        there = {record.id: record for record in found if not records.expired(record, moment)}
        return [there.get(id) for id in ids]

    def _look(self, link: Link, tube: Tube, ids: Sequence[int]) -> Rows:
        if not link.rows(Q.last_id, (tube.no,)):
            raise tube_missing(tube)
        possible = tuple(id for id in ids if 0 < id <= _MAX_ID)
        return link.rows(several(Q.records, len(possible)), (tube.no, *possible)) if possible else []

    def find(
        self, tube: Tube, status: str | None, after: int | None, limit: int, *, now: int | None = None
    ) -> list[Record]:
        moment = self.now() if now is None else now
        low = min(max(after or 0, 0), _MAX_ID)
        if status is None or status == "r":
            rows = self._db.read(Q.find_ready if status else Q.find_all, (tube.no, low, moment, limit))
        else:
            rows = self._db.read(Q.find_aside, (tube.no, low, *_STATES[status], moment, limit))
        if not rows:
            self._last_id(tube)
        return [make_record(*row) for row in rows]

    def count(self, tube: Tube) -> Counts:
        with self._refusals(tube):
            return checks.make_counts(tube, self._db.read(Q.counts % {"tube": tube.no})[0])

    # sessions

    def join(self, presence: base.Presence, session: str | None, ttr: int, *, now: int | None = None) -> base.Joined:
        return self._db.run(lambda link: sessions.join(link, presence, session, ttr, self._fixed(link, now)))

    def beat(self, handles: Sequence[str], *, now: int | None = None) -> set[str]:
        return self._db.run(lambda link: sessions.beat(link, handles, self._fixed(link, now)), safe=True)

    def leave(self, handles: Sequence[str], *, locus: str | None = None, now: int | None = None) -> Effects:
        def leave(link: Link) -> Effects:
            moment = self._fixed(link, now)
            report = Report()
            report.swept(sessions.leave(link, handles, locus, moment), moment)
            return report.effects

        return self._db.run(leave, safe=True) if handles else Effects()

    def sessions(self, *, now: int | None = None) -> list[base.SessionRecord]:
        return self._db.run(lambda link: sessions.describe(link, self._fixed(link, now)), safe=True)

    # looking closer

    def ahead(self, tube: Tube, record: Record) -> int:
        one, two = record.rank1, record.rank2
        return int(self._db.read(Q.ahead, (tube.no, one, one, two, one, two, record.id))[0][0])

    def lane(self, tube: Tube, utube: str) -> base.Lane:
        rows = self._db.read(Q.lane, (tube.no, utube))
        return base.Lane(utube, *rows[0]) if rows else base.Lane(utube, 0, 0, 0)

    def lane_holders(self, tube: Tube, utube: str, limit: int) -> list[Record]:
        return [make_record(*row) for row in self._db.read(Q.lane_holders, (tube.no, utube, limit))]

    def owner(self, session: int) -> base.SessionRecord | None:
        return self._db.run(lambda link: sessions.describe_one(link, session, self._fixed(link, None)), safe=True)

    def check(self, repair: bool, *, now: int | None = None) -> list[base.Finding]:
        def look(link: Link) -> list[base.Finding]:
            if not repair:
                link.change(ONE_MOMENT, ())
            return checks.check(link, self._fixed(link, now), repair=repair)

        return self._db.run(look, safe=True)
