"""The Redis server in front, never spoken to without knowing that it still is the one that the index was built on.

A server that was started again may have forgotten its last moments, and a replica that took over, too: their run id is
another one, and every connection to them is a new one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from math import inf
from typing import TypeVar, cast

from penstock.errors import StoreUnavailable
from penstock.store.redis.connection import Command, Connection, Reply, exchange_on
from penstock.store.redis.durability import parse_info
from penstock.store.redis.location import Location
from penstock.store.redis.servers import Call, OneServer, Request, exchange_scripts, unwrap

T = TypeVar("T")


class Interrupted(StoreUnavailable):
    """The index was lost meanwhile; nothing was done by the step that raises this."""

    def __init__(self) -> None:
        super().__init__("the index of the pool was lost meanwhile: try again")


class WatchedServer(OneServer):
    """One server; `recover` is called, and what was to be sent is sent again, when it is not the run that it was."""

    #: A script of several tubes would have to know the epochs of all of them.
    one_server = False

    def __init__(self, where: Location) -> None:
        super().__init__(where)
        self.run_id: str | None = None
        self.recover: Callable[[], object] | None = None
        self._thread = threading.local()
        self._connections.on_connect = self._greet

    @contextmanager
    def trusted(self) -> Iterator[None]:
        """In here new connections of this thread are taken as they are: whoever recovers must speak to it."""
        self._thread.trusts = True
        try:
            yield
        finally:
            self._thread.trusts = False

    @contextmanager
    def strictly(self) -> Iterator[None]:
        """In here this thread recovers nothing: it raises Interrupted, because it holds what recovering needs."""
        self._thread.strict = True
        try:
            yield
        finally:
            self._thread.strict = False

    @property
    def strict(self) -> bool:
        """Whether this thread is in `strictly`."""
        return getattr(self._thread, "strict", False)

    def run_now(self) -> str:
        """The id of the server's run."""
        return parse_info(cast(bytes, self.command(b"", b"INFO", b"server")))["run_id"]

    def ask_each(self, commands: Sequence[Command]) -> dict[str, list[Reply]]:
        return self._watched(lambda: super(WatchedServer, self).ask_each(commands))

    @property
    def version(self) -> float:
        """One of the tube whose script this thread ran last, with or after what the script changed."""
        return float(self._thread.version)

    def _call(self, call: Call, *, idempotent: bool) -> Reply:
        attempt = partial(self._exchange, *call)
        return self._watched(lambda: self._retry(attempt, idempotent=idempotent))

    def _exchange(self, key: bytes, command: Command, request: Request | None) -> Reply:
        meta = next((key for key in request.keys if key.endswith(b":meta")), None) if request else None
        commands = [command] if meta is None else [command, (b"HGET", meta, b"version")]
        replies = exchange_scripts(self._connections, commands, [request, None])
        self._thread.version = int(replies[-1]) if meta is not None and isinstance(replies[-1], bytes) else inf
        return unwrap(replies[0])

    def _call_all(self, calls: Sequence[Call]) -> list[Reply]:
        return self._watched(lambda: super(WatchedServer, self)._call_all(calls))

    def _watched(self, call: Callable[[], T]) -> T:
        while True:
            try:
                return call()
            except Interrupted:
                if self.recover is None or self.strict:
                    raise
                self.recover()

    def _greet(self, connection: Connection) -> None:
        if self.run_id is None or getattr(self._thread, "trusts", False):
            return
        [reply] = exchange_on(connection, [(b"INFO", b"server")])
        if isinstance(reply, bytes) and parse_info(reply).get("run_id") != self.run_id:
            raise Interrupted
