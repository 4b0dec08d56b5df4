"""Where scripts run: on one server (perhaps found through sentinels), or on the cluster node that has their slot.

Calls that the server never received or refused temporarily are always retried; calls whose answer was lost only if they
are idempotent.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import cast

import msgspec
import redis
from redis.backoff import NoBackoff
from redis.crc import key_slot
from redis.retry import Retry

from penstock.store.redis.location import Location
from penstock.store.redis.redis_connection import (
    AnswerLost,
    Argument,
    Command,
    Connection,
    Connections,
    NotSent,
    Reply,
    is_temporary,
    translate,
)
from penstock.store.redis.scripts import Script

CONNECT_SECONDS = 5.0
# Longer than any of our scripts takes: after this time, the server or the network is stuck.
ANSWER_SECONDS = 30.0
# Attempts per call, and the longest pause between them: some three seconds in all, long enough for a failover.
TRIES = 8
LONGEST_PAUSE = 0.8
# No further attempt after this time, if each is slow to fail.
PATIENCE_SECONDS = 10.0
_REDIRECTIONS = 5
_MISSING = LookupError("a node did not answer")
# Without driver_info, redis-py 7.1 and later look up their version among the installed packages: half a millisecond for
# each connection.
_DRIVER: dict[str, object] = {"driver_info": redis.DriverInfo()} if hasattr(redis, "DriverInfo") else {}


class Request(msgspec.Struct, frozen=True, gc=False):
    """A script with its keys, and the command that runs it."""

    script: Script
    keys: Sequence[bytes]
    command: bytes


Address = tuple[str, int]
# A key, whose slot selects the node; the command; and the script that it runs, if any.
Call = tuple[bytes, Command, Request | None]


def exchange_scripts(node: Connections, commands: Sequence[Command], requests: Sequence[Request | None]) -> list[Reply]:
    """Send commands and return all answers. If the server does not know some scripts, load them and send again from the
    first of them on, because commands after a script may rely on it."""
    replies = node.exchange(commands)
    unknown = [i for i, reply in enumerate(replies) if isinstance(reply, redis.exceptions.NoScriptError)]
    if unknown:
        scripts = {request.script for i in unknown if (request := requests[i]) is not None}
        loads: list[Command] = [(b"SCRIPT", b"LOAD", script.text) for script in scripts]
        replies[unknown[0] :] = node.exchange([*loads, *commands[unknown[0] :]])[len(loads) :]
    return replies


def unwrap(reply: Reply) -> Reply:
    """Return the reply, or raise it if it is an error."""
    if isinstance(reply, Exception):
        raise reply
    return reply


def connect_options(where: Location) -> dict[str, object]:
    """redis-py's settings for every connection."""
    return {
        "username": where.username,
        "password": where.password,
        "socket_timeout": ANSWER_SECONDS,
        "socket_connect_timeout": CONNECT_SECONDS,
        "socket_keepalive": True,
        "protocol": 2,
        "retry": Retry(NoBackoff(), 0),
        **_DRIVER,
        **where.settings,
    }


def connection_maker(where: Location, host: str, port: int) -> Callable[[], Connection]:
    """A function that makes connections to one server."""
    kind = redis.SSLConnection if where.tls else redis.Connection
    options = connect_options(where)
    return lambda: cast(Connection, kind(host=host, port=port, db=where.db, **options))  # type: ignore[arg-type]


def sentinel_maker(where: Location) -> Callable[[], Connection]:
    """A function that makes connections to the current master, as the sentinels know it."""
    options = connect_options(where)
    own = {name: options.pop(f"sentinel_{name}", None) for name in ("username", "password")}
    sentinels = redis.Sentinel(  # type: ignore[no-untyped-call]
        list(where.hosts),
        sentinel_kwargs={
            **own,
            "socket_timeout": CONNECT_SECONDS,
            "socket_connect_timeout": CONNECT_SECONDS,
            "retry": Retry(NoBackoff(), 0),
        },
    )
    pool = sentinels.master_for(where.master or "", db=where.db, **options).connection_pool  # type: ignore[no-untyped-call]
    # The pool's `make_connection` counts connections up to a limit, but does not notice when one is closed.
    return lambda: cast(Connection, pool.connection_class(**pool.connection_kwargs))


