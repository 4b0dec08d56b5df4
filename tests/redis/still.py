"""A broker on Redis whose clock stands still, and that does nothing beside what a test calls."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import penstock
from penstock.testing import Clock
from tests.support.quiet_broker import quiet


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def broker(url: str, clock: Clock) -> Iterator[penstock.Broker]:
    """One that need not beat, however slow the machine is."""
    with penstock.connect(url, clock=clock) as broker:
        quiet(broker)
        yield broker
