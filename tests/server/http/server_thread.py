"""A real HTTP server in a thread, as `penstock serve` runs it, and a client of it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from penstock import aio
from penstock.server.auth import Tokens
from penstock.server.http.http_app import HttpApp, make_app
from penstock.server.http.http_listener import HttpListener
from penstock.server.http.request_parsing import Options
from penstock.server.serve import opened
from penstock.server.sockets import Address, Tls
from tests.conftest import STORES

# For what even a busy machine does soon: a start, an answer, an end.
PATIENCE = 60
# For tests in which the store matters; all others test only the server.
EVERY_STORE = pytest.mark.parametrize("store_url", STORES, indirect=True)


@dataclass
class Serving:
    """The address of a server, and the application in its thread."""

    url: str
    app: HttpApp
    client: httpx.Client
    _loop: asyncio.AbstractEventLoop

    def post(self, path: str, body: Any = None, **headers: str) -> httpx.Response:
        """Send a JSON body."""
        return self.client.post(path, json={} if body is None else body, headers=_spelled(headers))

    def get(self, path: str, **headers: str) -> httpx.Response:
        """Send a request without a body."""
        return self.client.get(path, headers=_spelled(headers))

    def in_loop(self, call: Callable[[], Any]) -> Any:
        """Make a call in the server's own thread."""

        async def run() -> Any:
            return call()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(PATIENCE)

    def await_in_loop(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Await something in the server's own thread."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE)


def _spelled(headers: dict[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in headers.items()}


@contextmanager
def serving(
    store_url: str, tokens: Tokens | None = None, options: Options | None = None, tls: Tls | None = None
) -> Iterator[Serving]:
    """Serve a store during the block; an error in the thread fails the test."""
    up = threading.Event()
    made: list[Any] = []
    failed: list[BaseException] = []

    async def run() -> None:
        end = asyncio.Event()
        async with opened(store_url) as (broker, executor):
            app = make_app(aio.Broker(executor, broker), tokens or Tokens(), options)
            listener = HttpListener(app, Address("--http", "127.0.0.1:0"), tls=tls)
            made.extend((app, await listener.start(), asyncio.get_running_loop(), end))
            up.set()
            await end.wait()
            await listener.stop(2)

    def main() -> None:
        try:
            asyncio.run(run())
        except BaseException as error:
            failed.append(error)
            up.set()

    thread = threading.Thread(target=main, name="penstock-http", daemon=True)
    thread.start()
    assert up.wait(PATIENCE)
    if failed:
        raise failed[0]
    app, url, loop, end = made
    try:
        with httpx.Client(base_url=url, timeout=PATIENCE, verify=False) as client:  # a test's certificate has no issuer
            yield Serving(url.rstrip("/"), app, client, loop)
    finally:
        loop.call_soon_threadsafe(end.set)
        thread.join(PATIENCE)
    assert not thread.is_alive(), "the server did not end"
    assert failed == []
