"""What wakes a waiting thread: an Event that `poll` can wait for, if the system has eventfd (Linux), and news."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol, runtime_checkable


class Wake(threading.Event):
    """An Event with a descriptor. A wake-up is never lost; a spurious one may come."""

    _fd: int | None = None
    #: Called by a background thread that is notified of a change elsewhere, so that takers are woken directly and not
    #: through the thread that sleeps on the event.
    on_news: Callable[[], object] | None = None

    def fileno(self) -> int:
        """A descriptor that is readable while the event is set; created at first use."""
        if self._fd is None:
            self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            if self.is_set():  # a later set() sees the descriptor
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
    """Report a change elsewhere from the thread that was notified; False if nobody registered for that."""
    if not isinstance(wake, Wake) or wake.on_news is None:
        return False
    wake.on_news()
    return True


class News(Protocol):
    """Notifications of changes elsewhere. One sleeping caller at a time reads them itself: no thread switch."""

    def lend(self) -> threading.Event | None:
        """Let the caller `hear` until it calls `give_back`; the event ends its sleep. None if another thread hears."""

    def hear(self, seconds: float | None) -> bool:
        """Wait once for a notification or the event, and report the former (`on_news`); False if that broke."""

    def give_back(self) -> None:
        """Stop hearing. If others wait, call `listen_on` next."""

    def listen_on(self) -> None:
        """Start a thread that listens for those who wait, unless somebody hears."""


@runtime_checkable
class HeardStore(Protocol):
    """A store with such notifications."""

    @property
    def news(self) -> News: ...
