"""The application on a socket, by uvicorn."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import uvicorn

from penstock.errors import BadValue
from penstock.server.address import Address
from penstock.server.http.app import App
from penstock.server.http.connection import Connection
from penstock.server.tls import Tls

_BACKLOG = 2048


class HttpListener:
    """Serves a broker at one address. `proxies` are the addresses whose X-Forwarded-For is believed."""

    def __init__(self, app: App, address: Address, *, tls: Tls | None = None, proxies: str = "") -> None:
        if tls is not None:
            tls.context()  # uvicorn makes its own, and speaks of bad files with a traceback
        self._app = app
        self._address = address
        self._scheme = "http" if tls is None else "https"
        self._server = _Server(_config(app, tls, proxies))
        self._serving: asyncio.Future[None] | None = None

    async def start(self) -> str:
        """Listen; the URL."""
        listening = self._address.bind()
        self._serving = asyncio.ensure_future(self._server.serve(sockets=[listening]))
        up = asyncio.ensure_future(self._server.up.wait())
        await asyncio.wait((self._serving, up), return_when=asyncio.FIRST_COMPLETED)
        up.cancel()
        if self._serving.done():
            self._serving.result()
            raise BadValue("the HTTP server did not start: its log says why")
        return f"{self._scheme}://{self._address.shown(listening.getsockname()[1])}/"

    async def stop(self, grace: float) -> None:
        """Take no more, end what waits, and give the others so long."""
        if self._serving is None:
            return
        self._app.stop()
        self._server.config.timeout_graceful_shutdown = max(1, round(grace))
        self._server.should_exit = True
        await self._serving


def _config(app: App, tls: Tls | None, proxies: str) -> uvicorn.Config:
    return uvicorn.Config(
        app.asgi,
        http=Connection,
        log_config=None,
        log_level="error",  # else every line that is no HTTP writes one to the log, for whoever wants to fill it
        access_log=False,  # it would hold search words, and whatever else stands in paths
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
    """Says when it is up, and leaves signals to the program."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.up.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
