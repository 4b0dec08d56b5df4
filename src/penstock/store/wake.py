"""An Event that `poll` can wait for beside other descriptors, where the system has eventfd (Linux)."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress


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
