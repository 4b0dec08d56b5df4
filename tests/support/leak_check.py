"""Fails a test that leaves something behind in its process: tests must not depend on their order."""

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
    # The raw bytes: decoding them would take longer than everything else here.
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
def no_leaks() -> Iterator[None]:
    """Set up before all other fixtures of a test, so that it compares after they have cleaned up."""
    before = _state()
    yield
    after = _state()
    left = [_changed(what, before[what], after[what]) for what in before if before[what] != after[what]]
    if left:
        pytest.fail("left behind: " + "; ".join(left), pytrace=False)


def _changed(what: str, before: object, after: object) -> str:
    """Describe a difference. Of variables it has only the names: their values may be secrets."""
    if isinstance(before, dict) and isinstance(after, dict):
        return f"{what} {[key for key in before.keys() | after.keys() if before.get(key) != after.get(key)]}"
    return f"{what} {before!r}, which became {after!r}"
