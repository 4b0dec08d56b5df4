"""The data of tasks that this process has taken, so that settling them asks nobody for it."""

from __future__ import annotations

import threading

# What is kept in all; beyond it, the oldest goes and is read from the vault when it is wanted.
_MOST_BYTES = 16 * 1024 * 1024


class Held:
    """Data by tube number and task id, a bounded number of bytes."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget all; in a forked child, too."""
        self._lock = threading.Lock()
        self._data: dict[tuple[int, int], bytes] = {}
        self._bytes = 0

    def keep(self, tube: int, id: int, data: bytes) -> None:
        """A task was handed out."""
        with self._lock:
            self._forget(tube, id)
            self._data[tube, id] = data
            self._bytes += len(data)
            while self._bytes > _MOST_BYTES:
                self._forget(*next(iter(self._data)))

    def find(self, tube: int, id: int) -> bytes | None:
        """Its data, if it is known."""
        return self._data.get((tube, id))

    def forget(self, tube: int, id: int) -> None:
        """The hand-out is over."""
        with self._lock:
            self._forget(tube, id)

    def _forget(self, tube: int, id: int) -> None:
        self._bytes -= len(self._data.pop((tube, id), b""))
