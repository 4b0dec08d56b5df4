"""What a test may not leave behind in its process: the next one, in whatever order, must find it as it was."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator

import pytest

from penstock.core import kind
from penstock.store.memory import store as memory

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD, signal.SIGUSR1, signal.SIGUSR2)
_LOGGERS = (logging.getLogger(), logging.getLogger("penstock"), logging.getLogger("penstock.worker"))
_PYTEST = b"PYTEST_CURRENT_TEST"


def _state() -> dict[str, object]:
    environment = dict(os.environ._data)  # as it stands: to decode it would take longer than all the rest
    environment.pop(_PYTEST, None)
    return {
        "registered kinds": dict(kind._kinds),
        "os.environ": environment,
        "signal handlers": [signal.getsignal(number) for number in _SIGNALS],
        "levels of loggers": [(log.name, log.level, log.disabled, log.propagate) for log in _LOGGERS],
        "the current folder": os.getcwd(),
        "open memory stores": sorted(memory._opened),
    }


@pytest.fixture(autouse=True)
def leaves_no_trace() -> Iterator[None]:
    """Fails the test that does. Set up before all others of a test, so that it looks when they have tidied up."""
    before = _state()
    yield
    after = _state()
    left = [f"{what}: {before[what]!r} became {after[what]!r}" for what in before if before[what] != after[what]]
    assert not left, "\n".join(left)
