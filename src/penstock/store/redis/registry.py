"""The registry of all sessions, in its own slot, and their mirrors in the tubes they take from.

A script sees only one slot, so each tube keeps what it needs to decide who may take and whose leases end. The registry
changes a session first, then updates the tubes that know the session; each of these calls is idempotent. After a crash
in between, a session that was left ends in each tube when its last heartbeat lapses.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from uuid import uuid4

import msgspec

from penstock.core.options import Tube
from penstock.core.results import Joined, Presence, SessionRecord, lapsed
from penstock.engine.sessions import LAPSE_MS
from penstock.store.redis.encoding import task_id
from penstock.store.redis.redis_connection import Argument, Reply
from penstock.store.redis.script_runner import SESSIONS, ScriptRunner
from penstock.store.redis.tubes import Tubes


class StoredHandle(msgspec.Struct):
    """A handle of a session as the registry keeps it."""

    host: str
    pid: int
    beat: int


class StoredSession(StoredHandle):
    """A session, with its last heartbeat. An empty Lua table may arrive as a list or as a map."""

    id: str
    handles: dict[str, StoredHandle] | list[int]

    def shown(self, held: list[tuple[str, int]], waits: list[str]) -> SessionRecord:
        """The `SessionRecord` of this session, with its newest handle."""
        handles = self.handles.values() if isinstance(self.handles, dict) else ()
        newest = max(handles, key=lambda handle: handle.beat, default=self)
        return SessionRecord(self.id, newest.host, newest.pid, newest.beat, held, waits)


# A handle that was changed: its id, its session, when it lapses (0: it is gone), the session's end and its tubes.
_Changed = tuple[bytes, int, int, int, list[int]]
_session = msgspec.msgpack.Decoder(StoredSession).decode


class Registry:
    """The sessions of one store."""

    def __init__(self, runner: ScriptRunner, tubes: Tubes) -> None:
        self._runner = runner
        self._tubes = tubes

    def join(self, presence: Presence, session: str | None, ttr: int) -> Joined:
        """See `Store.join`."""
        where = (presence.handle, presence.host, presence.pid, presence.locus)
        _, no, *rest = self._call("join_session", *where, session or "", ttr, str(uuid4()))
        if not no:
            raise lapsed(session)
        id, over, tubes = rest
        self._update({tube: ["", 0, no, over] for tube in tubes})
        return Joined(no, id.decode())

    def beat(self, handles: Sequence[str]) -> set[str]:
        """See `Store.beat`."""
        return {handle.decode() for handle, *_ in self._change("beat", "", handles)[1]}

    def leave(self, handles: Sequence[str], locus: str | None) -> list[Tube]:
        """End these handles, as `Store.leave` does. Returns the tubes where sessions have ended, which may hold tasks
        there."""
        moment, left = self._change("leave", "*" if locus is None else locus, handles)
        return [tube for _, _, _, over, tubes in left if over <= moment for tube in self._named(tubes)]

    def _change(self, verb: str, at: str | int, handles: Sequence[str]) -> tuple[int, list[_Changed]]:
        """Change handles, and update the tubes of their sessions. Returns the time, and the handles found."""
        moment, *found = self._call("change_handles", verb, at, *handles)
        by_tube: dict[int, list[Argument]] = {}
        for handle, no, lapse, over, tubes in found:
            for tube in tubes:
                by_tube.setdefault(tube, []).extend((handle, lapse, no, over))
        self._update(by_tube)
        return moment, found

    def _update(self, by_tube: Mapping[int, Sequence[Argument]]) -> None:
        moment = self._runner.moment()
        self._runner.servers.run_all(
            [self._runner.tag_request("update_sessions", tube, moment, *words) for tube, words in by_tube.items()]
        )

    def enlist(self, handle: str, tube: Tube) -> tuple[int, int, int] | None:
        """Register a handle with a tube. Returns its session, its lapse and the session's end; None if it is dead."""
        _, *found = self._call("change_handles", "take", tube.no, handle)
        return found[0][1:4] if found else None

    def sessions(self, no: int | None) -> list[SessionRecord]:
        """See `Store.sessions`."""
        if no is not None:
            stored = self._runner.command(SESSIONS, "sessions", b"HGET", no)
            return [] if stored is None else [_session(stored).shown([], [])]
        self.beat(())
        pairs = self._runner.command(SESSIONS, "sessions", b"HGETALL")
        sessions = {int(no): _session(stored) for no, stored in zip(pairs[::2], pairs[1::2], strict=True)}
        of_handle = {handle: no for no, session in sessions.items() for handle in session.handles}
        held, waits = defaultdict[int, list[tuple[str, int]]](list), defaultdict[int | None, set[str]](set)
        tubes = self._tubes.stored()
        taken = self._runner.command_each(tubes, "taken", b"ZRANGE", 0, -1, b"WITHSCORES")
        waiting = self._runner.command_each(tubes, "waits", b"HKEYS")
        for tube, tasks, handles in zip(tubes, taken, waiting, strict=True):
            for member, owner in zip(tasks[::2], tasks[1::2], strict=True):
                held[int(float(owner))].append((tube.name, tube.public_id(task_id(member))))
            for handle in handles:
                waits[of_handle.get(handle.decode())].add(tube.name)
        return [session.shown(sorted(held[no]), sorted(waits[no])) for no, session in sorted(sessions.items())]

    def _call(self, name: str, *arguments: Argument) -> Reply:
        moment = self._runner.moment()
        return self._runner.on_tag(name, SESSIONS, moment, LAPSE_MS, *arguments, idempotent=True)

    def _named(self, numbers: Sequence[int]) -> list[Tube]:
        """Return the existing tubes among these, by name. Tasks that expire with a session reply in this order."""
        known = self._tubes.by_no
        if not known.keys() >= set(numbers):
            known.update((tube.no, tube) for tube in self._tubes.stored())
        found = [known[no] for no in numbers if no in known]
        return sorted(found, key=lambda tube: tube.name)
