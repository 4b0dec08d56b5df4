"""Commands and scripts that a pool sends to its Redis: each runs in the epoch that the caller knows, or does nothing.

A server that was restarted may have lost its latest writes, and so may a replica that was promoted. Either has another
run id, and all connections to it are new, so the run id is checked on every new connection.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from itertools import count
from math import inf
from typing import NamedTuple, TypeVar, cast
from uuid import uuid4

from penstock.core.options import Tube
from penstock.errors import NoSuchTube, StoreUnavailable
from penstock.store.redis.durability import parse_info
from penstock.store.redis.location import Location
from penstock.store.redis.redis_connection import (
    AnswerLost,
    Argument,
    Command,
    Connection,
    Connections,
    Reply,
    exchange_on,
    packed,
)
from penstock.store.redis.script_runner import Keys, ScriptRunner
from penstock.store.redis.scripts import WAITED, Script, load_script
from penstock.store.redis.servers import Request, Servers, exchange_scripts, unwrap

T = TypeVar("T")
# What a script returns if the tube's index is of another epoch.
OTHER_EPOCH = -3
# The keys of a tube begin with its number.
_TUBE_KEY = re.compile(rb"^\{.*:(\d+)\}:")


class Change(NamedTuple):
    """What a call changed in a tube: the epoch, and a version that includes it. `client`: the name by which the call
    takes turns to write, if it has one; `told`: what its list had if it waited there for this change, see pool.lua."""

    tube: Tube
    epoch: str
    version: float
    client: str = ""
    told: bytes | None = None


def list_of(keys: Keys, tube: Tube, client: str) -> bytes:
    """The list that ends a client's wait."""
    return keys.name(tube.no, f"turn:{client}")


class Interrupted(StoreUnavailable):
    """The index was lost; the step that raises this changed nothing."""

    def __init__(self) -> None:
        super().__init__("the index of the pool was lost meanwhile: try again")


class Waiting(Request, frozen=True, gc=False):
    """A script whose caller then waits at a list, in the same round trip."""

    wait: Request


class WatchedServer(Servers):
    """One server, identified by its run id.

    If the run id has changed, `recover` is called. If the index of a tube is of another epoch, `restore` is called with
    the tube's number, and returns False if there is no such tube. Then the command is sent again.
    """

    #: A script checks the epoch of one tube only, so none may use the keys of several.
    one_server = False

    def __init__(self, where: Location) -> None:
        super().__init__(where)
        self.run_id: str | None = None
        self.epoch = 0
        self.recover: Callable[[], object] | None = None
        self.restore: Callable[[int], bool] = lambda no: True
        self._thread = threading.local()
        # Calls that wait for a write hold their connections, which must not keep the writer from its own.
        self._waits = self._nodes["", 0] = Connections(self._connections.open_new, self.label)
        self._connections.on_connect = self._waits.on_connect = self._check_run

    def trusted(self) -> AbstractContextManager[None]:
        """A context in which this thread may connect to a server with another run id; recovery needs this."""
        return self._set_flag("trusts")

    def strictly(self) -> AbstractContextManager[None]:
        """A context in which this thread raises Interrupted instead of recovering: it holds a lock that recovery needs,
        or is recovering already."""
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
        """Whether this thread is in the context `strictly`."""
        return getattr(self._thread, "strict", False)

    def wait_at(self, called: bytes) -> bytes | None:
        """Wait at a list for at most a second. Returns what came."""
        reply = self._retry(lambda: unwrap(exchange_scripts(self._waits, [_wait_at(called)])[0]))
        return None if reply is None else reply[1]

    def read_run_id(self) -> str:
        """The run id of the server."""
        return parse_info(self.send(b"", b"INFO", b"server"))["run_id"]

    def send(self, key: bytes, *words: Argument) -> Reply:
        """Send an idempotent command without checking the epoch of its tube."""
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
    def marked(self) -> tuple[float, bytes | None]:
        """The version of the last mark that the last script of this thread made; 0 if it marked nothing, infinite if
        that is unknown. Then what its list had, if it waited."""
        return cast("tuple[float, bytes | None]", self._thread.marked)

    def run(self, request: Request, *, idempotent: bool) -> Reply:
        attempt = partial(self._exchange, request, [])
        return self._watched(lambda: self._retry(attempt, idempotent=idempotent))

    def _exchange(self, request: Request, tries: list[Request]) -> Reply:
        tries.append(request)
        try:
            if isinstance(request, Waiting):
                replies = exchange_scripts(self._waits, [request, request.wait])
            else:
                replies = exchange_scripts(self._connections, [request])
        except AnswerLost as lost:
            if not lost.replies:
                raise
            replies = list(lost.replies)
        version, reply = _answer(request, unwrap(replies[0]))
        told = replies[1] if len(replies) > 1 else None  # an error if the server began to load its data
        # An earlier try may have changed something.
        self._thread.marked = version or (0 if len(tries) == 1 else inf), told[1] if isinstance(told, list) else None
        return reply

    def run_all(self, requests: Sequence[Request]) -> list[Reply]:
        replies = self._watched(lambda: super(WatchedServer, self).run_all(requests))
        return [_answer(request, reply)[1] for request, reply in zip(requests, replies, strict=True)]

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


