"""A small pool of connections to a SQL server."""

from __future__ import annotations

import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Generic, Protocol, TypeVar

from penstock.errors import StoreBusy, StoreUnavailable

# A connection that nobody needed for so long is closed.
IDLE_SECONDS = 600.0


class Pooled(Protocol):
    """A connection that only one thread uses at a time."""

    returned: float  # when it became idle

    def hung_up(self) -> bool:
        """Whether the server has ended the idle connection. No round trip."""

    def close(self) -> None:
        """Close it, whether or not the server is there."""


P = TypeVar("P", bound=Pooled)


class Pool(Generic[P]):
    """Up to `size` connections, opened when they are needed, the last used one first. `place` names the server."""

    def __init__(self, connect: Callable[[float], P], size: int, place: str) -> None:
        self._connect = connect  # is told how many seconds it has
        self._size = size
        self._place = place
        self._closed = False
        self.reset()

    def reset(self) -> None:
        """Forget all connections, as a forked child must."""
        self.idle: list[P] = []
        # A permit for each connection that may be in use. Not a Semaphore, which is made of Python: 4 µs of a put.
        self._permits: SimpleQueue[None] = SimpleQueue()
        for _ in range(self._size):
            self._permits.put(None)

    def borrow(self, seconds: float) -> P:
        """A live connection; StoreBusy when all are in use for too long, and what `connect` raises."""
        if self._closed:
            raise StoreUnavailable(f"this broker on {self._place} is closed: connect again")
        try:
            self._permits.get(timeout=seconds)
        except Empty:
            raise StoreBusy(
                f"all {self._size} connections to {self._place} were busy for {seconds} s: "
                "use fewer threads, or give the URL a larger pool_size"
            ) from None
        try:
            while (link := self._pop()) is not None:
                if not link.hung_up():
                    return link
                link.close()
            return self._connect(seconds)
        except BaseException:
            self._permits.put(None)
            raise

    def _pop(self, place: int = -1) -> P | None:
        try:
            return self.idle.pop(place)
        except IndexError:  # another thread has it
            return None

    def give_back(self, link: P, *, usable: bool) -> None:
        """The caller is done with it; `usable`: outside of any transaction."""
        link.returned = time.monotonic()
        if usable:
            self.idle.append(link)
        else:
            link.close()
        self._permits.put(None)
        if self._closed:
            self.close()
        elif len(self.idle) > 1 and link.returned - self.idle[0].returned > IDLE_SECONDS:
            oldest = self._pop(0)
            if oldest is not None:
                oldest.close()

    def close(self) -> None:
        """No more connections; those in use are closed when they come back."""
        self._closed = True
        while (link := self._pop()) is not None:
            link.close()
