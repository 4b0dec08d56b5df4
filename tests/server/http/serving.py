"""A real HTTP server in a thread, as `penstock serve` runs it, and a client of it."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from penstock import aio
from penstock.server.auth import Tokens
from penstock.server.http.app import App, make_app
from penstock.server.http.listener import Listener, Tls
from penstock.server.http.options import Options

START_SECONDS = 20


@dataclass
class Serving:
    """Where it listens, and the application in its thread."""

    url: str
    app: App
    client: httpx.Client

    def post(self, path: str, body: Any = None, **headers: str) -> httpx.Response:
        """A call with a JSON body."""
        return self.client.post(path, json={} if body is None else body, headers=headers)

    def get(self, path: str, **headers: str) -> httpx.Response:
        """A call without a body."""
        return self.client.get(path, headers=headers)


@contextmanager
def serving(
    store_url: str, tokens: Tokens | None = None, options: Options | None = None, tls: Tls | None = None
) -> Iterator[Serving]:
    """Serve a store until the block ends; whatever fails in the thread fails the test."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        started = threading.Event()
        made: list[Any] = []
        failed: list[BaseException] = []

        async def run() -> None:
            async with aio.connect(store_url) as broker:
                app = make_app(broker, tokens or Tokens(), options)
                listener = Listener(app, tls=tls)
                made.extend((app, listener, asyncio.get_running_loop()))
                announcing = asyncio.ensure_future(_announce(listener, started))
                await listener.serve_on(listening)
                await announcing

        def main() -> None:
            try:
                asyncio.run(run())
            except BaseException as error:
                failed.append(error)
                started.set()

        thread = threading.Thread(target=main, name="penstock-http")
        thread.start()
        assert started.wait(START_SECONDS)
        if failed:
            raise failed[0]
        app, listener, loop = made
        url = f"{'http' if tls is None else 'https'}://127.0.0.1:{port}"
        try:
            with httpx.Client(base_url=url, timeout=20, verify=False) as client:  # a test's certificate has no issuer
                yield Serving(url, app, client)
        finally:
            loop.call_soon_threadsafe(listener.end)
            thread.join(START_SECONDS)
        assert not thread.is_alive(), "the server did not end"
        assert failed == []


async def _announce(listener: Listener, started: threading.Event) -> None:
    while not listener.started and not listener.should_exit:
        await asyncio.sleep(0.005)  # uvicorn says nowhere that it is up but in this field
    started.set()
