"""Ways to wake a waiting thread: sockets, an Event that can be polled like one (with eventfd), and inotify."""

from __future__ import annotations

import ctypes
import os
import select
import selectors
import threading
from collections.abc import Callable
from contextlib import suppress

#: poll() needs no file descriptor, unlike epoll. Windows has only select().
Selector: type[selectors.BaseSelector] = getattr(selectors, "PollSelector", selectors.SelectSelector)
READABLE, WRITABLE = selectors.EVENT_READ, selectors.EVENT_WRITE
_IN_MODIFY = 0x2
_IN_NONBLOCK, _IN_CLOEXEC = getattr(os, "O_NONBLOCK", 0), getattr(os, "O_CLOEXEC", 0)


def until_readable(fd: int) -> Callable[..., object]:
    """Return a function that waits until a descriptor is readable, at most for the milliseconds that it is given, and
    returns something true if it is. Much cheaper than a selector."""
    if hasattr(select, "poll"):
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        return poll.poll
    return lambda ms=None: select.select([fd], [], [], None if ms is None else ms / 1000)[0]


class Wake(threading.Event):
    """An Event with a file descriptor. Wake-ups are never lost; spurious ones can occur."""

    _fd: int | None = None
    #: Called by a background thread that is notified of a change elsewhere, so that takers are woken directly and not
    #: through the thread that sleeps on the event.
    on_notification: Callable[[], object] | None = None

    def fileno(self) -> int:
        """Return a descriptor that is readable while the event is set; it is created at first use."""
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


def watch_writes(path: str) -> int | None:
    """An inotify descriptor that is readable after a write; None if the kernel refuses one."""
    libc = ctypes.CDLL(None, use_errno=True)
    fd = int(libc.inotify_init1(_IN_NONBLOCK | _IN_CLOEXEC))
    if fd >= 0 and libc.inotify_add_watch(fd, os.fsencode(path), _IN_MODIFY) >= 0:
        return fd
    if fd >= 0:
        os.close(fd)
    return None
