"""Connections to one Redis server, and commands over them: one round trip each, or many in one."""

from __future__ import annotations

import select
import threading
from collections.abc import Callable, Sequence
from typing import Protocol

import redis

from penstock.errors import StoreBusy, StoreUnavailable
from penstock.store.redis.faults import Unheard, Unsent

Argument = bytes | str | int | float
# Words, or what they are when sent.
Command = Sequence[Argument] | bytes
Reply = object

# Calls under way at once; each has a connection of its own. More callers than that wait.
MOST_CONNECTIONS = 100
# Longest wait for one of them.
PATIENCE_SECONDS = 30.0


class Connection(Protocol):
    """What we use of redis-py's connections."""

    _sock: object

    def connect(self) -> None: ...
    def disconnect(self) -> None: ...
    def pack_command(self, *args: Argument) -> list[bytes]: ...
    def send_packed_command(self, command: list[bytes], check_health: bool = ...) -> None: ...
    def read_response(self, disable_decoding: bool = ...) -> Reply: ...
    def can_read(self, timeout: float = ...) -> bool: ...


class Wire:
    """One connection, with a cheap look whether the server has closed it meanwhile."""

    __slots__ = ("_poll", "connection")

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._poll: select.poll | None = None

    def connect(self) -> None:
        """Have it open."""
        self.connection.connect()
        self._poll = select.poll()
        self._poll.register(self.connection._sock, select.POLLIN)  # type: ignore[arg-type]

    def usable(self) -> bool:
        """Open, and nothing to read: what would come unasked is the end, or an answer nobody waits for."""
        return self._poll is not None and self.connection._sock is not None and not self._poll.poll(0)


# Connections of a parent process: the child forgets them, but must not close them.
_forsaken: list[Wire] = []


class Link:
    """The connections to one server. A connection whose call did not end well is closed, never used again."""

    def __init__(self, make: Callable[[], Connection], label: str) -> None:
        self.label = label
        self._make = make
        self._idle: list[Wire] = []
        self._room = threading.BoundedSemaphore(MOST_CONNECTIONS)
        self._closed = False
        #: Looks at every new connection before it is used; what it raises, the call raises, and nothing was sent.
        self.greet: Callable[[Connection], None] | None = None

    def call(self, command: Command) -> Reply:
        """The server's answer; its errors are raised. Unsent and Unheard tell how a connection broke."""
        [reply] = self.exchange([command])
        if isinstance(reply, Exception):
            raise reply
        return reply

    def exchange(self, commands: Sequence[Command]) -> list[Reply]:
        """All answers in order, in one round trip; an error of the server's stands at its place."""
        if not self._room.acquire(timeout=PATIENCE_SECONDS):
            raise StoreBusy(f"{self.label}: {MOST_CONNECTIONS} calls are under way: make fewer at once")
        try:
            wire = self._wire()
            done = False
            try:
                replies = exchange_on(wire.connection, commands)
                done = True
                return replies
            finally:  # also when the thread is interrupted: then answers are still to come on this one
                if done and not self._closed:
                    self._idle.append(wire)
                else:
                    wire.connection.disconnect()
        finally:
            self._room.release()

    def fresh(self) -> Connection:
        """A connection of its own for a caller who closes it."""
        connection = self._make()
        connection.connect()
        return connection

    def close(self) -> None:
        """Close what is idle, and what is in use when it comes back."""
        self._closed = True
        self.reset()

    def reset(self) -> None:
        """Close the idle connections: the server behind them may have changed its role."""
        while self._idle:
            self._idle.pop().connection.disconnect()

    def forsake(self) -> None:
        """In a forked child."""
        _forsaken.extend(self._idle)
        self._idle = []
        self._room = threading.BoundedSemaphore(MOST_CONNECTIONS)

    def _wire(self) -> Wire:
        while True:
            try:
                wire = self._idle.pop()  # the last used one: the others may be closed by the server when never used
            except IndexError:
                break
            if wire.usable():
                return wire
            wire.connection.disconnect()
        if self._closed:
            raise StoreUnavailable(f"{self.label} was closed: connect again")
        wire = Wire(self._make())
        try:
            wire.connect()
        except (redis.ConnectionError, redis.TimeoutError, OSError) as error:
            raise Unsent from error
        if self.greet is not None:
            try:
                self.greet(wire.connection)
            except BaseException:
                wire.connection.disconnect()
                raise
        return wire


def packed(*words: Argument) -> bytes:
    """Words of a command, as they are sent."""
    texts = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    return b"".join([b"$%d\r\n%b\r\n" % (len(text), text) for text in texts])


def exchange_on(connection: Connection, commands: Sequence[Command]) -> list[Reply]:
    """All answers to some commands over one connection."""
    parts: list[bytes] = []
    for command in commands:
        parts += [command] if isinstance(command, bytes) else connection.pack_command(*command)
    try:
        connection.send_packed_command([b"".join(parts)] if len(parts) > 1 else parts, check_health=False)
    except (redis.ConnectionError, redis.TimeoutError, OSError) as error:
        # Half a command is none. Of several, some may have been whole.
        raise (Unsent if len(commands) == 1 else Unheard) from error
    replies: list[Reply] = []
    for _ in commands:
        try:
            replies.append(connection.read_response(disable_decoding=True))
        except redis.exceptions.BusyLoadingError as error:
            replies.append(error)
        except redis.exceptions.AuthenticationError:  # to redis-py a broken connection, but it is an answer
            raise
        except (redis.ConnectionError, redis.TimeoutError, OSError) as error:
            raise Unheard from error
        except redis.RedisError as error:
            replies.append(error)
    return replies
