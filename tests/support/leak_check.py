"""What a test may not leave behind in its process: the next one, in whatever order, must find it as it was."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator

import pytest

from penstock.core import kind
from penstock.store.sqlite import memory

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD, signal.SIGUSR1, signal.SIGUSR2)
_LOGGERS = (logging.getLogger(), logging.getLogger("penstock"), logging.getLogger("penstock.worker"))
_PYTEST = b"PYTEST_CURRENT_TEST"


def _state() -> dict[str, object]:
    # As it stands: to decode it would take longer than all the rest.
    environment = dict(os.environ._data)  # type: ignore[attr-defined]
    environment.pop(_PYTEST, None)
    return {
        "registered kinds": dict(kind._kinds),
        "os.environ": environment,
        "signal handlers": [signal.getsignal(number) for number in _SIGNALS],
        "levels of loggers": [(log.name, log.level, log.disabled, log.propagate) for log in _LOGGERS],
        "the current folder": os.getcwd(),
        "open memory stores": sorted(memory.opened),
    }


@pytest.fixture(autouse=True)
def leaves_no_trace() -> Iterator[None]:
    """Fails the test that does. Set up before all others of a test, so that it looks when they have tidied up."""
    before = _state()
    yield
    after = _state()
    left = [_changed(what, before[what], after[what]) for what in before if before[what] != after[what]]
    if left:
        pytest.fail("left behind: " + "; ".join(left), pytrace=False)


def _changed(what: str, before: object, after: object) -> str:
    """Of variables the names alone: their values may be secrets."""
    if isinstance(before, dict) and isinstance(after, dict):
        return f"{what} {[key for key in before.keys() | after.keys() if before.get(key) != after.get(key)]}"
    return f"{what} {before!r}, which became {after!r}"
