"""Sessions in MySQL: who takes tasks, through which handles. Functions are part of a caller's transaction.

A session lives while it has a handle, and `ttr` longer. Who joins or leaves one locks its row first.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import uuid4

from penstock.store.base import LAPSE_MS, Joined, Presence, SessionRecord, lapsed
from penstock.store.mysql.pool import Link
from penstock.store.mysql.queries import Q, several
from penstock.store.mysql.wire import Rows


def join(link: Link, presence: Presence, session: str | None, ttr: int, now: int) -> Joined:
    """Begin a session or join a live one."""
    if session is None:
        session = str(uuid4())
        link.change(Q.add_session, (session, ttr))
        no = link.last_number
    else:
        no = _live(link, session, now)
        link.change(Q.rejoin, (no,))
    where = (presence.handle, no, presence.host, presence.pid, presence.locus, now, now + LAPSE_MS)
    link.change(Q.add_handle, where)
    return Joined(no, session)


def _live(link: Link, session: str, now: int) -> int:
    """The number of a session that has not come to its end."""
    for no, ttr, ends in link.rows(Q.lock_session, (session,)):
        if ends is None:
            ends = link.rows(Q.last_lapse, (no,))[0][0] + ttr
        if ends > now:
            return int(no)
    raise lapsed(session)


def beat(link: Link, handles: Sequence[str], now: int) -> set[str]:
    """Renew those handles that still count."""
    if not handles:
        return set()
    living = {id.decode() for (id,) in link.rows(several(Q.living, len(handles)), (*handles, now))}
    link.change(several(Q.beat, len(handles)), (now, now + LAPSE_MS, *handles, now))
    return living


def leave(link: Link, handles: Sequence[str], locus: str | None, now: int) -> Rows:
    """End these handles, and the sessions that ended with them; the rows of what was released."""
    known = {
        id.decode(): (session, place) for id, session, place in link.rows(several(Q.handles, len(handles)), handles)
    }
    for handle in handles:
        session, place = known.get(handle, (None, None))
        if session is not None and (locus is None or place.decode() == locus):
            link.packet(link.filled("CALL penstock_part(%s, %s, %s, NULL)", (handle, session, now)))
    return link.packet(link.filled("CALL penstock_end_lapsed(%s); CALL penstock_put_works(%s)", (now, now)))


def describe(link: Link, now: int) -> list[SessionRecord]:
    """The live sessions for people, oldest first."""
    present = {session: rest for session, *rest in link.rows(Q.presences, (now,))}
    held: dict[int, list[tuple[str, int]]] = {}
    for owner, tube, id in link.rows(Q.held):
        held.setdefault(owner, []).append((tube.decode(), id))
    waits: dict[int, list[str]] = {}
    for session, tube in link.rows(Q.waits):
        waits.setdefault(session, []).append(tube.decode())
    found = []
    for row in link.rows(Q.all_sessions):
        shown = _shown(row, present.get(row[0]), now, held.get(row[0], []), waits.get(row[0], []))
        if shown is not None:
            found.append(shown)
    return found


def describe_one(link: Link, no: int, now: int) -> SessionRecord | None:
    """One session, without what it holds and waits for."""
    present = {session: rest for session, *rest in link.rows(Q.presences, (now,))}
    for row in link.rows(Q.session_by_no, (no,)):
        return _shown(row, present.get(no), now, [], [])
    return None


def _shown(
    row: tuple[int, bytes, bytes | None, int, int, int | None], present: list[object] | None, now: int,
    held: list[tuple[str, int]], waits: list[str],
) -> SessionRecord | None:  # fmt: skip
    """None when no live handle speaks for it and its time is over."""
    _, id, host, pid, beat, ends = row
    if ends is not None and ends > now and host is not None:
        return SessionRecord(id.decode(), host.decode(), pid, beat, held, waits)
    if present is None:
        return None
    where, process, heard = present
    assert isinstance(where, bytes)
    assert isinstance(process, int)
    assert isinstance(heard, int)
    return SessionRecord(id.decode(), where.decode(), process, heard, held, waits)