class Servers:
    """One server. `Cluster` has several."""

    #: Whether one script may use the keys of several tubes.
    one_server = True

    def __init__(self, where: Location) -> None:
        self.label = where.label
        make = sentinel_maker(where) if where.master else connection_maker(where, *where.hosts[0])
        self._connections = Connections(make, self.label)

    def run(self, request: Request, *, idempotent: bool) -> Reply:
        """Run a script; `idempotent`: running it twice has the same effect as once."""
        return self._call((request.keys[0], request.command, request), idempotent=idempotent)

    def run_all(self, requests: Sequence[Request]) -> list[Reply]:
        """Run idempotent scripts, in as few round trips as there are servers."""
        return self._call_all([(request.keys[0], request.command, request) for request in requests])

    def command(self, key: bytes, *words: Argument) -> Reply:
        """Send a command that only reads, or that is idempotent."""
        return self._call((key, words, None), idempotent=True)

    def command_all(self, commands: Sequence[tuple[bytes, Command]]) -> list[Reply]:
        """Send many such commands, each with its key, in as few round trips as possible."""
        return self._call_all([(key, words, None) for key, words in commands])

    def ask_each(self, commands: Sequence[Command]) -> dict[str, list[Reply]]:
        """Send read-only commands to every server that has keys. Returns the answers, errors included, by server."""

        def attempt() -> Reply:
            replies = self._connections.exchange(commands)
            unwrap(replies[0])
            return replies

        return {self.label: cast("list[Reply]", self._retry(attempt))}

    def open_subscription(self) -> Connection:
        """A new connection, for a subscription."""
        return self._connections.open_new()

    def close(self) -> None:
        """Close all connections."""
        self._connections.close()

    def after_fork(self) -> None:
        """Leave the parent's connections alone in a forked child."""
        self._connections.after_fork()

    def _call(self, call: Call, *, idempotent: bool) -> Reply:
        return self._retry(lambda: self._ask(*call), idempotent=idempotent)

    def _ask(self, key: bytes, command: Command, request: Request | None) -> Reply:
        return unwrap(exchange_scripts(self._connections, [command], [request])[0])

    def _call_all(self, calls: Sequence[Call]) -> list[Reply]:
        """Send each server all its calls in one round trip; then retry failed calls one by one."""
        by_node, replies = dict[Connections, list[int]](), dict[int, Reply]()
        for place, (key, _, _) in enumerate(calls):
            if (node := self._node_of(key)) is not None:
                by_node.setdefault(node, []).append(place)
        for node, places in by_node.items():
            commands, requests = [calls[place][1] for place in places], [calls[place][2] for place in places]
            with suppress(NotSent, AnswerLost, redis.RedisError):
                replies.update(zip(places, exchange_scripts(node, commands, requests), strict=True))
        for place, call in enumerate(calls):
            if isinstance(replies.get(place, _MISSING), Exception):
                replies[place] = self._retry(partial(self._ask, *call))
        return [replies[place] for place in range(len(calls))]

    def _node_of(self, key: bytes) -> Connections | None:
        """The connections to the server that has a key; None if that is not known yet."""
        return self._connections

    def _retry(self, attempt: Callable[[], Reply], *, idempotent: bool = True) -> Reply:
        """Call `attempt` until it succeeds or must not be repeated."""
        ends = time.monotonic() + PATIENCE_SECONDS
        for left in reversed(range(TRIES)):
            try:
                return attempt()
            except (NotSent, AnswerLost, redis.RedisError) as error:
                lost = (NotSent, AnswerLost) if idempotent else NotSent
                if not (isinstance(error, lost) or is_temporary(error)) or not left or time.monotonic() > ends:
                    raise translate(error, self.label) from error
            # 50, 100, 200 ms ..., or up to half less, so that many callers do not retry at the same time.
            time.sleep(min(LONGEST_PAUSE, 0.05 * 2 ** (TRIES - 1 - left)) * random.uniform(0.5, 1))
            self._reset()
        raise AssertionError("the last try returns or raises")

    def _reset(self) -> None:
        """Prepare another attempt."""
        self._connections.reset()


