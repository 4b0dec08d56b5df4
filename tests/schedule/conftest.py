"""An app on each store, whose clock only the test moves."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import penstock
from penstock.app.app import App
from penstock.broker.broker import connect
from penstock.testing import Clock


@pytest.fixture
def app(store_url: str, clock: Clock) -> Iterator[App]:
    app = penstock.App(store_url)
    app.connection._broker = connect(store_url, clock=clock)
    yield app
    assert app.broker.check() == []
    app.close()
