"""`penstock worker --listen`: health and metrics over HTTP, served by one thread with its own event loop.

It must answer while handlers hold every slot and while the store is unavailable, and no client can make it wait.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

import h11
import msgspec

from penstock.errors import PenstockError
from penstock.worker.worker_metrics import Meter

if TYPE_CHECKING:
    from penstock.worker.worker import Worker

log = logging.getLogger("penstock.worker")

# The fetch loop runs about once a second. After this many seconds without a run, it counts as hung.
ROUND_SECONDS = 15.0
# Seconds that the store has to answer.
STORE_SECONDS = 5.0
# The longest connection in seconds, and the most connections.
CONNECTION_SECONDS = 15.0
MAX_CONNECTIONS = 64
_CHUNK = 65536

Allowed = Callable[[str], bool]
_Answer = tuple[int, str, bytes]


class Monitor:
    """Serves one worker on a bound socket. `allowed` checks the token of a request for metrics."""

    def __init__(self, worker: Worker, listener: socket.socket, allowed: Allowed | None) -> None:
        self._worker = worker
        self._listener = listener
        self._allowed = allowed
        self._meter = Meter(worker)
        self._asking = threading.Lock()
        self._answered = 0.0  # when the store last answered, by the monotonic clock
        self._open = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="penstock-monitor", daemon=True)

    def start(self) -> None:
        """Start listening: connections are accepted as soon as this returns."""
        self._listener.listen()
        self._thread.start()

    def stop(self) -> None:
        """Stop listening. Requests in progress are cut off."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, sock=self._listener))
        self._loop.run_forever()
        server.close()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            if self._open <= MAX_CONNECTIONS:
                async with asyncio.timeout(CONNECTION_SECONDS):
                    await self._converse(reader, writer)
        except (OSError, TimeoutError, asyncio.CancelledError):
            pass
        finally:
            self._open -= 1
            writer.close()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Read one request and answer it."""
        connection = h11.Connection(h11.SERVER)
        try:
            while (event := connection.next_event()) is h11.NEED_DATA:
                connection.receive_data(await reader.read(_CHUNK))
            if not isinstance(event, h11.Request):
                return
            status, kind, body = await self._in_thread(event)
        except h11.RemoteProtocolError as error:
            status, kind, body = error.error_status_hint, "text/plain", b"this is no HTTP\n"
        headers = [("Content-Type", kind), ("Content-Length", str(len(body))), ("Connection", "close")]
        if status == 401:
            headers.append(("WWW-Authenticate", "Bearer"))
        for part in (h11.Response(status_code=status, headers=headers), h11.Data(body), h11.EndOfMessage()):
            writer.write(connection.send(part) or b"")
        await writer.drain()

    async def _in_thread(self, request: h11.Request) -> _Answer:
        """Compute the answer in a daemon thread: a store that hangs must not keep the process from exiting."""
        loop, answer = self._loop, self._loop.create_future()

        def tell(found: _Answer) -> None:
            if not answer.done():
                answer.set_result(found)

        def run() -> None:
            try:
                found = self._answer(request)
            except Exception:
                log.exception("could not answer a health or metrics request; replying with 500")
                found = 500, "text/plain", b"see the log of the worker\n"
            with suppress(RuntimeError):  # the loop is closed: nobody waits for the answer
                loop.call_soon_threadsafe(tell, found)

        threading.Thread(target=run, daemon=True).start()
        found: _Answer = await answer
        return found

    def _answer(self, request: h11.Request) -> _Answer:
        path = request.target.partition(b"?")[0]
        if path not in (b"/health", b"/live", b"/metrics"):
            return 404, "text/plain", b"there are /health, /live and /metrics\n"
        if request.method not in (b"GET", b"HEAD"):
            return 405, "text/plain", b"only GET and HEAD\n"
        if path == b"/metrics":
            return self._metrics(request)
        return self._health(ask_store=path == b"/health")

    def _metrics(self, request: h11.Request) -> _Answer:
        given = next((value for name, value in request.headers if name == b"authorization"), b"")
        scheme, _, token = given.decode("latin-1").partition(" ")
        if self._allowed is not None and (scheme.lower() != "bearer" or not self._allowed(token.strip())):
            return 401, "text/plain", b"give a read token: Authorization: Bearer TOKEN\n"
        return 200, "text/plain; version=0.0.4; charset=utf-8", self._meter.exposition()

    def _health(self, *, ask_store: bool) -> _Answer:
        fetcher = self._worker.fetcher
        silent = time.monotonic() - fetcher.last_round
        hangs = silent > ROUND_SECONDS and not fetcher.stopping
        trouble = self._ask_store() if ask_store else None
        facts: dict[str, object] = {
            "status": "failing" if hangs or trouble else "stopping" if fetcher.stopping else "ok",
            "fetch_loop": f"last ran {silent:.1f} s ago",
        }
        if ask_store:
            facts["store"] = trouble or "answers"
        return 503 if hangs or trouble else 200, "application/json", msgspec.json.encode(facts)

    def _ask_store(self) -> str | None:
        """The error of the store, or None if it answers. Only one request at a time asks the store."""
        if not self._asking.acquire(timeout=STORE_SECONDS):
            return f"no answer for {STORE_SECONDS:g} s"
        try:
            if time.monotonic() - self._answered > 1:
                self._worker.ask_store()
                self._answered = time.monotonic()
        except PenstockError as error:
            return str(error)
        finally:
            self._asking.release()
        return None
