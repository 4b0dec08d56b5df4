"""Where scripts run: on one server (perhaps found through sentinels), or on the cluster node that has their slot.

Calls that the server never received or refused temporarily are always retried; calls whose answer was lost only if they
are idempotent.
"""

from __future__ import annotations

import random
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
    TEMPORARY,
    AnswerLost,
    Argument,
    Command,
    Connection,
    Connections,
    NotSent,
    Reply,
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
    """A command with its keys, the first of which selects the node, and the script that it runs, if any."""

    script: Script | None
    keys: Sequence[bytes]
    command: Command


Address = tuple[str, int]
_ASKING = Request(None, (), (b"ASKING",))


def exchange_scripts(node: Connections, requests: Sequence[Request]) -> list[Reply]:
    """Send commands and return all answers. If the server does not know some scripts, load them and send again from the
    first of them on, because commands after a script may rely on it."""
    commands = [request.command for request in requests]
    replies = node.exchange(commands)
    unknown = [i for i, reply in enumerate(replies) if isinstance(reply, redis.exceptions.NoScriptError)]
    if unknown:
        scripts = {script for i in unknown if (script := requests[i].script) is not None}
        loads: list[Command] = [(b"SCRIPT", b"LOAD", script.text) for script in scripts]
        replies[unknown[0] :] = node.exchange([*loads, *commands[unknown[0] :]])[len(loads) :]
    return replies


def unwrap(reply: Reply) -> Reply:
    """Return the reply, or raise it if it is an error."""
    if isinstance(reply, Exception):
        raise reply
    return reply


def connection_maker(where: Location, host: str, port: int) -> Callable[[], Connection]:
    """A function that makes connections to one server."""
    kind = redis.SSLConnection if where.tls else redis.Connection
    options: dict[str, object] = {
        "username": where.username,
        "password": where.password,
        "socket_timeout": ANSWER_SECONDS,
        "socket_connect_timeout": CONNECT_SECONDS,
        "socket_keepalive": True,
        "protocol": 2,
        "retry": Retry(NoBackoff(), 0),
        **_DRIVER,
        **(where.settings if where.master is None else {}),
    }
    return lambda: cast(Connection, kind(host=host, port=port, db=where.db, **options))  # type: ignore[arg-type]


def sentinel_maker(where: Location) -> Callable[[], Connection]:
    """A function that makes connections to the current master, as the sentinels know it."""
    options: dict[str, object] = {name.removeprefix("sentinel_"): value for name, value in where.settings.items()}
    options |= {"socket_timeout": CONNECT_SECONDS, "socket_connect_timeout": CONNECT_SECONDS}
    options["retry"] = Retry(NoBackoff(), 0)
    sentinels = redis.Sentinel(list(where.hosts), sentinel_kwargs=options)  # type: ignore[no-untyped-call]
    return lambda: connection_maker(where, *sentinels.discover_master(where.master))()  # type: ignore[no-untyped-call]


class Servers:
    """One server. `Cluster` has several."""

    #: Whether one script may use the keys of several tubes.
    one_server = True

    def __init__(self, where: Location) -> None:
        self.label = where.label
        make = sentinel_maker(where) if where.master else connection_maker(where, *where.hosts[0])
        self._connections = Connections(make, self.label)
        self._nodes: dict[Address, Connections] = {where.hosts[0]: self._connections}

    def run(self, request: Request, *, idempotent: bool) -> Reply:
        """Send a request; `idempotent`: running it twice has the same effect as once."""
        return self._retry(lambda: self._ask(request), idempotent=idempotent)

    def run_all(self, requests: Sequence[Request]) -> list[Reply]:
        """Send each server all its idempotent requests in one round trip; then retry failed ones one by one."""
        by_node, replies = dict[Connections, list[int]](), dict[int, Reply]()
        for place, request in enumerate(requests):
            if (node := self._node_of(request.keys[0])) is not None:
                by_node.setdefault(node, []).append(place)
        for node, places in by_node.items():
            with suppress(NotSent, AnswerLost, redis.RedisError):
                replies.update(zip(places, exchange_scripts(node, [requests[i] for i in places]), strict=True))
        for place, request in enumerate(requests):
            if isinstance(replies.get(place, _MISSING), Exception):
                replies[place] = self._retry(partial(self._ask, request))
        return [replies[place] for place in range(len(requests))]

    def command(self, key: bytes, *words: Argument) -> Reply:
        """Send a command that only reads, or that is idempotent."""
        return self.run(Request(None, (key,), words), idempotent=True)

    def command_all(self, commands: Sequence[tuple[bytes, Command]]) -> list[Reply]:
        """Send many such commands, each with its key, in as few round trips as possible."""
        return self.run_all([Request(None, (key,), words) for key, words in commands])

    def ask_each(self, commands: Sequence[Command]) -> dict[str, list[Reply]]:
        """Send read-only commands to every server that has keys. Returns the answers, errors included, by server."""

        def attempt() -> Reply:
            replies = self._connections.exchange(commands)
            unwrap(replies[0])
            return replies

        return {self.label: self._retry(attempt)}

    def open_subscription(self) -> Connection:
        """A new connection, for a subscription."""
        return self._connections.open_new()

    def close(self) -> None:
        """Close all connections."""
        for node in list(self._nodes.values()):  # a call in flight may add a node
            node.pool.close()

    def after_fork(self) -> None:
        """Leave the parent's connections alone in a forked child."""
        for node in self._nodes.values():
            node.after_fork()

    def _ask(self, request: Request) -> Reply:
        return unwrap(exchange_scripts(self._connections, [request])[0])

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
                retried = (NotSent, AnswerLost, *TEMPORARY) if idempotent else (NotSent, *TEMPORARY)
                if not isinstance(error, retried) or not left or time.monotonic() > ends:
                    raise translate(error, self.label) from error
            # 50, 100, 200 ms ..., or up to half less, so that many callers do not retry at the same time.
            time.sleep(min(LONGEST_PAUSE, 0.05 * 2 ** (TRIES - 1 - left)) * random.uniform(0.5, 1))
            self._reset()
        raise AssertionError("the last try returns or raises")

    def _reset(self) -> None:
        """Prepare another attempt: the server behind idle connections may have changed its role."""
        for node in list(self._nodes.values()):
            node.pool.close_idle()


