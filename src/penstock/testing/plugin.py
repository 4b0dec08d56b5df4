"""A pytest plugin, loaded wherever penstock and pytest are installed: a fresh store for each test, and its clock."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest

from penstock.broker.broker import Broker, connect
from penstock.testing.clock import Clock


@pytest.fixture
def penstock_clock() -> Clock:
    """The clock of `penstock_broker`: it moves only by `advance`."""
    return Clock()


@pytest.fixture
def penstock_url() -> str:
    """The URL of `penstock_broker`'s store, for a program that connects by itself."""
    return f"memory://pytest-{uuid4().hex}"


@pytest.fixture
def penstock_broker(penstock_url: str, penstock_clock: Clock) -> Iterator[Broker]:
    """A broker on a fresh memory store, closed after the test."""
    with connect(penstock_url, clock=penstock_clock) as broker:
        yield broker
