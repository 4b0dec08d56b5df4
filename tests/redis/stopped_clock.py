"""A broker on Redis with a stopped clock and without background work."""

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
    """A broker that needs no heartbeat, however slow the machine is."""
    with penstock.connect(url, clock=clock) as broker:
        quiet(broker)
        yield broker