class Cluster(Servers):
    """The nodes of one cluster; slots are learnt from the nodes' slot maps and from their redirections."""

    one_server = False

    def __init__(self, where: Location) -> None:
        self.label = where.label
        self._where = where
        self._lock = threading.Lock()
        self._nodes: dict[Address, Connections] = {}
        self._slots: dict[int, Address] = {}

    def ask_each(self, commands: Sequence[Command]) -> dict[str, list[Reply]]:
        """See `Servers.ask_each`. For a node that is down, its error replaces every answer."""
        self._retry(lambda: self._slots or self._learn(0))
        found: dict[str, list[Reply]] = {}
        for host, port in sorted(set(self._slots.values())):
            try:
                replies = self._node((host, port)).exchange(commands)
            except (NotSent, AnswerLost, redis.RedisError) as error:
                replies = [error.__cause__ or error] * len(commands)
            found[f"node {host}:{port}"] = replies
        return found

    def open_subscription(self) -> Connection:
        """A connection to any node: a message published on one node reaches the subscribers of all."""
        for address in self._known():
            try:
                return self._node(address).open_new()
            except (redis.ConnectionError, redis.TimeoutError, OSError):
                continue
        raise redis.ConnectionError("no node of the cluster answers")

    def close(self) -> None:
        for node in list(self._nodes.values()):  # a call in flight may add a node
            node.close()

    def after_fork(self) -> None:
        self._lock = threading.Lock()
        for node in self._nodes.values():
            node.after_fork()

    def _node_of(self, key: bytes) -> Connections | None:
        address = self._slots.get(key_slot(key))
        return None if address is None else self._node(address)

    def _ask(self, key: bytes, command: Command, request: Request | None) -> Reply:
        slot = key_slot(key)
        address = self._slots.get(slot) or self._learn(slot)
        asking = False
        for _ in range(_REDIRECTIONS):
            node = self._node(address)
            try:
                if asking:
                    return self._ask_migrating(node, command, request)
                return unwrap(exchange_scripts(node, [command], [request])[0])
            except redis.exceptions.MovedError as moved:
                address, asking = _address(moved, address), False
                self._slots[slot] = address
            except redis.exceptions.AskError as elsewhere:
                address, asking = _address(elsewhere, address), True
        raise redis.exceptions.TryAgainError(f"slot {slot} was redirected {_REDIRECTIONS} times")

    def _ask_migrating(self, node: Connections, command: Command, request: Request | None) -> Reply:
        """Send a command for a migrating slot. ASKING applies to the next command only, so load the script first."""
        loads: list[Command] = [] if request is None else [(b"SCRIPT", b"LOAD", request.script.text)]
        return unwrap(node.exchange([*loads, (b"ASKING",), command])[-1])

    def _learn(self, slot: int) -> Address:
        """Read the slot map from the first node that has one."""
        cause: Exception | None = None
        for address in self._known():
            try:
                slots = _read_slots(self._node(address), address)
            except (NotSent, redis.RedisError) as error:
                cause = error
                continue
            with self._lock:
                self._slots = slots
            if slot in slots:
                return slots[slot]
        if cause is not None:
            raise cause
        raise redis.exceptions.ClusterDownError(f"slot {slot} is not served")

    def _reset(self) -> None:
        with self._lock:
            self._slots = {}
            for node in self._nodes.values():
                node.reset()

    def _known(self) -> list[Address]:
        """The nodes known so far, then those of the URL."""
        return list(dict.fromkeys((*self._nodes, *self._where.hosts)))

    def _node(self, address: Address) -> Connections:
        node = self._nodes.get(address)
        if node is None:
            with self._lock:
                label = f"{self.label} node {address[0]}:{address[1]}"
                node = self._nodes.setdefault(address, Connections(connection_maker(self._where, *address), label))
        return node


def connect_servers(where: Location) -> Servers:
    """The server or the cluster of a location."""
    return Cluster(where) if where.scheme == "redis+cluster" else Servers(where)


def _read_slots(node: Connections, asked: Address) -> dict[int, Address]:
    """The slot map of one node; nodes without a host name are at the host that was asked."""
    slots: dict[int, Address] = {}
    try:
        found = cast("list[list[object]]", unwrap(node.exchange([(b"CLUSTER", b"SLOTS")])[0]))
    except AnswerLost as error:  # reading the map has no effect, so it can be repeated
        raise NotSent from error.__cause__
    for first, last, master, *_ in found:
        host, port, *_ = cast("list[object]", master)
        address = (cast("bytes | None", host) or b"").decode() or asked[0], cast(int, port)
        slots.update(dict.fromkeys(range(cast(int, first), cast(int, last) + 1), address))
    return slots


def _address(error: redis.exceptions.AskError, asked: Address) -> Address:
    """The node that an error redirects to; a node that does not know its own host name leaves it out."""
    host, port = error.node_addr
    return (host or asked[0], int(port))