class Cluster(Servers):
    """The nodes of one cluster; slots are learnt from the nodes' slot maps and from their redirections."""

    one_server = False

    def __init__(self, where: Location) -> None:
        self.label = where.label
        self._where = where
        self._nodes = {}
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
        return self._node(random.choice(self._known())).open_new()

    def _node_of(self, key: bytes) -> Connections | None:
        address = self._slots.get(key_slot(key))
        return None if address is None else self._node(address)

    def _ask(self, request: Request) -> Reply:
        slot = key_slot(request.keys[0])
        address = self._slots.get(slot) or self._learn(slot)
        requests = [request]
        for _ in range(_REDIRECTIONS):
            try:
                return unwrap(exchange_scripts(self._node(address), requests)[-1])
            except redis.exceptions.AskError as error:  # or a MovedError, its subclass
                host, port = error.node_addr
                address = host or address[0], int(port)  # a node that does not know its own host name leaves it out
                requests = [_ASKING, request]
                if isinstance(error, redis.exceptions.MovedError):
                    requests, self._slots[slot] = [request], address
        raise redis.exceptions.TryAgainError(f"slot {slot} was redirected {_REDIRECTIONS} times")

    def _learn(self, slot: int) -> Address:
        """Read the slot map from the first node that has one."""
        cause: Exception = redis.exceptions.ClusterDownError(f"slot {slot} is not served")
        for address in self._known():
            try:
                self._slots = slots = _read_slots(self._node(address), address)
            except (NotSent, redis.RedisError) as error:
                cause = error
                continue
            if slot in slots:
                return slots[slot]
        raise cause

    def _reset(self) -> None:
        self._slots = {}
        super()._reset()

    def _known(self) -> list[Address]:
        """The nodes known so far, then those of the URL."""
        return list(dict.fromkeys((*self._nodes, *self._where.hosts)))

    def _node(self, address: Address) -> Connections:
        node = self._nodes.get(address)
        if node is None:
            label = f"{self.label} node {address[0]}:{address[1]}"
            # Of two threads that meet a node, one wins; connections are opened at first use.
            node = self._nodes.setdefault(address, Connections(connection_maker(self._where, *address), label))
        return node


def connect_servers(where: Location) -> Servers:
    """The server or the cluster of a location."""
    return Cluster(where) if where.scheme == "redis+cluster" else Servers(where)


def _read_slots(node: Connections, asked: Address) -> dict[int, Address]:
    """The slot map of one node; nodes without a host name are at the host that was asked."""
    slots: dict[int, Address] = {}
    try:
        found = unwrap(node.exchange([(b"CLUSTER", b"SLOTS")])[0])
    except AnswerLost as error:  # reading the map has no effect, so it can be repeated
        raise NotSent from error.__cause__
    for first, last, (host, port, *_), *_ in found:
        slots.update(dict.fromkeys(range(first, last + 1), ((host or b"").decode() or asked[0], port)))
    return slots