def _wait_at(called: bytes) -> Request:
    return Request(None, (called,), b"*3\r\n" + packed(b"BLPOP", called, 1))


def _answer(request: Request, reply: Reply) -> tuple[int, Reply]:
    """The version of a script's last mark, 0 for none; its answer."""
    if request.script is None or not request.script.pooled:
        return 0, reply
    return cast("tuple[int, Reply]", reply)


class EpochRunner(ScriptRunner):
    """Runs scripts in an epoch."""

    servers: WatchedServer

    def __init__(self, servers: WatchedServer, keys: Keys, clock: Callable[[], int] | None, *, modern: bool) -> None:
        super().__init__(servers, keys, clock, modern=modern)
        self.reset()

    def reset(self) -> None:
        """Choose the name by which calls of this process take turns to write; a forked child needs another."""
        self._thread = threading.local()
        self._name, self._calls = uuid4().hex, count()
        self._loaded: set[Script | None] = set()

    def new_client(self) -> str:
        """The name of a new call."""
        return f"{self._name}.{next(self._calls)}"

    def on_tube(self, name: str, tube: Tube, *arguments: Argument, idempotent: bool = False) -> list[Reply]:
        """As in ScriptRunner; restores the tube's index first if it is lost."""
        changes: dict[int, Change] | None = getattr(self._thread, "changes", None)
        waits = changes == {} and self._thread.waits and name in WAITED
        client = self._thread.client if waits else ""
        make = partial(self.tube_request, name, tube, *arguments)
        reply, change = self.change_tube(tube, make, client, idempotent=idempotent)
        if change.version and changes is not None:
            first = changes.get(tube.no, change)  # if its epoch has ended, the change is lost, and the write must fail
            changes[tube.no] = change._replace(client=self._thread.client, epoch=first.epoch)
        return reply

    def change_tube(
        self, tube: Tube, make: Callable[..., Request], client: str, *, idempotent: bool = False
    ) -> tuple[list[Reply], Change]:
        """Run a script that `make` makes from `client` and `epoch`. Restores the tube's index first if it is lost.
        A client that is not "" waits until the vault has the changes, or until it is to write them."""
        while True:
            epoch = str(self.servers.epoch)
            request = make(client=client, epoch=epoch)
            if client and request.script in self._loaded:
                wait = _wait_at(list_of(self.keys, tube, client))
                request = Waiting(request.script, request.keys, request.command, wait)
            elif client:  # if the server does not know the script, the caller would wait in vain
                self._loaded.add(request.script)
                request = make(client="", epoch=epoch)
            try:
                reply = self.ask(tube, request, idempotent=idempotent)
            except (Interrupted, NoSuchTube):
                if self.servers.strict:
                    raise
                if not self.servers.restore(tube.no) or self.frozen(tube) is not None:
                    raise self.missing(tube) from None
                client = ""  # a server that has lost the index may have lost the script
                continue
            return reply, Change(tube, epoch, self.servers.marked[0], client, self.servers.marked[1])

    def in_epoch(self, epoch: str, name: str, tube: Tube, *arguments: Argument) -> list[Reply]:
        """As `on_tube`, but only in this epoch: raises Interrupted if it has ended."""
        return self.ask(tube, self.tube_request(name, tube, *arguments, epoch=epoch), idempotent=False)

    def known(self, tube: Tube, reply: list[Reply]) -> list[Reply]:
        if reply[0] == OTHER_EPOCH:
            raise Interrupted
        return super().known(tube, reply)

    def tube_request(
        self, name: str, tube: Tube, *arguments: Argument, client: str = "", epoch: str | None = None
    ) -> Request:
        """As in ScriptRunner, with the client and the epoch, by default the current one, as last arguments."""
        return super().tube_request(name, tube, *arguments, client, epoch or str(self.servers.epoch))

    def script(self, name: str, sort: str) -> Script:
        return load_script(name, sort=sort, modern=self.modern, pooled=True)

    @contextmanager
    def gathering(self, *, waits: bool = False) -> Iterator[dict[int, Change]]:
        """A context that collects the last change of each tube that this thread changes, by the tube's number. `waits`:
        the script of the first change may wait for its commit. Then the vault may lack the data of removed tasks."""
        self._thread.client, self._thread.changes, self._thread.waits = self.new_client(), {}, waits
        try:
            yield self._thread.changes
        finally:
            self._thread.changes = None

    def written(self, tube: Tube) -> None:
        """Record that the vault has all changes of this thread to the tube."""
        (getattr(self._thread, "changes", None) or {}).pop(tube.no, None)
