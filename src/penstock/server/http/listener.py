"""The application on a socket, by uvicorn."""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import uvicorn

from penstock.errors import BadValue
from penstock.server.http.app import App

# Blocked calls and streams are ended by the application, so that nothing is left to wait for but slow readers.
_GRACE_SECONDS = 3
_BACKLOG = 2048


@dataclass(frozen=True, slots=True)
class Tls:
    """A certificate and its key, as files in PEM."""

    certificate: Path
    key: Path | None = None
    password: str | None = None

    def check(self) -> None:
        """Refuse files that are not a certificate and its key, before anything listens."""
        try:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(self.certificate, self.key, self.password or "")
        except (OSError, ValueError) as error:
            raise BadValue(f"TLS certificate {self.certificate} cannot be used: {error}") from error


class Listener(uvicorn.Server):
    """Serves one application. Signals are left to the program, which calls `end`."""

    def __init__(self, app: App, *, tls: Tls | None = None, proxies: str = "") -> None:
        if tls is not None:
            tls.check()
        self._app = app
        super().__init__(
            uvicorn.Config(
                app.asgi,
                log_config=None,
                access_log=False,  # it would hold search words, and whatever else stands in paths
                server_header=False,
                date_header=True,
                ws="none",
                lifespan="on",
                backlog=_BACKLOG,
                timeout_graceful_shutdown=_GRACE_SECONDS,
                proxy_headers=bool(proxies),
                forwarded_allow_ips=proxies or None,
                ssl_certfile=None if tls is None else tls.certificate,
                ssl_keyfile=None if tls is None else tls.key,
                ssl_keyfile_password=None if tls is None else tls.password,
            )
        )

    def end(self) -> None:
        """Take no more connections, end what waits, and come back from `serve`."""
        self._app.stop()
        self.should_exit = True

    async def serve_on(self, listening: socket.socket) -> None:
        """Serve until `end`, on a socket that is bound."""
        await self.serve(sockets=[listening])

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Whoever runs the loop has its own."""
        yield
