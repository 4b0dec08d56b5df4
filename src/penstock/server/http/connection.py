"""One connection: uvicorn's, which must say within a time what it wants, and end what nobody reads."""

from __future__ import annotations

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

# From the connection, or from the first byte of the next request, to the end of its head; and from an answer to the
# end of a body that it did not wait for.
HEAD_SECONDS = 20.0


class Connection(H11Protocol):
    """Ends when the head of a request does not come: uvicorn itself would hold it for ever.

    A body that was refused by its length is read on and dropped: closing at once would reset the connection under
    a client that still sends, which then never sees the answer.
    """

    _overdue: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._look()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        self._came()
        super().connection_lost(exc)

    def _look(self) -> None:
        """A head has begun, or has come; or a body goes on whose request is answered."""
        unread = self.conn.their_state is h11.SEND_BODY and self.conn.our_state is h11.DONE
        if unread or (self.conn.their_state is h11.IDLE and self.conn.trailing_data[0]):
            self._await()
        elif self.conn.their_state is not h11.IDLE:
            self._came()

    def _await(self) -> None:
        if self._overdue is None:  # one byte every ten seconds gives no more time
            self._overdue = self.loop.call_later(HEAD_SECONDS, self.transport.close)

    def _came(self) -> None:
        if self._overdue is not None:
            self._overdue.cancel()
            self._overdue = None
