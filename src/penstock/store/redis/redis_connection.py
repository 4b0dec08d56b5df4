"""Connections to one Redis server, pipelines of commands, and the translation of redis-py's errors to penstock's.

If a connection breaks, the error says whether the server may have run the command.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast

import redis

from penstock.errors import OutcomeUnknown, StoreBusy, StoreCorrupt, StoreError, StoreFull, StoreUnavailable
from penstock.store.sql.server import Pool
from penstock.system.wake import until_readable


class NotSent(Exception):
    """The server never received the whole command, so it is safe to send again."""


class AnswerLost(Exception):
    """The command was sent, but its answer never came. `replies`: those of the commands before it."""

    replies: Sequence[object] = ()


# Answers of a server that refused temporarily, and did nothing.
TEMPORARY = (
    redis.exceptions.BusyLoadingError,
    redis.exceptions.ReadOnlyError,
    redis.exceptions.TryAgainError,
    redis.exceptions.ClusterDownError,
)


def translate(error: BaseException, label: str) -> StoreError:
    """The penstock error for a driver's error; its message says what to do next."""
    text = str(error)
    if isinstance(error, AnswerLost):
        return OutcomeUnknown(
            f"{label} disconnected before it answered ({error.__cause__}): the call may or may not be stored; "
            "check before retrying"
        )
    refused = error.__cause__ if isinstance(error, NotSent) else error
    if isinstance(refused, redis.exceptions.AuthenticationError):
        return StoreUnavailable(f"{label} refuses the user or the password of its URL ({refused}): check both")
    if isinstance(refused, redis.sentinel.MasterNotFoundError):
        found = str(refused).partition(" : ")[0]  # the rest lists every setting of the driver
        return StoreUnavailable(f"{label} cannot be used now ({found}): check the sentinels, and the name")
    if "DB index is out of range" in f"{text}{refused}":
        return StoreUnavailable(f"{label} has no such database ({refused}): name another number in the URL")
    if isinstance(error, (NotSent, redis.ConnectionError, redis.TimeoutError, OSError, *TEMPORARY)):
        cause = error.__cause__ or error
        return StoreUnavailable(f"{label} cannot be reached now ({cause}): check that it runs, then try again")
    if isinstance(error, redis.exceptions.OutOfMemoryError) or "OOM command" in text:
        return StoreFull(f"{label} is at its memory limit: raise maxmemory; takes, acks and deletes still work")
    if text.startswith("MISCONF"):
        return StoreFull(f"{label} cannot write to its disk and refuses writes ({text}): free space there")
    if isinstance(error, redis.exceptions.ResponseError) and "WRONGTYPE" in text:
        return StoreCorrupt(f"{label} has keys of another program under this prefix ({text}): choose another prefix")
    if isinstance(error, redis.exceptions.NoPermissionError):
        return StoreUnavailable(f"{label} does not permit this user what penstock needs ({text}): extend its ACL")
    if text.startswith("BUSY"):
        return StoreBusy(f"{label} is busy with a script of another client: wait, or SCRIPT KILL it ({text})")
    return StoreError(f"{label}: {text}")


Argument = bytes | str | int | float
# The words of a command, or the command as it is sent.
Command = Sequence[Argument] | bytes
# What a server answers; of a script, see its `Returns`.
Reply = Any

# The most calls in flight; each has its own connection. Further callers wait.
MOST_CONNECTIONS = 100
# The longest wait for a connection.
PATIENCE_SECONDS = 30.0


class Connection(Protocol):
    """The part of redis-py's connections that penstock uses."""

    _sock: object

    def connect(self) -> None: ...
    def disconnect(self) -> None: ...
    def can_read(self, timeout: float) -> bool: ...
    def pack_command(self, *args: Argument) -> list[bytes]: ...
    def send_command(self, *args: Argument) -> None: ...
    def send_packed_command(self, command: list[bytes], check_health: bool = ...) -> None: ...
    def read_response(self, disable_decoding: bool = ...) -> Reply: ...


class Link:
    """A pooled connection, with a cheap test of whether the server has closed it."""

    __slots__ = ("_unread", "connection")

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._unread = until_readable(cast(socket.socket, connection._sock).fileno())

    def hung_up(self) -> bool:
        """Whether the connection is closed, or has something to read: its end, or a stray answer."""
        return self.connection._sock is None or bool(self._unread(0))

    def close(self) -> None:
        """Close the connection."""
        self.connection.disconnect()


# Connections of the parent process: a forked child drops them, but must not close them.
_inherited: list[Link] = []


class Connections:
    """The connections to one server. A connection whose call failed is closed, never reused."""

    def __init__(self, make: Callable[[], Connection], label: str) -> None:
        self._make = make
        self.pool = Pool(self._open, MOST_CONNECTIONS, label)
        #: Called with every new connection before its first use. If this raises, the caller gets the error, and
        #: nothing was sent.
        self.on_connect: Callable[[Connection], None] | None = None

    def exchange(self, commands: Sequence[Command]) -> list[Reply]:
        """Send commands in one round trip. Returns the answers in order, errors of the server among them."""
        link, done = self.pool.borrow(PATIENCE_SECONDS), False
        try:
            replies = exchange_on(link.connection, commands)
            done = True
            return replies
        finally:  # an interrupted thread must not reuse the connection: answers are still to come on it
            self.pool.give_back(link, usable=done)

    def open_new(self) -> Connection:
        """A new connection, which the caller must close."""
        connection = self._make()
        connection.connect()
        return connection

    def after_fork(self) -> None:
        """Forget the parent's connections in a forked child."""
        _inherited.extend(self.pool.idle)
        self.pool.reset()

    def _open(self, seconds: float) -> Link:
        try:
            connection = self.open_new()
        except (redis.ConnectionError, redis.TimeoutError, OSError) as error:
            raise NotSent from error
        try:
            if self.on_connect is not None:
                self.on_connect(connection)
        except BaseException:
            connection.disconnect()
            raise
        return Link(connection)


def packed(*words: Argument) -> bytes:
    """The words of a command, as they are sent."""
    parts = []
    for word in words:
        text = word if isinstance(word, bytes) else str(word).encode()
        parts.append(b"$%d\r\n%b\r\n" % (len(text), text))
    return b"".join(parts)


def exchange_on(connection: Connection, commands: Sequence[Command]) -> list[Reply]:
    """Send commands over one connection and read all answers."""
    parts: list[bytes] = []
    for command in commands:
        parts += [command] if isinstance(command, bytes) else connection.pack_command(*command)
    try:
        connection.send_packed_command([b"".join(parts)] if len(parts) > 1 else parts, check_health=False)
    except (redis.ConnectionError, redis.TimeoutError, OSError) as error:
        # A server ignores a partial command. Of several commands, some may have been complete.
        raise (NotSent if len(commands) == 1 else AnswerLost) from error
    replies: list[Reply] = []
    for _ in commands:
        try:
            replies.append(connection.read_response(disable_decoding=True))
        except redis.exceptions.BusyLoadingError as error:
            replies.append(error)
        except redis.exceptions.AuthenticationError:  # a ConnectionError in redis-py, but the server did answer
            raise
        except (redis.ConnectionError, redis.TimeoutError, OSError) as error:
            lost = AnswerLost()
            lost.replies = replies
            raise lost from error
        except redis.RedisError as error:
            replies.append(error)
    return replies
