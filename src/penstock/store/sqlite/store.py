"""The store in one SQLite file: several threads and processes, one write transaction per call."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import apsw

from penstock.core import lifecycle
from penstock.core.address import linked
from penstock.core.kind import Kind
from penstock.core.lifecycle import Move
from penstock.core.options import Tube
from penstock.core.task import Entry, Record
from penstock.store import base
from penstock.store.base import ADVANCE_STEP, Effects, Event, Settled, Stored, Taken
from penstock.store.refusals import refuse_busy, tube_exists, tube_full
from penstock.store.sqlite import checks, handouts, sessions, tubes
from penstock.store.sqlite.advancing import AdvancingCalls, until
from penstock.store.sqlite.bound import BoundConnection
from penstock.store.sqlite.connection import Connection
from penstock.store.sqlite.describe import describe
from penstock.store.sqlite.dropping import remove_hidden_step
from penstock.store.sqlite.lanes import Q
from penstock.store.sqlite.leasing import ack_plain, lease
from penstock.store.sqlite.linked import LinkedCalls
from penstock.store.sqlite.looking import LookingCalls
from penstock.store.sqlite.moving import MovingCalls
from penstock.store.sqlite.puts import plain_put, put_one, put_planned, total_of
from penstock.store.sqlite.schema import migrate
from penstock.store.sqlite.step import Step, no_such_tube
from penstock.store.sqlite.unleased import UnleasedCalls
from penstock.store.sqlite.watching import Watch

T = TypeVar("T")
# Above every rank, for a take without max_pri.
_ANY_RANK = 2**62


def wall_clock() -> int:
    """The host's clock in milliseconds: all users of one file are on one host."""
    return time.time_ns() // 1_000_000


