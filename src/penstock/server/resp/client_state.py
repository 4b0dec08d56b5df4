"""The state of a connection, without its socket: protocol version, role, session. Knows no commands."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TypeVar

from penstock.broker.session import SessionHandle, session_id
from penstock.broker.tube import Tube
from penstock.broker.tube_factory import make_handle
from penstock.core.names import name as valid_name
from penstock.core.options import Tube as StoredTube
from penstock.errors import NoSuchTube, PenstockError
from penstock.operations.operation import Operation
from penstock.server.auth import Role, hashed
from penstock.server.resp.grammar import MAX_REQUEST, Request
from penstock.server.resp.replies import RESP2
from penstock.server.resp.service import Service

R = TypeVar("R")

# The most tube handles that a connection caches; beyond that, the cache is emptied.
MAX_TUBES = 1000
# Request limits before authentication and for readers, who send no data.
MAX_UNAUTHENTICATED = 16 * 1024
MAX_READER = 256 * 1024


class Session:
    """The session of a connection, which holds the tasks taken through it. It begins in the store at the first take."""

    def __init__(self, service: Service, id: int, peer: str) -> None:
        self.service = service
        self.id = id
        self.peer = peer
        self.version = RESP2
        self.name = ""
        self.library: dict[str, str] = {}
        #: Requests between MULTI and EXEC; None outside.
        self.queued: list[Request] | None = None
        self.queued_size = 0
        self.aborted = False  # a queued request was refused, so EXEC refuses all
        self.leaving = False  # True after QUIT: close after its reply
        self._digest = ""
        #: The handle of the session in the store.
        self.session_handle = SessionHandle(service.runtime, implicit=True)
        self._tubes: dict[str, Tube] = {}
        self._active_ops = 0
        self._still = asyncio.Event()

    # authentication

    @property
    def role(self) -> Role | None:
        """The role of the connection; None before authentication."""
        tokens = self.service.tokens
        if not tokens.required:
            return Role.ADMIN
        return tokens.role_of(self._digest) if self._digest else None

    @property
    def max_request(self) -> int:
        """The largest request in bytes, also for all requests between MULTI and EXEC together."""
        role = self.role
        return MAX_UNAUTHENTICATED if role is None else MAX_READER if role is Role.READ else MAX_REQUEST

    def authenticate(self, token: str) -> bool:
        """Check a token and, if it is valid, use it for this connection."""
        if self.service.tokens.check(token, self.peer) is None:
            return False
        self._digest = hashed(token)
        return True

    # the session in the store

    async def join(self, id: str | None, ttr: int) -> None:
        """Join another session, or begin one with a ttr. The previous session is left, and its tasks released."""
        joined = await self.service.ask(SessionHandle, self.service.runtime, ttr=ttr, id=session_id(id))
        former, self.session_handle = self.session_handle, joined
        self._tubes.clear()
        await self.service.ask(former.close)

    def reset(self) -> None:
        """Reset the connection's state, except for its session in the store."""
        self.version, self.name, self._digest = RESP2, "", ""
        self.discard()

    def discard(self) -> None:
        """Drop the requests queued since MULTI."""
        self.queued, self.queued_size, self.aborted = None, 0, False

    async def close(self) -> None:
        """Release the tasks of takes in progress, then those that are held."""
        while self._active_ops:
            self._still.clear()
            await self._still.wait()
        if self.session_handle.handle:  # otherwise it has never taken, and the store does not know it
            await self.service.ask(self.session_handle.close)

    # tubes

    async def tube(self, name: str, *, refresh: bool = False) -> Tube:
        """The handle of a tube for this connection's session. Raises NoSuchTube if there is none."""
        known = None if refresh else self._tubes.get(name)
        if known is not None:
            return known
        stored = await self.service.find(valid_name("tube", name), refresh=refresh)
        if stored is None:
            raise NoSuchTube(f"tube {name} does not exist: create it first with TUBE.CREATE {name} fifottl")
        return self.handle(stored)

    def handle(self, stored: StoredTube) -> Tube:
        """The handle of a stored tube for this connection."""
        if len(self._tubes) >= MAX_TUBES:
            self._tubes.clear()
        tube = self._tubes[stored.name] = make_handle(self.service.runtime, self.session_handle, stored)
        return tube

    async def run_ops(self, operations: Sequence[Operation[R]]) -> list[R | PenstockError | TimeoutError]:
        """Start these operations together, so that they share store calls. Returns the result or error of each."""
        runs = [self.service.executor.run(self._watched(operation)) for operation in operations]
        answers: list[R | PenstockError | TimeoutError] = []
        try:
            for run in runs:
                try:
                    answers.append(await run)
                except (PenstockError, TimeoutError) as error:
                    answers.append(error)
        finally:
            for run in runs[len(answers) :]:  # the connection is gone
                if not run.cancel():
                    run.discard_result()
        return answers

    def _watched(self, operation: Operation[R]) -> Operation[R]:
        self._active_ops += 1
        try:
            return (yield from operation)
        finally:
            self._active_ops -= 1
            self._still.set()
