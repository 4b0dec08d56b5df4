"""How requests use the broker: tubes by name, without creating them, and sessions that outlive a request.

A session that callers name ends when no request has used it for its idle time. Requests that name no session share
the server's own.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ParamSpec, TypeVar

from penstock import aio
from penstock.broker.session import SessionHandle
from penstock.broker.tube_factory import find_tube, open_for_put
from penstock.errors import NotFound, PenstockError
from penstock.server.http.http_errors import Refused
from penstock.server.paging import MAX_LARGE_READS

P = ParamSpec("P")
R = TypeVar("R")

# Tasks to put: data and options.
ToPut = Sequence[tuple[object, Any]]

IDLE_SECONDS = 60.0
# Tube handles that are kept per session; beyond that they are opened again.
MAX_HANDLES = 10_000


@dataclass(eq=False)
class HttpSession:
    """A session as HTTP requests use it, with its tube handles."""

    session_handle: SessionHandle
    aio_session: aio.Session | None = None
    idle: float = 0.0
    used: float = 0.0
    busy: int = 0
    tubes: dict[str, aio.Tube] = field(default_factory=dict)


class Access:
    """Gives requests access to one broker: its tubes, sessions and threads."""

    def __init__(self, broker: aio.Broker, max_sessions: int) -> None:
        self.broker = broker
        self.stopping = asyncio.Event()
        self.large_reads = asyncio.Semaphore(MAX_LARGE_READS)
        #: Tube number -> name, for the tubes that were used.
        self.names: dict[int, str] = {}
        self._max_sessions = max_sessions
        self._own = HttpSession(broker.sync.session_handle)
        self._sessions: dict[str, HttpSession] = {}
        self._joining: dict[str, asyncio.Lock] = {}

    async def call(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a blocking call on one of the broker's threads."""
        run = self.broker.executor.call(partial(function, *args, **kwargs))
        try:
            return await run
        except asyncio.CancelledError:
            run.discard_result()
            raise

    # tubes

    async def tube(self, name: str, session: HttpSession | None = None, *, to_put: ToPut | None = None) -> aio.Tube:
        """The tube of that name for this session. With `to_put`, a missing tube is created; otherwise NoSuchTube."""
        session = session or self._own
        handle = session.tubes.get(name)
        if handle is None:
            runtime = self.broker.sync.runtime
            opening = find_tube if to_put is None else partial(open_for_put, items=to_put)
            handle = aio.Tube(self.broker.executor, await self.call(opening, runtime, session.session_handle, name))
            if len(session.tubes) >= MAX_HANDLES:
                session.tubes.clear()
            session.tubes[name] = handle
            self.names[handle.stored.no] = name
        return handle

    def forget(self, name: str) -> bool:
        """Forget the handles of a dropped tube, so that its name is looked up again. Returns whether there were any."""
        held = [session.tubes.pop(name, None) for session in (self._own, *self._sessions.values())]
        return any(handle is not None for handle in held)

    # sessions

    async def begin(self, ttr: float, idle: float) -> str:
        """Begin a session for a caller. Returns its id."""
        self._must_have_room()
        session = await self.broker.session(ttr)
        self._keep(session, idle)
        return session.id

    async def end(self, id: str) -> None:
        """Close a session that was begun or joined through this server."""
        session = self._sessions.pop(id, None)
        if session is None or session.aio_session is None:
            raise NotFound(f"session {id} is not open on this server: it has ended, or was begun on another server")
        await session.aio_session.close()

    @contextlib.asynccontextmanager
    async def session_of(self, id: str | None) -> AsyncIterator[HttpSession]:
        """The session that a request names, kept open during the request; the server's own for None."""
        session = self._own if id is None else self._sessions.get(id) or await self._join(id)
        session.busy += 1
        try:
            yield session
        finally:
            session.busy -= 1
            session.used = time.monotonic()

    async def _join(self, id: str) -> HttpSession:
        async with self._joining.setdefault(id, asyncio.Lock()):  # concurrent requests join it once
            try:
                if id not in self._sessions:
                    self._must_have_room()
                    self._keep(await self.broker.session(id=id), IDLE_SECONDS)
                return self._sessions[id]
            finally:
                self._joining.pop(id, None)

    def _keep(self, session: aio.Session, idle: float) -> None:
        self._sessions[session.id] = HttpSession(session.sync.session_handle, session, idle, time.monotonic())

    def _must_have_room(self) -> None:
        if len(self._sessions) >= self._max_sessions:
            raise Refused(429, f"{self._max_sessions} sessions are open through HTTP: end some of them")

    async def end_idle(self) -> None:
        """Close the sessions that no request has used for their idle time."""
        now = time.monotonic()
        for id, session in list(self._sessions.items()):
            if not session.busy and now - session.used > session.idle:
                with contextlib.suppress(PenstockError):  # then the session lapses later
                    await self.end(id)
