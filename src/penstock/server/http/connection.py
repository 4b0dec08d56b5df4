"""One connection: uvicorn's, which must say within a time what it wants."""

from __future__ import annotations

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

# From the connection, or from the first byte of the next request, to the end of its head.
HEAD_SECONDS = 20.0


class Connection(H11Protocol):
    """Ends when the head of a request does not come: uvicorn itself would hold it for ever."""

    _overdue: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._look()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_came()
        super().connection_lost(exc)

    def _look(self) -> None:
        """A head has begun, or has come."""
        if self.conn.their_state is not h11.IDLE:
            self._head_came()
        elif self.conn.trailing_data[0]:
            self._await_head()

    def _await_head(self) -> None:
        if self._overdue is None:  # one byte every ten seconds gives no more time
            self._overdue = self.loop.call_later(HEAD_SECONDS, self.transport.close)

    def _head_came(self) -> None:
        if self._overdue is not None:
            self._overdue.cancel()
            self._overdue = None
