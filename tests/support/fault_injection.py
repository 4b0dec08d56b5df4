"""Kills the server of a store during behaviour tests, for --restart-servers.

A test whose server is killed between two calls must not notice. If it is killed during a call, the call may raise
StoreUnavailable, StoreBusy or OutcomeUnknown, which ends the test; what it stored must still be consistent. A pool may
raise in either case, and loses its leases by design: its Redis is killed only while there is no session.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import penstock
from penstock.testing import Clock

# Errors that a call may raise while its server is killed.
OUTAGES = (penstock.StoreUnavailable, penstock.StoreBusy, penstock.OutcomeUnknown)
# Most tests make fewer store calls; a kill that is due after a test's last call does not happen.
LAST_CALL = 24
# After the call began: most take a millisecond, blocked ones longer.
LATEST_SECONDS = (0.002, 0.05)


class ServerKiller:
    """The kills of one test. `restart` kills the server, starts it again, and returns when it answers."""

    def __init__(
        self, restart: Callable[[], None], dice: random.Random, forbidden: Callable[[], bool] | None = None
    ) -> None:
        """`forbidden`: whether the server must not be killed now."""
        self.kills = 0
        self.during_calls = forbidden is None and dice.random() < 0.4
        self._restart = restart
        self._forbidden = forbidden
        self._after = dice.uniform(0, dice.choice(LATEST_SECONDS))
        self._calls_left = dice.randrange(LAST_CALL) + 1
        self._at_end = dice.random() < 0.3
        self._callers: set[str] = set()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    @property
    def explains_errors(self) -> bool:
        """Whether a call may have raised because of a kill. Between two calls of a thread, another may be in one."""
        several = sum(not name.startswith("penstock-") for name in self._callers) > 1
        return self.kills > 0 and (self.during_calls or self._forbidden is not None or several)

    def before_call(self) -> None:
        """Kill the server if this is the call that was drawn; threads of one test come here together."""
        with self._lock:
            self._callers.add(threading.current_thread().name)
            self._calls_left -= 1
            if self._calls_left == 0:
                self.kill()

    def kill(self) -> None:
        """Kill the server now, or in a moment, during a call."""
        if self.during_calls:
            self._thread = threading.Thread(target=self._kill_later)
            self._thread.start()
        elif self._forbidden is None or not self._forbidden():
            self._kill()

    def _kill_later(self) -> None:
        threading.Event().wait(self._after)
        self._kill()

    def _kill(self) -> None:
        self.kills += 1
        self._restart()

    def at_end(self) -> None:
        """At the end of a test, perhaps kill it once more."""
        self.stop()
        if self._at_end:
            self._kill()

    def stop(self) -> None:
        """Kill nothing from now on, and return when the server is up."""
        with self._lock:
            self._calls_left = 0
        if self._thread is not None:
            self._thread.join()


class KillingClock(Clock):
    """A clock that counts calls: a store reads its clock at the beginning of each."""

    def __init__(self, killer: ServerKiller) -> None:
        super().__init__()
        self._killer = killer

    def __call__(self) -> int:
        self._killer.before_call()
        return super().__call__()


@contextmanager
def caught_outages(killer: ServerKiller) -> Iterator[list[str]]:
    """Collects an error that ended the block and that a kill explains; raises any other."""
    caught: list[str] = []
    try:
        yield caught
    except OUTAGES as error:
        if not killer.explains_errors:
            raise
        caught.append(f"{type(error).__name__}: {error}")


def seed() -> int:
    """PENSTOCK_SEED repeats the same kills. Set for the processes that this one starts."""
    return int(os.environ.setdefault("PENSTOCK_SEED", str(random.SystemRandom().randrange(2**32))))
