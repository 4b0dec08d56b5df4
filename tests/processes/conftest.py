"""One store for several processes, in real time, with private locks; a SQLite file unless a test names another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import penstock
from tests.conftest import STORES
from tests.support.peer import Peer


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("PENSTOCK_LOCKS", str(tmp_path / "locks"))
    return STORES[getattr(request, "param", "sqlite")](tmp_path)


@pytest.fixture
def broker(url: str) -> Iterator[penstock.Broker]:
    """The broker of this process; after the test, everything stored must be consistent."""
    with penstock.connect(url) as broker:
        yield broker
        assert broker.check() == []


@pytest.fixture
def peer(url: str, broker: penstock.Broker) -> Iterator[Callable[[], Peer]]:
    """Starts other processes on the store, after the broker has created it."""
    with ExitStack() as started:
        yield lambda: started.enter_context(Peer(url))
