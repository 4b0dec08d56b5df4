"""Waiting for sockets: `select.poll` where the system has it, else `select.select` (Windows)."""

from __future__ import annotations

import select
from typing import Protocol, cast

READABLE = getattr(select, "POLLIN", 1)
WRITABLE = getattr(select, "POLLOUT", 4)


class HasFileno(Protocol):
    """A socket, or another thing with a descriptor."""

    def fileno(self) -> int: ...


class Poll:
    """What stores use of `select.poll`, by `select.select`: slower, and for few sockets only."""

    def __init__(self) -> None:
        self._events: dict[int, int] = {}

    def register(self, fd: int | HasFileno, events: int, /) -> None:
        """Watch a descriptor for these events."""
        self._events[fd if isinstance(fd, int) else fd.fileno()] = events

    def poll(self, milliseconds: float | None = None, /) -> list[tuple[int, int]]:
        """Wait; the descriptors on which something happened, and what."""
        timeout = None if milliseconds is None or milliseconds < 0 else milliseconds / 1000
        reading = [fd for fd, events in self._events.items() if events & READABLE]
        writing = [fd for fd, events in self._events.items() if events & WRITABLE]
        readable, writable, _ = select.select(reading, writing, [], timeout)
        return [(fd, READABLE * (fd in readable) | WRITABLE * (fd in writable)) for fd in {*readable, *writable}]


def make_poll() -> Poll:
    """A new poll object."""
    return cast(Poll, select.poll()) if hasattr(select, "poll") else Poll()
