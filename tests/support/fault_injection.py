"""Kills the server of a store under behaviour tests, for --restart-servers.

A test that is struck between two calls must not notice. One that is struck inside a call may be told so, by
StoreUnavailable, StoreBusy or OutcomeUnknown, and is cut short by that; what it stored must still fit together.
A pool is told in either way, and loses its leases by design: it is struck only while there is no session.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import penstock
from penstock.testing import Clock

# What a call may raise when its server is killed under it.
TOLD = (penstock.StoreUnavailable, penstock.StoreBusy, penstock.OutcomeUnknown)
# Most tests make fewer calls of the store; a strike that comes after a test's last call is none.
LAST_CALL = 24
# After the call began: most take a millisecond, those that wait longer.
LATEST_SECONDS = (0.002, 0.05)


class Nemesis:
    """What befalls one test. `strike` kills the server and starts it again, and returns when it answers."""

    def __init__(
        self, strike: Callable[[], None], dice: random.Random, spared: Callable[[], bool] | None = None
    ) -> None:
        self.kills = 0
        self.inside = spared is None and dice.random() < 0.4
        self._strike = strike
        self._spared = spared
        self._after = dice.uniform(0, dice.choice(LATEST_SECONDS))
        self._calls_left = dice.randrange(LAST_CALL) + 1
        self._at_rest = dice.random() < 0.3
        self._callers: set[str] = set()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    @property
    def may_be_told(self) -> bool:
        """Between two calls of one thread, another may be inside one."""
        several = sum(not name.startswith("penstock-") for name in self._callers) > 1
        return self.kills > 0 and (self.inside or self._spared is not None or several)

    def before_a_call(self) -> None:
        """Strike when this is the call that was drawn; threads of one test come here together."""
        with self._lock:
            self._callers.add(threading.current_thread().name)
            self._calls_left -= 1
            if self._calls_left == 0:
                self.now_or_soon()

    def now_or_soon(self) -> None:
        """Between two calls, or while the test goes on."""
        if self.inside:
            self._thread = threading.Thread(target=self._later)
            self._thread.start()
        elif self._spared is None or not self._spared():
            self._now()

    def _later(self) -> None:
        threading.Event().wait(self._after)
        self._now()

    def _now(self) -> None:
        self.kills += 1
        self._strike()

    def at_rest(self) -> None:
        """Perhaps once more, when all is done."""
        self.rest()
        if self._at_rest:
            self._now()

    def rest(self) -> None:
        """Come back when the server is up, for good."""
        with self._lock:
            self._calls_left = 0
        if self._thread is not None:
            self._thread.join()


class RestlessClock(Clock):
    """A store reads its clock at the beginning of a call: there the nemesis counts."""

    def __init__(self, nemesis: Nemesis | None) -> None:
        super().__init__()
        self._nemesis = nemesis

    def __call__(self) -> int:
        if self._nemesis is not None:
            self._nemesis.before_a_call()
        return super().__call__()


@contextmanager
def told_of(nemesis: Nemesis) -> Iterator[list[str]]:
    """Gathers the error by which a test was cut short; any other goes on."""
    told: list[str] = []
    try:
        yield told
    except TOLD as error:
        if not nemesis.may_be_told:
            raise
        told.append(f"{type(error).__name__}: {error}")


def seed() -> int:
    """PENSTOCK_SEED draws the same strikes again. Set for the processes that this one starts."""
    return int(os.environ.setdefault("PENSTOCK_SEED", str(random.SystemRandom().randrange(2**32))))
