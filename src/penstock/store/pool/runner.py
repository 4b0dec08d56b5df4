"""What a pool sends to its Redis: all of it runs in the epoch that the caller knows, or does nothing.

A server that was started again may have forgotten its last moments, and a replica that took over, too: their run id is
another one, and every connection to them is a new one.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import TypeVar, cast

from penstock.core.options import Tube
from penstock.errors import NoSuchTube, StoreUnavailable
from penstock.store.redis.durability import parse_info
from penstock.store.redis.location import Location
from penstock.store.redis.redis_connection import Argument, Command, Connection, Reply, exchange_on
from penstock.store.redis.runner import Keys, Runner
from penstock.store.redis.scripts import Script, load_script
from penstock.store.redis.servers import Call, OneServer, Request, exchange_scripts, unwrap

T = TypeVar("T")
# How a script answers that the tube's index is of another epoch.
OTHER_EPOCH = -3
# The keys of a tube begin with its number.
_TUBE_KEY = re.compile(rb"^\{.*:(\d+)\}:")

# The tubes that a call changed, each with the epoch it was done in, and a version that includes the changes.
Dirty = dict[int, tuple[Tube, str, float]]


class Interrupted(StoreUnavailable):
    """The index was lost meanwhile; nothing was done by the step that raises this."""

    def __init__(self) -> None:
        super().__init__("the index of the pool was lost meanwhile: try again")


class WatchedServer(OneServer):
    """One server, known by its run.

    Once that is another one, `recover` is called. A tube whose index is of another epoch is given to `restore`, which
    returns False if there is no such tube. What was to be sent is then sent again.
    """

    #: A script of several tubes would have to know the epochs of all of them.
    one_server = False

    def __init__(self, where: Location) -> None:
        super().__init__(where)
        self.run_id: str | None = None
        self.epoch = 0
        self.recover: Callable[[], object] | None = None
        self.restore: Callable[[int], bool] = lambda no: True
        self._thread = threading.local()
        self._connections.on_connect = self._check_run

    def trusted(self) -> AbstractContextManager[None]:
        """A context in which this thread accepts connections to another run of the server: recovery needs them."""
        return self._set_flag("trusts")

    def strictly(self) -> AbstractContextManager[None]:
        """A context in which this thread raises Interrupted and does not recover: it holds what recovery needs."""
        return self._set_flag("strict")

    @contextmanager
    def _set_flag(self, name: str) -> Iterator[None]:
        setattr(self._thread, name, True)
        try:
            yield
        finally:
            setattr(self._thread, name, False)

    @property
    def strict(self) -> bool:
        """Whether this thread is in `strictly`."""
        return getattr(self._thread, "strict", False)

    def run_now(self) -> str:
        """The id of the server's run."""
        return parse_info(cast(bytes, self.send(b"", b"INFO", b"server")))["run_id"]

    def send(self, key: bytes, *words: Argument) -> Reply:
        """A command, whatever the epoch of its tube is."""
        return super().command(key, *words)

    def command(self, key: bytes, *words: Argument) -> Reply:
        return self.command_all([(key, words)])[0]

    def command_all(self, commands: Sequence[tuple[bytes, Command]]) -> list[Reply]:
        found = {int(match[1]): match[0] + b"meta" for key, _ in commands if (match := _TUBE_KEY.match(key))}
        asked = [(meta, (b"HGET", meta, b"epoch")) for meta in found.values()]
        while True:
            epoch = str(self.epoch).encode()
            replies = super().command_all([*commands, *asked])
            lost = [no for no, there in zip(found, replies[len(commands) :], strict=True) if there != epoch]
            if lost and self.strict:
                raise Interrupted
            if True not in [self.restore(no) for no in lost]:
                return replies[: len(commands)]

    def ask_each(self, commands: Sequence[Command]) -> dict[str, list[Reply]]:
        return self._watched(lambda: super(WatchedServer, self).ask_each(commands))

    @property
    def versions(self) -> tuple[float, float]:
        """Of the tube whose script this thread ran last, before and after; equal if it changed nothing to write."""
        return cast("tuple[float, float]", self._thread.versions)

    def _call(self, call: Call, *, idempotent: bool) -> Reply:
        attempt = partial(self._exchange, *call, [])
        return self._watched(lambda: self._retry(attempt, idempotent=idempotent))

    def _exchange(self, key: bytes, command: Command, request: Request | None, tries: list[bytes]) -> Reply:
        meta = next((key for key in request.keys if key.endswith(b":meta")), None) if request else None
        look = [] if meta is None else [(b"HGET", meta, b"version")]
        tries.append(key)
        replies = exchange_scripts(self._connections, [*look, command, *look], [*(None for _ in look), request, None])
        reply = unwrap(replies[len(look)])
        before, after = (int(cast("bytes | None", each) or 0) if look else 0 for each in (replies[0], replies[-1]))
        self._thread.versions = before if len(tries) == 1 else 0, after  # an earlier try may have changed something
        return reply

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

    def _check_run(self, connection: Connection) -> None:
        if self.run_id is None or getattr(self._thread, "trusts", False):
            return
        [reply] = exchange_on(connection, [(b"INFO", b"server")])
        if isinstance(reply, bytes) and parse_info(reply).get("run_id") != self.run_id:
            raise Interrupted


class PoolRunner(Runner):
    """Runs scripts in an epoch."""

    servers: WatchedServer

    def __init__(self, servers: WatchedServer, keys: Keys, clock: Callable[[], int] | None, *, modern: bool) -> None:
        super().__init__(servers, keys, clock, modern=modern)
        self._thread = threading.local()

    def on_tube(
        self, name: str, tube: Tube, *arguments: Argument, idempotent: bool = False, now: int | None = None
    ) -> list[Reply]:
        """As of every store; a tube whose index is lost is restored first."""
        while True:
            epoch = str(self.servers.epoch)
            try:
                reply = self.in_epoch(epoch, name, tube, *arguments, idempotent=idempotent, now=now)
            except (Interrupted, NoSuchTube):
                if self.servers.strict:
                    raise
                if not self.servers.restore(tube.no) or self.frozen(tube) is not None:
                    raise self.missing(tube) from None
                continue
            before, after = self.servers.versions
            if before != after and (dirty := getattr(self._thread, "dirty", None)) is not None:
                dirty[tube.no] = tube, epoch, after
            return reply

    def in_epoch(
        self, epoch: str, name: str, tube: Tube, *arguments: Argument, idempotent: bool = False, now: int | None = None
    ) -> list[Reply]:
        """As `on_tube`, in that epoch alone; Interrupted if it is over."""
        self._thread.epoch = epoch
        try:
            return super().on_tube(name, tube, *arguments, idempotent=idempotent, now=now)
        finally:
            self._thread.epoch = None

    def known(self, tube: Tube, reply: list[Reply]) -> list[Reply]:
        if reply[0] == OTHER_EPOCH:
            raise Interrupted
        return super().known(tube, reply)

    def script(self, name: str, sort: str) -> Script:
        epoch = getattr(self._thread, "epoch", None) or str(self.servers.epoch)
        return load_script(name, sort=sort, modern=self.modern, epoch=epoch)

    @contextmanager
    def gathering(self) -> Iterator[Dirty]:
        """A context that collects what this thread changes."""
        dirty: Dirty = {}
        self._thread.dirty = dirty
        try:
            yield dirty
        finally:
            self._thread.dirty = None

    def written(self, tube: Tube) -> None:
        """Note that the vault has what this thread changed in the tube."""
        dirty = getattr(self._thread, "dirty", None)
        if dirty is not None:
            dirty.pop(tube.no, None)
