"""Sessions as programs hold them."""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING
from uuid import UUID

import msgspec

from penstock.broker.session_handle import Seat
from penstock.broker.tube import Tube
from penstock.broker.tube_factory import open_tube
from penstock.core.names import name as valid_name
from penstock.core.task import Task
from penstock.operations.operation import Flow, verb

if TYPE_CHECKING:
    from penstock.runtime.runtime import Hub


class SessionInfo(msgspec.Struct, frozen=True):
    """A live session: who it is, when it was last heard of, what it holds and waits for."""

    id: str
    host: str
    pid: int
    heartbeat: float
    held: list[tuple[str, int]]
    waits: list[str]


class Session:
    """Leases belong to it and end with it: at close, at the end of its process, or when its heartbeat lapses.

    A broker has an implicit one. `broker.session()` gives others; several handles may join one by its id, and
    it ends with the last of them.
    """

    def __init__(self, hub: Hub, seat: Seat) -> None:
        self._hub = hub
        self._seat = seat

    @property
    def id(self) -> str:
        """The session's id, a UUID: another process may go on with it by `broker.session(id=…)`."""
        return self._seat.id

    def tube(self, name: str) -> Tube:
        """Open a tube, as broker.tube does, whose takes and settles are this session's."""
        return open_tube(self._hub, self._seat, name, None, {})

    @verb
    def take(
        self, names: Iterable[str], timeout: float | None = None, *, max_pri: int | None = None
    ) -> Flow[Task | None]:
        """The first ready task of the first of these tubes that has one; None when nothing came in time."""
        return (yield from self._seat.take_first(names, timeout, max_pri))

    def close(self) -> None:
        """End it, unless another handle has joined it: what it holds is ready again, after its ttr if it has one."""
        self._seat.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def session_id(value: object) -> str | None:
    """A session's id as callers may give it."""
    return None if value is None else valid_name("session id", str(value) if isinstance(value, UUID) else value)
