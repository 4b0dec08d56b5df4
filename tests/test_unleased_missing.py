"""A store that has no kinds round and reliable yet refuses to create tubes of them, by name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import pytest

import penstock
from penstock.store.base import Store
from penstock.store.unleased import UnleasedStore
from tests.conftest import STORES, UNLEASED_STORES
from tests.partial import Without


@pytest.fixture
def leased() -> Iterator[penstock.Broker]:
    with penstock.Broker(cast(Store, Without(UnleasedStore))) as broker:
        yield broker


def must_refuse(broker: penstock.Broker, kind: str) -> None:
    for create in (broker.create_tube, broker.tube):
        with pytest.raises(penstock.UnsupportedOption, match=f"(?s)(?=.*{kind})(?=.*sqlite)(?=.*memory)"):
            create("t", kind, period=5 if kind == "round" else None)
    assert broker.tubes() == []
    broker.tube("t").put("x")
    assert broker.take(["t"], 0) is not None


@pytest.mark.parametrize("kind", ["round", "reliable"])
def test_the_kind_is_refused(leased: penstock.Broker, kind: str) -> None:
    must_refuse(leased, kind)


@pytest.mark.parametrize("store_url", [name for name in STORES if name not in UNLEASED_STORES], indirect=True)
@pytest.mark.parametrize("kind", ["round", "reliable"])
def test_servers_that_do_not_have_it_yet_refuse_it(broker: penstock.Broker, kind: str) -> None:
    must_refuse(broker, kind)
