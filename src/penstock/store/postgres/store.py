"""The store in PostgreSQL: every method is one call of a function in the database."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from functools import partial
from random import getrandbits
from typing import cast
from uuid import uuid4

import msgspec
import psycopg

from penstock.core.kind import DELIVER, Kind
from penstock.core.lifecycle import Move
from penstock.core.options import Tube, make_tube
from penstock.core.task import Entry, Record
from penstock.errors import NoSuchTube, OutcomeUnknown, StoreUnavailable
from penstock.store import base
from penstock.store.base import ADVANCE_STEP, LAPSE_MS, Advanced, Counts, Effects, Settled, Stored, Taken
from penstock.store.moving import named
from penstock.store.postgres import rows, schema
from penstock.store.postgres.arrays import payloads
from penstock.store.postgres.bound import BoundConnection
from penstock.store.postgres.connection import Connections, Row
from penstock.store.postgres.describe import describe
from penstock.store.postgres.linked import LinkedCalls
from penstock.store.postgres.listener import PROCESS, BoundTeller, Listener, Teller
from penstock.store.postgres.location import locate
from penstock.store.postgres.moving import MovingCalls
from penstock.store.postgres.plain import plain_put
from penstock.store.postgres.unleased import UnleasedCalls
from penstock.store.refusals import tube_exists, tube_full
from penstock.store.sql.waiters import Waiter, Waiters

log = logging.getLogger("penstock")

# A waiting take tries so long to reach a server that is away, and so often.
_AWAY_SECONDS = 1.0
# Above every rank, for a take without max_pri.
_ANY_RANK = 2.0**62
# A put that was under way when a taker registered saw no one to notify: the taker looks once more, so much later.
_SETTLING_MS = 25


class _Asked(msgspec.Struct, frozen=True):
    """What a take asks for; `patience` in seconds, where it is not the usual."""

    tubes: list[int]
    count: int
    handle: str
    top: float
    blocked: base.Blocked
    waiter: Waiter
    now: int | None
    patience: float | None


class PostgresStore(LinkedCalls, UnleasedCalls, MovingCalls):
    """Keeps the contract of `store.base` and its parts in one schema of a database."""

    shared = True
    remote = True

    def __init__(self, url: str, *, clock: Callable[[], int] | None = None) -> None:
        location = locate(url)
        self._connections = Connections(location)
        self._clock = clock
        self._ask = schema.queries(location)
        self._lost: list[tuple[_Asked, int, int]] = []  # takes without an answer: their numbers, those of who waits
        self._waiters = Waiters()
        self._teller = Teller(location.notify)
        self._listener = Listener(self._connections) if location.notify else None
        with self._connections.connect() as db:
            self.identity = f"postgresql:{schema.migrate(db, location)}"

    def close(self) -> None:
        if self._listener is not None:
            self._listener.close()
        self._connections.close()

    def bind(self, connection: object) -> PostgresStore:
        bound = object.__new__(PostgresStore)
        bound._connections = BoundConnection(self._connections, connection, self._ask.bind, self.identity)
        bound._clock, bound._ask, bound._teller = self._clock, self._ask, BoundTeller(self._teller.on)
        bound._listener, bound.identity, bound._lost, bound._waiters = None, self.identity, [], Waiters()
        return bound

    def describe(self) -> base.Description:
        return describe(self._read(self._ask.describe, ())[0], self._connections.location)

    def now(self) -> int:
        return self._clock() if self._clock else cast(int, self._read(self._ask.now, ())[0][0])

    def wait(self, wake: threading.Event, seconds: float, *, watch: bool) -> bool:
        if self._listener is not None:
            return self._listener.wait(wake, seconds, watch=watch)
        wake.wait(max(seconds, 0))
        return False

    # tubes

    def save_tube(self, name: str, kind: Kind, given: dict[str, object], *, exist_ok: bool) -> Tube:
        new = make_tube(0, name, kind, given)
        made, *row = self._call(new, self._ask.save_tube, (name, *rows.tube_row(kind, given)), twice=True)[0]
        if not made and not exist_ok:
            raise tube_exists(name)
        return rows.tube(tuple(row))

    def load_tube(self, name: str) -> Tube | None:
        found = [rows.tube(row) for row in self._read(self._ask.get_tube, (name, name, name))]
        return named(found, name)

    def load_tubes(self) -> list[Tube]:
        return [rows.tube(row) for row in self._read(self._ask.all_tubes, ())]

    def drop_tube(self, tube: Tube) -> Effects:
        return self._gather(
            self._call(tube, self._ask.drop_tube, (tube.no, self._time(None), self._teller.name))
        ).effects

    def pause_tube(self, tube: Tube, paused: bool) -> None:
        self._call(tube, self._ask.pause, (tube.no, paused, self._teller.name), twice=True)

    def paused(self, tube: Tube) -> bool:
        found = self._read(self._ask.paused, (tube.no,))
        if not found:
            raise self._no_such_tube(tube)
        return bool(found[0][0])

    # tasks

    def put(self, tube: Tube, entries: Sequence[Entry], *, now: int | None = None) -> Stored:
        effects = Effects()
        if not entries:
            return Stored([], effects)
        if rows.linked(entries):
            return self._put_linked(tube, entries, now)
        first, tail = entries[0], (self._time(now), self._teller.name)
        if tube.kind.hand_out == DELIVER:
            (row,) = self._call(tube, self._ask.push, (tube.no, *rows.put_rows(entries), *tail))
        elif len(entries) == 1:
            (row,) = self._call(tube, self._ask.put_one, (tube.no, first.payload, *rows.shape(first), *tail))
        elif rows.alike(entries):
            data = payloads([entry.payload for entry in entries])
            (row,) = self._call(tube, self._ask.put_alike, (tube.no, data, *rows.shape(first), *tail))
        else:
            (row,) = self._call(tube, self._ask.put, (tube.no, *rows.put_rows(entries), *tail))
        if row[1] is None:
            raise tube_full(tube, cast(int, row[2]), len(entries))
        if row[5]:
            self._teller.told()
        records = rows.made(entries, row)
        effects.events = [base.Event(tube.no, "put", record) for record in records]
        ready = sum(record.state == "r" for record in records)
        if ready:
            effects.readied[tube.no] = ready
        return Stored(records, effects)

    def plain_put(self, tube: Tube, entry: Entry) -> Callable[[bytes], Record | None] | None:
        query, moment = self._ask.put_plain, partial(self._time, None)
        return plain_put(self._connections, query, tube, entry, moment, self._teller)

    def take(
        self, tubes: Sequence[Tube], count: int, handle: str, *, max_pri: int | None = None,
        blocked: base.Blocked = None, now: int | None = None,
    ) -> Taken:  # fmt: skip
        top = _ANY_RANK if max_pri is None else float(max_pri)
        numbers = [tube.no for tube in tubes]
        waiter, patience = self._waiters.find(handle, numbers, blocked), _AWAY_SECONDS if blocked == "stay" else None
        asked = _Asked(numbers, count, handle, top, blocked, waiter, self._time(now), patience)
        effects = Effects()
        try:
            *found, last = self._taken(tubes[0], asked, effects)
        except NoSuchTube:
            for each in tubes:  # the call does not say which of them is gone
                self._must_not_hide(each.name)
            raise
        except StoreUnavailable as error:
            if blocked != "stay":
                raise
            self._waiters.keep(handle, numbers, waiter, waiter.counted)
            # Who waits goes on waiting: the server may be restarting. Whether its session lives, the next look tells.
            log.warning("a waiting take cannot look now (%s); trying again", error)
            return Taken(None, [], int(_AWAY_SECONDS * 1000), True, effects)
        records, others = rows.taken(found)
        self._gather(others, effects)
        tube = next(tube for tube in tubes if tube.no == found[-1][0]) if records else None
        if tube is not None:
            effects.events += [base.Event(tube.no, "take", record) for record in records]
        wait_ms = cast("int | None", last[4])
        if blocked in ("enter", "stay") and not records and last[2] == "alive":
            self._waiters.keep(handle, numbers, waiter)
        if blocked == "enter" and not records:
            wait_ms = _SETTLING_MS if wait_ms is None else min(wait_ms, _SETTLING_MS)
        return Taken(tube, records, wait_ms, last[2] == "alive", effects)

    def _taken(self, tube: Tube, asked: _Asked, effects: Effects) -> list[Row]:
        """The rows of a take. When the connection breaks, what it may have done is undone, and it begins anew."""
        while True:
            self._undo_lost(effects, asked.patience)
            call, number = getrandbits(63), asked.waiter.number
            values = (
                asked.tubes, asked.count, asked.handle, asked.top, call, asked.waiter.word(asked.blocked), number,
                PROCESS.name, self._teller.name, asked.now,
            )  # fmt: skip
            try:
                return self._call(tube, self._ask.take, values, patience=asked.patience)
            except OutcomeUnknown:
                self._lost.append((asked, call, number))

    def _undo_lost(self, effects: Effects, patience: float | None) -> None:
        """Undo takes whose answers were lost, so that no task is held by nobody, and nobody waits who does not."""
        while self._lost:
            lost = self._lost.pop()
            asked, call, number = lost
            values = (asked.tubes, asked.handle, call, number, self._time(None), self._teller.name)
            try:
                found = self._connections.call(self._ask.give_back, values, twice=True, patience=patience)
            except BaseException:
                self._lost.append(lost)
                raise
            asked.waiter.undo(number)
            self._gather(found, effects)

    def settle(self, tube: Tube, moves: Sequence[Move], *, brief: bool = False, now: int | None = None) -> Settled:
        tail = (self._time(now), self._teller.name)
        if not tube.kind.leased:
            found = self._settle_named(tube, moves, now)
        elif moves and rows.plain_acks(moves):
            found = self._call(tube, self._ask.ack, (tube.no, *rows.ack_rows(moves), moves[0].session, *tail, brief))
        else:
            query = self._ask.settle_telling if any(m.progress is not None for m in moves) else self._ask.settle
            found = self._call(tube, query, (tube.no, msgspec.json.encode(moves).decode(), *tail))
        gathered = self._gather(found)
        records: list[Record | None] = [None] * len(moves)
        for place, record in gathered.placed:
            records[place] = record
        return Settled(records, gathered.effects)

    def kick(self, tube: Tube, count: int, *, now: int | None = None) -> Settled:
        return self._sweep(tube, self._ask.kick, (tube.no, count, self._time(now), self._teller.name))

    def release_all(self, tube: Tube, *, now: int | None = None) -> Settled:
        return self._sweep(tube, self._ask.release_all, (tube.no, self._time(now), self._teller.name))

    def _sweep(self, tube: Tube, query: str, values: tuple[object, ...]) -> Settled:
        """A call that does what is due, then its own moves, which are numbered from 1."""
        gathered = self._gather(self._call(tube, query, values))
        return Settled([record for _, record in sorted(gathered.placed, key=_place)], gathered.effects)

    def advance(self, tube: Tube, *, limit: int = ADVANCE_STEP, now: int | None = None) -> Advanced:
        values = (tube.no, limit, self._time(now), self._teller.name)
        *found, last = self._call(tube, self._ask.advance, values, twice=True)
        return Advanced(last[2] == "more", cast("int | None", last[4]), self._gather(found).effects)

    def truncate(self, tube: Tube, *, now: int | None = None) -> Settled:
        effects = Effects()
        gone: list[Record | None] = []
        after, highest, found = 0, None, ADVANCE_STEP
        while found == ADVANCE_STEP:
            values = (tube.no, after, highest, ADVANCE_STEP, self._time(now), self._teller.name)
            *removed, last = self._call(tube, self._ask.truncate, values, twice=True)
            placed = self._gather(removed, effects).placed
            gone += [record for _, record in sorted(placed, key=lambda pair: pair[1].id)]
            found, highest, after = cast("tuple[int, int, int]", (last[1], last[4], last[12]))
        return Settled(gone, effects)

    def get(self, tube: Tube, ids: Sequence[int], *, now: int | None = None) -> list[Record | None]:
        found = self._call(tube, self._ask.get, (tube.no, list(ids), self._time(now)), twice=True)
        records = {record.id: record for record in map(rows.record, found)}
        return [records.get(id) for id in ids]

    def find(
        self, tube: Tube, status: str | None, after: int | None, limit: int, *, now: int | None = None
    ) -> list[Record]:
        values = (tube.no, status, max(after or 0, 0), limit, self._time(now))
        return [rows.record(row) for row in self._call(tube, self._ask.find, values, twice=True)]

    def count(self, tube: Tube) -> Counts:
        (row,) = self._call(tube, self._ask.count, (tube.no,), twice=True)
        return Counts(*(cast("int | None", number) or 0 for number in row[1:]))

    # sessions

    def join(self, presence: base.Presence, session: str | None, ttr: int, *, now: int | None = None) -> base.Joined:
        who = (presence.handle, presence.host, presence.pid, presence.locus)
        found = self._read(self._ask.join, (*who, session, str(uuid4()), ttr, LAPSE_MS, self._time(now)))
        if not found:
            raise base.lapsed(session)
        return base.Joined(*cast("tuple[int, str]", found[0]))

    def beat(self, handles: Sequence[str], *, now: int | None = None) -> set[str]:
        found = self._read(self._ask.beat, (list(handles), LAPSE_MS, self._time(now)))
        return {cast(str, row[0]) for row in found}

    def leave(self, handles: Sequence[str], *, locus: str | None = None, now: int | None = None) -> Effects:
        values = (list(handles), locus, self._time(now), self._teller.name)
        return self._gather(self._read(self._ask.leave, values)).effects

    def sessions(self, *, now: int | None = None) -> list[base.SessionRecord]:
        return [_session(row) for row in self._read(self._ask.sessions, (None, self._time(now)))]

    # looking closer

    def ahead(self, tube: Tube, record: Record) -> int:
        return cast(int, self._read(self._ask.ahead, (tube.no, record.rank1, record.rank2, record.id))[0][0])

    def lane(self, tube: Tube, utube: str) -> base.Lane:
        found = self._read(self._ask.lane, (tube.no, utube))
        return base.Lane(utube, *cast("tuple[int, int, int]", found[0] if found else (0, 0, 0)))

    def lane_holders(self, tube: Tube, utube: str, limit: int) -> list[Record]:
        return [rows.record(row) for row in self._read(self._ask.lane_holders, (tube.no, utube, limit))]

    def owner(self, session: int) -> base.SessionRecord | None:
        found = self._read(self._ask.sessions, (session, self._time(None)))
        return _session(found[0]) if found else None

    def check(self, repair: bool, *, now: int | None = None) -> list[base.Finding]:
        """As the contract says; who only looks sees one moment of all tables, while others go on writing."""
        steps = ((self._ask.stranded, (repair,)), (self._ask.check, (repair, self._time(now))))
        if repair:
            lost, found = (self._read(*step) for step in steps)
        else:
            lost, found = self._connections.transact(lambda db: _at_one_moment(db, steps))
        return [rows.lost(row) for row in lost] + [rows.finding(row) for row in found]


def _at_one_moment(db: psycopg.Connection, steps: Sequence[tuple[str, tuple[object, ...]]]) -> list[list[Row]]:
    db.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    return [db.execute(query, values, binary=True).fetchall() for query, values in steps]


def _place(pair: tuple[int, Record]) -> int:
    return pair[0]


def _session(row: Row) -> base.SessionRecord:
    id, host, pid, beat, tubes, ids, waits = cast(
        "tuple[str, str, int, int, list[str] | None, list[int] | None, list[str] | None]", row
    )
    held = list(zip(tubes or (), ids or (), strict=True))
    return base.SessionRecord(id, host, pid, beat, held, waits or [])
