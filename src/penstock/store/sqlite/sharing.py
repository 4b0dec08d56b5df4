"""One commit for the steps of several threads: who has done its part waits here until the last one commits."""

from __future__ import annotations

import threading
from collections.abc import Callable

import apsw

# Steps of one transaction. Threads that wait for its commit cannot begin another, but those that failed can.
_MOST_STEPS = 64
# After so many seconds without a commit, the thread that was to go on is not coming: it was interrupted.
_PATIENCE = 0.1


class Shared:
    """A transaction that is left open to the next thread that waits for its turn."""

    def __init__(self) -> None:
        self._over = threading.Event()
        self._error: apsw.Error | None = None
        self._steps = 1

    def has_room(self) -> bool:
        """Whether one more may go on with it."""
        self._steps += 1
        return self._steps <= _MOST_STEPS

    def end(self, error: apsw.Error | None) -> None:
        """It was committed, or nothing of it is stored."""
        self._error = error
        self._over.set()

    def wait(self, commit: Callable[[Shared], None]) -> apsw.Error | None:
        """Until it has ended: what went wrong, if anything. `commit` does it where nobody else has."""
        try:
            while not self._over.wait(_PATIENCE):
                commit(self)
        except BaseException:
            commit(self)
            raise
        return self._error
