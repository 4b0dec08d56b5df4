"""One server on a SQLite file, with private locks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from tests.server.server_process import Serve


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("PENSTOCK_LOCKS", str(tmp_path / "locks"))
    monkeypatch.delenv("PENSTOCK_TOKEN", raising=False)
    return f"sqlite:///{tmp_path}/queue.db?durability=relaxed"


@pytest.fixture
def server(url: str) -> Iterator[Serve]:
    with Serve(url) as server:
        yield server
        if server.process.poll() is None:
            assert server.stop() == (0, "")
    with penstock.connect(url) as broker:
        assert broker.check() == []
