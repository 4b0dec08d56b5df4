"""What wakes those who sleep: an Event that `poll` can wait for, where the system has eventfd (Linux), and news."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol, runtime_checkable


class Wake(threading.Event):
    """As an Event. A wake-up is never lost; one may come for nothing."""

    _fd: int | None = None
    #: Who hears of a change elsewhere in a thread of its own calls this there, and so spares waiters the way through
    #: the thread that sleeps on the event.
    on_news: Callable[[], object] | None = None

    def fileno(self) -> int:
        """Readable while it is set; made at first use."""
        if self._fd is None:
            self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            if self.is_set():  # whoever sets it from now on sees the descriptor
                os.eventfd_write(self._fd, 1)
        return self._fd

    def set(self) -> None:
        super().set()
        if self._fd is not None:
            os.eventfd_write(self._fd, 1)

    def clear(self) -> None:
        if self._fd is not None:
            with suppress(BlockingIOError):
                os.eventfd_read(self._fd)
        super().clear()

    def __del__(self) -> None:
        if self._fd is not None:
            os.close(self._fd)


def tell(wake: threading.Event | None) -> bool:
    """Tell of a change elsewhere, from the thread that heard of it; False where nobody asked for that."""
    if not isinstance(wake, Wake) or wake.on_news is None:
        return False
    wake.on_news()
    return True


class News(Protocol):
    """News of changes elsewhere, that one caller at a time can read while it sleeps: no change of threads is sooner."""

    def lend(self) -> threading.Event | None:
        """Let the caller `hear` until it gives back; the event ends its sleep. None: others hear for it."""

    def hear(self, seconds: float | None) -> bool:
        """Wait for news or the event, once, up to so long, and tell of news (`on_news`); False when that broke."""

    def give_back(self) -> None:
        """Hear no more. Where others wait, call `listen_on` then."""

    def listen_on(self) -> None:
        """Have a thread listen for those who wait, unless somebody hears."""


@runtime_checkable
class HeardStore(Protocol):
    """A store with such news."""

    @property
    def news(self) -> News: ...
