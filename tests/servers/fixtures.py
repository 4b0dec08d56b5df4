"""For folders with their own fixture `server`: a store on it, and a broker in real time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import penstock
from tests.servers.base import Server


@pytest.fixture
def url(server: Server) -> str:
    """A new store."""
    return server.fresh_url()


@pytest.fixture
def broker(url: str) -> Iterator[penstock.Broker]:
    """A broker on it."""
    with penstock.connect(url) as broker:
        yield broker
