"""Sessions in SQLite: who takes tasks, through which handles, and what happens when they go.

A session lives while it has a handle, and `ttr` longer. Every function is part of a transaction of the store's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from uuid import uuid4

import apsw

from penstock.core.lifecycle import came_back
from penstock.core.options import Tube
from penstock.core.task import Record
from penstock.store.base import LAPSE_MS, Effects, Joined, Presence, SessionRecord, lapsed
from penstock.store.sqlite.lanes import Q
from penstock.store.sqlite.step import Step

LoadTubes = Callable[[apsw.Connection], list[Tube]]


def join(db: apsw.Connection, presence: Presence, session: str | None, ttr: int, now: int) -> Joined:
    """Begin a session or join a live one."""
    if session is None:
        session = str(uuid4())
        no = db.execute(Q.add_session, (session, ttr)).get
    else:
        row = db.execute(Q.get_session, (session,)).get
        if row is None or _end(db, row) <= now:
            raise lapsed(session)
        no = row[0]
        db.execute(Q.set_until, (no, None))
    where = (presence.handle, no, presence.host, presence.pid, presence.locus, now, now + LAPSE_MS)
    db.execute(Q.add_handle, where)
    return Joined(no, session)


def _end(db: apsw.Connection, row: tuple[int, str, int, int | None]) -> int:
    """When a session ends if nobody beats or joins it."""
    no, _, ttr, until = row
    return int(db.execute(Q.last_lapse, (no,)).get) + ttr if until is None else until


def beat(db: apsw.Connection, handles: Iterable[str], now: int) -> set[str]:
    """Renew those handles that still count."""
    rows = (db.execute(Q.beat, (handle, now, now + LAPSE_MS)).get for handle in handles)
    return {row for row in rows if row is not None}


def leave(db: apsw.Connection, handle: str, session: int, now: int) -> None:
    """One handle goes; the last one sets the session's end, which `end_lapsed` carries out."""
    presence = db.execute(Q.forget_handle, (handle,)).get
    db.execute(Q.forget_waiting_handle, (handle,))
    if db.execute(Q.has_handles, (session,)).get is None:
        row = db.execute(Q.session_by_no, (session,)).get
        if row is not None:
            db.execute(Q.linger, (session, now + row[2], *presence))


def end_lapsed(db: apsw.Connection, load_tubes: LoadTubes, now: int, effects: Effects) -> None:
    """End the handles whose heartbeat lapsed, then the sessions whose time is over; their tasks are released."""
    for handle, session, until in list(db.execute(Q.lapsed_handles, (now,))):
        leave(db, handle, session, until)
    for (session,) in list(db.execute(Q.ended_sessions, (now,))):
        for tube in load_tubes(db):
            _release_held(db, tube, session, now, effects)
        db.execute(Q.forget_session, (session,))


def _release_held(db: apsw.Connection, tube: Tube, session: int, now: int, effects: Effects) -> None:
    rows = list(db.execute(Q.held, (tube.no, session)))
    if rows:
        step = Step(db, tube, now, effects)
        for record in (Record(*row) for row in rows):
            step.apply(record, came_back(record, now, "release"))
        step.finish()


def describe(db: apsw.Connection, no: int, id: str, tubes: list[Tube], now: int) -> SessionRecord | None:
    """A session for people; None when it has ended."""
    presence = db.execute(Q.session_presence, (no, now)).get
    if presence is None:
        return None
    host, pid, beat = presence
    held = [(tube.name, task) for tube in tubes for (task,) in db.execute(Q.held_ids, (tube.no, no))]
    waits = [name for (name,) in db.execute(Q.waits_of, (no,))]
    return SessionRecord(id, host, pid, beat, held, waits)
