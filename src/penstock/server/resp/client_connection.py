"""One client connection: reads requests, runs them in order and writes replies, with bounded memory."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import Callable
from typing import cast

from penstock.errors import PenstockError
from penstock.server.resp.client_state import Session
from penstock.server.resp.dispatch import Calls, carry_out, plan
from penstock.server.resp.grammar import ForeignProtocol, ProtocolError, Request, Requests
from penstock.server.resp.replies import Fault, Reply, encode
from penstock.server.resp.service import Service

log = logging.getLogger("penstock")

# Requests planned at a time: enough for large batches, few enough that other clients get their turn and that a client
# can read the first replies of a long pipeline while the next are made.
CHUNK = 500
# The socket is not read while more bytes than this wait to be parsed.
MAX_PENDING = 256 * 1024
# Replies are sent when they are this large together.
MAX_UNSENT = 64 * 1024
# While more reply bytes than this are unread by the peer, no requests are run for it.
MAX_UNREAD = 256 * 1024
# Seconds for a request, and for the token if one is needed, to arrive completely.
ARRIVAL_SECONDS = 60.0
TOKEN_SECONDS = 30.0
# Seconds after which a peer that sends without reading is disconnected.
STUCK_SECONDS = 60.0


class Connection(asyncio.Protocol):
    """A client. While idle it costs a socket and a few objects: no asyncio task, no timer, no session."""

    def __init__(
        self, service: Service, id: int, made: Callable[[Connection], None], gone: Callable[[Connection], None]
    ) -> None:
        self._service = service
        self._id = id
        self._made = made
        self._gone = gone
        self._requests = Requests()
        self._worker: asyncio.Task[None] | None = None
        self._unsent = bytearray()
        self._readable = asyncio.Event()  # set while the peer reads its replies
        self._readable.set()
        self._stuck_since = 0.0  # when the peer stopped reading; 0 while it reads
        self._paused = False  # True while the socket is not read
        self._waiting = False
        self._ending = False  # answer the pending requests, then close
        self._began = self._since = time.monotonic()  # start of the connection, and of the request that is arriving
        self._transport: asyncio.Transport

    # asyncio calls these

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has connected."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(MAX_UNREAD)
        peer = transport.get_extra_info("peername")
        self.session = Session(self._service, self._id, peer[0] if isinstance(peer, tuple) else "")
        _keep_alive(transport.get_extra_info("socket"))
        self._service.connections += 1
        self._service.accepted += 1
        self._made(self)

    def data_received(self, data: bytes) -> None:
        """The client has sent bytes."""
        if self._ending:
            return
        if not self._requests.partial:
            self._since = time.monotonic()
        self._requests.feed(data)
        if self._worker is None:
            self._worker = asyncio.get_running_loop().create_task(self._work())
        elif self._requests.pending > MAX_PENDING:
            self._hold_back()

    def eof_received(self) -> bool:
        """The client has stopped sending. Its requests are answered, except for a blocked take."""
        self.end()
        return self._transport.get_extra_info("ssl_object") is None  # with TLS there is no half-closed connection

    def pause_writing(self) -> None:
        """The client has stopped reading."""
        self._stuck_since = time.monotonic()
        self._readable.clear()
        self._service.unread.add(self._transport)

    def resume_writing(self) -> None:
        """The client reads again."""
        self._readable.set()
        self._service.unread.remove(self._transport)

    def connection_lost(self, error: Exception | None) -> None:
        """The connection is closed."""
        self._service.connections -= 1
        self._service.unread.remove(self._transport)
        self._ending = True
        if self._worker is not None:
            self._worker.cancel()
        self._gone(self)

    # the listener calls these

    def end(self) -> None:
        """Answer the pending requests, end blocked ones, and close."""
        self._ending, self._since = True, time.monotonic()
        if self._worker is None:
            self._transport.close()
        elif self._waiting:
            self._worker.cancel()

    def abort(self) -> None:
        """Close now."""
        self._transport.abort()

    def refuse(self, why: str) -> None:
        """Send an error and close."""
        self._transport.write(self._unsent + encode([Fault("ERR", why)], self.session.version))
        self._unsent = bytearray()
        self._ending, self._since = True, time.monotonic()
        self._transport.close()
        if self._waiting and self._worker is not None:
            self._worker.cancel()

    def cut_if_late(self, now: float) -> None:
        """Close if a request or the token arrives too slowly, or if replies are not read."""
        overdue = now - self._since > ARRIVAL_SECONDS
        if self._paused and not self._readable.is_set() and now - self._stuck_since > STUCK_SECONDS:
            log.warning("disconnecting %s: it sends without reading replies", self.session.peer)
            self._transport.abort()
        elif self._ending:
            if overdue:
                self._transport.abort()
        elif (overdue and self._worker is None and self._requests.partial) or self._gave_no_token(now):
            self.refuse("Protocol error: the request took too long to arrive")

    def _gave_no_token(self, now: float) -> bool:
        return now - self._began > TOKEN_SECONDS and self.session.role is None

    async def settled(self) -> None:
        """Wait until the tasks that a closed connection held are released."""
        if self._worker is not None:
            await asyncio.wait([self._worker])
        with contextlib.suppress(
            PenstockError
        ):  # then they are released when the broker closes, or when the session lapses
            await self.session.close()

    # the work

    async def _work(self) -> None:
        try:
            while not self.session.leaving and (requests := self._next()):
                await self._serve(requests)
                self._since = time.monotonic()
                await self._send()
                if len(requests) == CHUNK:
                    await asyncio.sleep(0)  # let other connections run
        except ForeignProtocol:
            self._transport.abort()
        except ProtocolError as error:
            self.refuse(str(error))
        except asyncio.CancelledError:
            self._transport.close()
        except Exception:
            log.exception("connection of %s failed; closing it", self.session.peer)
            self._transport.abort()
        finally:
            self._worker = None
        if self._ending:
            self._transport.close()
        elif self._paused:
            self._paused = False
            self._transport.resume_reading()

    def _next(self) -> list[Request]:
        """The next requests. Before authentication they come one by one, because each may be the token."""
        self._requests.limit = self.session.max_request
        return self._requests.read(CHUNK if self.session.role is not None else 1)

    async def _serve(self, requests: list[Request]) -> None:
        for step in plan(self.session, requests):
            large = isinstance(step, Calls) and step.command.large
            async with self._service.large_reads if large else contextlib.nullcontext():
                self._add(
                    await self._replies(step)
                )  # not in a variable, which would keep the replies in memory while they are sent
            if self.session.leaving:
                self._ending = True
                return
            if len(self._unsent) > MAX_UNSENT:
                await self._send()

    def _add(self, replies: list[Reply]) -> None:
        self._unsent += encode(replies, self.session.version)

    async def _replies(self, step: Calls | Reply) -> list[Reply]:
        if not isinstance(step, Calls):
            return [step]
        return await (self._wait(step) if step.waits else carry_out(self.session, step))

    async def _wait(self, calls: Calls) -> list[Reply]:
        """Run calls that may block: finished replies are sent first, and a disconnect cancels the calls."""
        await self._send()
        if self._ending:
            raise asyncio.CancelledError
        self._waiting = True
        self._service.blocked += 1
        try:
            return await carry_out(self.session, calls)
        finally:
            self._waiting = False
            self._service.blocked -= 1

    async def _send(self) -> None:
        if self._unsent:
            self._transport.write(self._unsent)
            self._unsent = bytearray()
        await self._readable.wait()

    def _hold_back(self) -> None:
        """Stop reading, because too many requests wait."""
        if self._waiting:
            # A blocked take must notice a disconnect, so its socket has to be read: do not pause it.
            self.refuse(f"too many bytes after a blocking command: send at most {MAX_PENDING} before its reply")
        elif not self._paused:
            self._paused = True
            self._transport.pause_reading()


def _keep_alive(connected: socket.socket | None) -> None:
    """Enable TCP keep-alive: a vanished host is noticed after about two minutes, and what it held is released."""
    if connected is None or connected.family not in (socket.AF_INET, socket.AF_INET6):
        return
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for option, value in (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 20), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, option):
            connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