class SqliteStore(AdvancingCalls, LinkedCalls, UnleasedCalls, MovingCalls, LookingCalls):
    """Keeps the contract of `store.base` in one file."""

    shared = True
    remote = False

    def __init__(self, path: str, *, durable: bool = True, clock: Callable[[], int] | None = None) -> None:
        self._db = Connection(os.path.abspath(path), durable=durable)
        self._clock = clock or wall_clock
        self._watch = Watch(self._db.path, self._db.data_version, lambda: self._db.writes)
        try:
            self.identity = f"sqlite:{migrate(self._db)}"
            self._remove_hidden(Effects())
        except BaseException:
            self._db.close()
            raise

    def close(self) -> None:
        self._watch.close()
        self._db.close()

    def now(self) -> int:
        return self._clock()

    def bind(self, connection: object) -> SqliteStore:
        bound = object.__new__(SqliteStore)
        bound._db = BoundConnection(self._db.path, connection)
        bound._clock = self._clock
        bound.identity = self.identity
        return bound

    def describe(self) -> base.Description:
        with self._db.reading as db:
            schema = int(db.execute(Q.get_meta, ("schema",)).get)
            return describe(db, self._db.path, self._db.durable.synchronous, schema)

    def wait(self, wake: threading.Event, seconds: float, *, watch: bool) -> bool:
        if watch:
            return self._watch.wait(wake, seconds)
        wake.wait(seconds)
        return False

    # tubes

    def save_tube(self, name: str, kind: Kind, given: dict[str, object], *, exist_ok: bool) -> Tube:
        with self._db.durable as db:
            row = db.execute(Q.get_tube, (name,)).get
            if row is None:
                tubes.must_not_hide(db, name)
                return tubes.add(db, name, kind, given)
            if not exist_ok:
                raise tube_exists(name)
            return tubes.load(row)

    def load_tube(self, name: str) -> Tube | None:
        with self._db.reading as db:
            row = db.execute(Q.get_tube, (name,)).get
            if row is None:
                tubes.must_not_hide(db, name)
            return tubes.load(row) if row else None

    def load_tubes(self) -> list[Tube]:
        with self._db.reading as db:
            return tubes.load_all(db)

    def drop_tube(self, tube: Tube) -> Effects:
        with self._write(tube) as db:
            now = self._clock()
            step = self._step(db, tube, now, Effects())
            sessions.end_lapsed(db, tubes.load_all, now, step.effects)
            while self._advance(step, ADVANCE_STEP):
                pass
            step.finish()
            taken, waiting = (db.execute(query, (tube.no,)).get for query in (Q.any_taken, Q.any_waiting))
            refuse_busy(tube, taken=taken, waiting=waiting)
            db.execute(Q.hide_tube, (tube.no,))
            db.execute(Q.forget_counter, (tube.no,))  # so that every later step finds the tube gone
            effects = step.effects
        self._remove_hidden(effects)
        return effects

    def _remove_hidden(self, effects: Effects) -> None:
        more = True
        while more:
            with self._db.relaxed as db:
                more = remove_hidden_step(db, self._clock(), effects)

    def pause_tube(self, tube: Tube, paused: bool) -> None:
        with self._write(tube) as db:
            if db.execute(Q.set_paused, (tube.no, int(paused))).get is None:
                raise no_such_tube(db, tube)

    def paused(self, tube: Tube) -> bool:
        with self._db.reading as db:
            return bool(_known(db, tube, db.execute(Q.is_paused, (tube.no,)).fetchone())[0])

    # tasks

    def put(self, tube: Tube, entries: Sequence[Entry], *, now: int | None = None) -> Stored:
        if len(entries) == 1:
            moment = self._clock() if now is None and self._clock is not wall_clock else now
            record = put_one(tube, entries[0], self._db, self._write(tube), moment)
            if record is not None:
                return Stored([record], Effects([Event(tube.no, "put", record)], {tube.no: 1}))
        with self._write(tube) as db:
            step = Step(db, tube, self._clock() if now is None else now)
            if linked(entries):
                return Stored(put_planned(step, entries), step.finish())
            if tube.capacity is not None and (total := total_of(step)) + len(entries) > tube.capacity:
                raise tube_full(tube, total, len(entries))
            return Stored(step.store(entries), step.finish())

    def plain_put(self, tube: Tube, entry: Entry) -> Callable[[bytes], Record | None] | None:
        return plain_put(tube, entry, self._db, self._write(tube)) if self._clock is wall_clock else None

    def take(
        self, tubes: Sequence[Tube], count: int, handle: str, *, max_pri: int | None = None,
        blocked: base.Blocked = None, now: int | None = None,
    ) -> Taken:  # fmt: skip
        durable = tubes[0]
        if durable.temporary:
            durable = next((tube for tube in tubes if not tube.temporary), durable)
        with self._write_many(durable, count) as db:
            now = self._clock() if now is None else now
            effects = Effects()
            nexts: list[int] = []
            for tube in tubes:
                step = Step(db, tube, now, effects)
                session, paused, moving, next_at = self._look(step, handle)
                if session is None:
                    return Taken(None, [], None, False, effects)
                nexts += next_at
                if paused:
                    continue
                if tube.kind.leased:
                    query = Q.to_lease_not_cancelled if moving else Q.to_lease
                    records = lease(step, query, count, session, _ANY_RANK if max_pri is None else max_pri)
                else:
                    records = handouts.hand_out(step, count)
                if records:
                    step.finish()
                    if blocked is not None:
                        self._register(db, handle, tubes, -1 if blocked in ("stay", "leave") else 0)
                    return Taken(tube, records, until(nexts, now), True, effects)
                if (moment := handouts.next_hand_out(step)) is not None:
                    nexts.append(moment)
            self._register(db, handle, tubes, {"enter": 1, "leave": -1}.get(blocked or "", 0))
            return Taken(None, [], until(nexts, now), True, effects)

    def _look(self, step: Step, handle: str) -> tuple[int | None, int, int, list[int]]:
        """Advance the tube if anything is due; the caller's session, if it lives, whether the tube is paused and
        has groups that tasks must follow, and the next moments."""
        row = _known(step.db, step.tube, step.execute(Q.look, (step.tube.no, handle)).get)
        at, lapse, end, session, paused, moving = row
        soonest = lapse if end is None or (lapse is not None and lapse < end) else end
        if soonest is not None and soonest <= step.now:
            sessions.end_lapsed(step.db, tubes.load_all, step.now, step.effects)
            session = step.execute(Q.get_handle, (handle,)).get
        elif (at is None or at > step.now) and not moving:
            return session, paused, 0, [moment for moment in (at, soonest) if moment is not None]
        self._advance(step, ADVANCE_STEP, moving=moving)
        step.finish()
        at, lapse, end, _, _, moving = step.execute(Q.look, (step.tube.no, handle)).get
        moments = [moment for moment in (at, lapse, end, 0 if moving else None) if moment is not None]
        return session, paused, moving, moments

    def _register(self, db: apsw.Connection, handle: str, tubes: Sequence[Tube], by: int) -> None:
        for tube in tubes if by else ():
            if by > 0:
                db.execute(Q.add_waiting, (handle, tube.no))
            else:
                db.execute(Q.drop_waiting, (handle, tube.no))
                db.execute(Q.forget_done_waiting, (handle, tube.no))

    def settle(self, tube: Tube, moves: Sequence[Move], *, brief: bool = False, now: int | None = None) -> Settled:
        with self._write_many(tube, len(moves)) as db:
            step = Step(db, tube, self._clock() if now is None else now)
            acked = ack_plain(step, moves) if brief else None
            records = acked or [None] * len(moves)
            if None in records:
                records = [one or self._settled(step, move) for one, move in zip(records, moves, strict=True)]
            if not any(records):  # else the counters tell whether the tube lives
                self._must_live(db, tube)
            return Settled(records, step.finish())

    def _settled(self, step: Step, move: Move) -> Record | None:
        record = step.record(move.id) if move.name is None else step.named(move.name)
        if record is None:
            return None
        change = lifecycle.decide(record, move, step.now)
        return None if change is None else step.apply(record, change)

    # sessions

    def join(self, presence: base.Presence, session: str | None, ttr: int, *, now: int | None = None) -> base.Joined:
        with self._db.relaxed as db:
            return sessions.join(db, presence, session, ttr, self._clock() if now is None else now)

    def beat(self, handles: Sequence[str], *, now: int | None = None) -> set[str]:
        with self._db.relaxed as db:
            return sessions.beat(db, handles, self._clock() if now is None else now)

    def leave(self, handles: Sequence[str], *, locus: str | None = None, now: int | None = None) -> Effects:
        with self._db.durable as db:
            now = self._clock() if now is None else now
            effects = Effects()
            sessions.end_lapsed(db, tubes.load_all, now, effects)  # what lapsed before ended then, not now
            for handle in handles:
                row = db.execute(Q.get_locus, (handle,)).get
                if row is not None and locus in (None, row[1]):
                    sessions.leave(db, handle, row[0], now)
            sessions.end_lapsed(db, tubes.load_all, now, effects)
            return effects

    def sessions(self, *, now: int | None = None) -> list[base.SessionRecord]:
        with self._db.reading as db:
            now = self._clock() if now is None else now
            all_tubes = tubes.load_all(db)
            rows = list(db.execute(Q.all_sessions))
            found = (sessions.describe(db, no, id, all_tubes, now) for no, id, _, _ in rows)
            return [session for session in found if session is not None]

    def check(self, repair: bool, *, now: int | None = None) -> list[base.Finding]:
        with self._db.durable as db:
            return checks.check(db, self._clock() if now is None else now, repair=repair)


def _known(db: apsw.Connection, tube: Tube, row: T | None) -> T:
    if row is None:
        raise no_such_tube(db, tube)
    return row
