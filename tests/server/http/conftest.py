"""A served store and its client."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from tests.conftest import STORES
from tests.server.http.server_thread import Serving, serving


@pytest.fixture(params=["memory", "sqlite"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The embedded stores; a test for which the store matters uses EVERY_STORE."""
    return STORES[request.param](tmp_path)


@pytest.fixture
def server(store_url: str) -> Iterator[Serving]:
    """A server without tokens, on this host."""
    with serving(store_url) as running:
        yield running


@pytest.fixture
def direct(store_url: str, server: Serving) -> Iterator[penstock.Broker]:
    """A broker on the server's store, as another program has it."""
    with penstock.connect(store_url) as broker:
        yield broker
