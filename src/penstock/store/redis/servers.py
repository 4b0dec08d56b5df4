"""Where a script runs: one server (perhaps found through sentinels), or the node of a cluster that has its slot.

Decides what is sent again: a call the server never had, or refused for the moment, always; one whose answer was lost
only when doing it twice is the same as once.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Protocol, cast

import msgspec
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from penstock.store.redis.faults import Unheard, Unsent, not_now, translated
from penstock.store.redis.link import Argument, Command, Connection, Link, Reply, packed
from penstock.store.redis.location import Location
from penstock.store.redis.scripts import Script

CONNECT_SECONDS = 5.0
# A call that takes longer than any script of ours means that the server or the way to it is stuck.
ANSWER_SECONDS = 30.0
# How often a call is sent again, and the longest pause between: some three seconds in all, which is a failover.
TRIES = 8
LONGEST_PAUSE = 0.8
# No new try after so long, when each takes its time to fail.
PATIENCE_SECONDS = 10.0
# redis-py 7.1 and later look their version up among the installed packages, for every connection that is not told it:
# half a millisecond each.
_DRIVER: dict[str, object] = {"driver_info": redis.DriverInfo()} if hasattr(redis, "DriverInfo") else {}


class Request(msgspec.Struct, frozen=True):
    """One script with its keys and arguments; `packed` is the whole command as it is sent, where that is known."""

    script: Script
    keys: Sequence[bytes]
    arguments: Sequence[bytes | str | int | float]
    packed: bytes | None = None


class Servers(Protocol):
    """One server or a cluster of them."""

    label: str
    #: Whether a script may use the keys of several tubes.
    together: bool

    def run(self, request: Request, *, again: bool) -> Reply:
        """Run a script; `again` says that running it twice is the same as once."""

    def run_all(self, requests: Sequence[Request]) -> list[Reply]:
        """Run scripts that may each run twice, in as few round trips as there are servers."""

    def command(self, key: bytes, *words: Argument) -> Reply:
        """A command that only reads."""

    def command_all(self, commands: Sequence[tuple[bytes, Command]]) -> list[Reply]:
        """Many of them, each with its key, in as few round trips as can be."""

    def each(self, commands: Sequence[Command]) -> dict[str, list[Reply]]:
        """What every server that has keys answers to commands that only read, errors too, by its name."""

    def listen(self) -> Connection:
        """A connection for a subscriber."""

    def close(self) -> None: ...
    def forsake(self) -> None: ...


def command_of(request: Request) -> Command:
    """EVALSHA, whatever the server has loaded."""
    if request.packed is not None:
        return request.packed
    keys, arguments = tuple(request.keys), request.arguments
    words = 3 + len(keys) + len(arguments)
    return b"*%d\r\n%b%b" % (words, _head(request.script.digest, keys), packed(*arguments))


@lru_cache(maxsize=1024)
def _head(digest: bytes, keys: tuple[bytes, ...]) -> bytes:
    """What a script's calls for a tube begin with; packing it anew would be half of what a call costs here."""
    return packed(b"EVALSHA", digest, len(keys), *keys)


def ask(link: Link, commands: Sequence[Command], requests: Sequence[Request | None]) -> list[Reply]:
    """All answers; scripts that the server does not know are loaded, and those calls made again."""
    replies = link.exchange(commands)
    unknown = [i for i, reply in enumerate(replies) if isinstance(reply, redis.exceptions.NoScriptError)]
    if unknown:
        scripts = {request.script for i in unknown if (request := requests[i]) is not None}
        loads: list[Command] = [(b"SCRIPT", b"LOAD", script.text) for script in scripts]
        renewed = link.exchange([*loads, *(commands[i] for i in unknown)])
        for i, reply in zip(unknown, renewed[len(loads) :], strict=True):
            replies[i] = reply
    return replies


def persist(attempt: Callable[[], Reply], label: str, *, again: bool, renew: Callable[[], None]) -> Reply:
    """What the attempt answers, made again while that is safe; `renew` is called before each new one."""
    ends = time.monotonic() + PATIENCE_SECONDS
    for left in reversed(range(TRIES)):
        try:
            return attempt()
        except (Unsent, Unheard, redis.RedisError) as error:
            safe = again or not isinstance(error, Unheard)
            if (
                not (isinstance(error, (Unsent, Unheard)) or not_now(error))
                or not safe
                or not left
                or time.monotonic() > ends
            ):
                raise translated(error, label) from error
        # Half to full of 50, 100, 200 ms …, so that many callers do not come back at once.
        time.sleep(min(LONGEST_PAUSE, 0.05 * 2 ** (TRIES - 1 - left)) * random.uniform(0.5, 1))
        renew()
    raise AssertionError("the last try returns or raises")


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


def maker(where: Location, host: str, port: int) -> Callable[[], Connection]:
    """Makes connections to one server."""
    kind = redis.SSLConnection if where.tls else redis.Connection
    options = connect_options(where)
    return lambda: cast(Connection, kind(host=host, port=port, db=where.db, **options))  # type: ignore[arg-type]


def sentinel_maker(where: Location) -> Callable[[], Connection]:
    """Makes connections to whichever server the sentinels call the master at that moment."""
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
    # Not by the pool's own `make_connection`, which counts them, up to a limit, and is never told of one that ended.
    return lambda: cast(Connection, pool.connection_class(**pool.connection_kwargs))


class OneServer:
    """A single server."""

    together = True

    def __init__(self, where: Location) -> None:
        self.label = where.label
        make = sentinel_maker(where) if where.master else maker(where, *where.hosts[0])
        self._link = Link(make, self.label)

    def run(self, request: Request, *, again: bool) -> Reply:
        commands = [command_of(request)]
        return persist(
            lambda: raised(ask(self._link, commands, [request])[0]), self.label, again=again, renew=self._link.reset
        )

    def run_all(self, requests: Sequence[Request]) -> list[Reply]:
        commands = [command_of(request) for request in requests]

        def attempt() -> Reply:
            replies = ask(self._link, commands, requests)
            for reply in replies:
                raised(reply)
            return replies

        return cast("list[Reply]", persist(attempt, self.label, again=True, renew=self._link.reset)) if requests else []

    def command(self, key: bytes, *words: Argument) -> Reply:
        return persist(lambda: self._link.call(words), self.label, again=True, renew=self._link.reset)

    def command_all(self, commands: Sequence[tuple[bytes, Command]]) -> list[Reply]:
        words = [command for _, command in commands]

        def attempt() -> Reply:
            return [raised(reply) for reply in self._link.exchange(words)]

        return cast("list[Reply]", persist(attempt, self.label, again=True, renew=self._link.reset)) if words else []

    def each(self, commands: Sequence[Command]) -> dict[str, list[Reply]]:
        def attempt() -> Reply:
            replies = self._link.exchange(commands)
            raised(replies[0])
            return replies

        reply = persist(attempt, self.label, again=True, renew=self._link.reset)
        return {self.label: cast("list[Reply]", reply)}

    def listen(self) -> Connection:
        return self._link.fresh()

    def close(self) -> None:
        self._link.close()

    def forsake(self) -> None:
        self._link.forsake()


def raised(reply: Reply) -> Reply:
    """The reply, unless it is an error."""
    if isinstance(reply, Exception):
        raise reply
    return reply
