"""Runs the HTTP application on a socket with uvicorn, with time limits for slow clients."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from functools import partial
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from penstock.errors import BadValue
from penstock.server.http.http_app import HttpApp
from penstock.server.sockets import Address, Tls, Unread

# The time for the headers of a request, from the connection or its first byte; and, after a response that did not wait
# for the body, the time for the rest of the body.
HEAD_SECONDS = 20.0
# More are refused: each costs memory, and a file that clients of the Redis protocol and the store need, too.
MAX_CONNECTIONS = 10_000
_TOO_MANY = b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
# The time for a TLS handshake; asyncio's default is a minute.
HANDSHAKE_SECONDS = 10.0


class Connection(H11Protocol):
    """A connection that closes if the headers of a request do not arrive in time; uvicorn alone would wait forever.

    The rest of a body that was refused for its length is read and dropped. Closing at once would reset the connection
    while the client still sends, and the client would never see the response.
    """

    _overdue: asyncio.TimerHandle | None = None

    def __init__(self, unread: Unread, **options: Any) -> None:
        super().__init__(**options)
        self._unread = unread

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await()
        if len(self.connections) > MAX_CONNECTIONS:
            transport.write(_TOO_MANY)
            transport.close()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._set_timer()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._set_timer()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread.add(self.transport)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._unread.remove(self.transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._came()
        self._unread.remove(self.transport)
        super().connection_lost(exc)

    def _set_timer(self) -> None:
        """Start or stop the timer for the headers of a request, or for the rest of a body that was answered early."""
        unread = self.conn.their_state is h11.SEND_BODY and self.conn.our_state is h11.DONE
        if unread or (self.conn.their_state is h11.IDLE and self.conn.trailing_data[0]):
            self._await()
        elif self.conn.their_state is not h11.IDLE:
            self._came()

    def _await(self) -> None:
        if self._overdue is None:  # more bytes do not extend the deadline, or a slow client could keep the connection
            self._overdue = self.loop.call_later(HEAD_SECONDS, self.transport.close)

    def _came(self) -> None:
        if self._overdue is not None:
            self._overdue.cancel()
            self._overdue = None


_BACKLOG = 2048


class HttpListener:
    """Serves a broker at one address. X-Forwarded-For is trusted from the addresses in `proxies`."""

    def __init__(self, app: HttpApp, address: Address, *, tls: Tls | None = None, proxies: str = "") -> None:
        if tls is not None:
            tls.context()  # checked here, because uvicorn reports bad files with a traceback
        self._app = app
        self._address = address
        self._scheme = "http" if tls is None else "https"
        self._server = _Server(_config(app, tls, proxies))
        self._serving: asyncio.Future[None] | None = None

    async def start(self) -> str:
        """Start listening. Returns the URL."""
        listening = self._address.bind()
        self._serving = asyncio.ensure_future(self._server.serve(sockets=[listening]))
        up = asyncio.ensure_future(self._server.up.wait())
        await asyncio.wait((self._serving, up), return_when=asyncio.FIRST_COMPLETED)
        up.cancel()
        if self._serving.done():
            self._serving.result()
            raise BadValue("the HTTP server did not start: its log has the reason")
        return f"{self._scheme}://{self._address.shown(listening.getsockname()[1])}/"

    async def stop(self, grace: float) -> None:
        """Stop accepting requests, end blocked calls, and finish the others within the grace period."""
        if self._serving is None:
            return
        self._app.stop()
        self._server.config.timeout_graceful_shutdown = max(1, round(grace))
        self._server.should_exit = True
        await self._serving


def _config(app: HttpApp, tls: Tls | None, proxies: str) -> uvicorn.Config:
    return uvicorn.Config(
        app.asgi,
        http=Connection,
        log_config=None,
        log_level="error",  # otherwise every invalid request is logged, and anyone could fill the log
        access_log=False,  # it would contain search texts and whatever else is in URLs
        server_header=False,
        ws="none",
        lifespan="on",
        backlog=_BACKLOG,
        proxy_headers=bool(proxies),
        forwarded_allow_ips=proxies or None,
        ssl_certfile=None if tls is None else tls.certificate,
        ssl_keyfile=None if tls is None else tls.key,
    )


class _Server(uvicorn.Server):
    """Reports when it is up, and leaves signals to the program."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Like uvicorn's, but only for given sockets, and with a time limit for TLS handshakes."""
        await self.lifespan.startup()
        if self.lifespan.should_exit:
            self.should_exit = True
            return
        config, loop = self.config, asyncio.get_running_loop()
        state = self.lifespan.state
        protocol = partial(Connection, Unread(), config=config, server_state=self.server_state, app_state=state)
        handshake = HANDSHAKE_SECONDS if config.ssl else None
        self.servers = [
            await loop.create_server(
                protocol, sock=bound, ssl=config.ssl, backlog=config.backlog, ssl_handshake_timeout=handshake
            )
            for bound in sockets or ()
        ]
        self.started = True
        self.up.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
