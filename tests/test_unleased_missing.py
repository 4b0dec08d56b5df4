"""A store that has no kinds round and reliable refuses to create tubes of them, by name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import pytest

import penstock
from penstock.store.base import Store
from penstock.store.unleased import UnleasedStore
from tests.partial import Without


@pytest.fixture
def leased() -> Iterator[penstock.Broker]:
    with penstock.Broker(cast(Store, Without(UnleasedStore))) as broker:
        yield broker


@pytest.mark.parametrize("kind", ["round", "reliable"])
def test_the_kind_is_refused(leased: penstock.Broker, kind: str) -> None:
    for create in (leased.create_tube, leased.tube):
        with pytest.raises(penstock.UnsupportedOption, match=f"(?s)(?=.*{kind})(?=.*sqlite)(?=.*memory)"):
            create("t", kind, period=5 if kind == "round" else None)
    assert leased.tubes() == []
    leased.tube("t").put("x")
    assert leased.take(["t"], 0) is not None
