"""A real HTTP server that receives callbacks: records requests and sends the answers that a test sets."""

from __future__ import annotations

import queue
import ssl
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, NamedTuple

PATIENCE = 60.0


class Got(NamedTuple):
    """A received request."""

    path: str
    headers: dict[str, str]
    body: bytes


class Answer(NamedTuple):
    """The response to send."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = {}  # noqa: RUF012 (never changed)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore callers that hang up or do not trust the certificate: some tests cause this."""


class Receiver:
    """Listens on 127.0.0.1 while its block runs; calls `answer` for each request, each in a thread."""

    def __init__(
        self, answer: Callable[[Got], Answer] = lambda got: Answer(), tls: ssl.SSLContext | None = None
    ) -> None:
        self.answer = answer
        self.got: queue.Queue[Got] = queue.Queue()
        self._server = _Server(("127.0.0.1", 0), self._handler())
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}/hook"

    def next(self) -> Got:
        """The next request."""
        return self.got.get(timeout=PATIENCE)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                got = Got(self.path, dict(self.headers.items()), body)
                receiver.got.put(got)
                answer = receiver.answer(got)
                self.send_response(answer.status)
                for name, value in {"Content-Length": str(len(answer.body)), **answer.headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(answer.body)

            def log_message(self, *arguments: Any) -> None: ...

        return Handler

    def __enter__(self) -> Receiver:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
