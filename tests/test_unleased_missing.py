"""A store that has no kinds round and reliable yet refuses to create tubes of them, by name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast
from uuid import uuid4

import pytest

import penstock
from penstock.store.base import Store
from penstock.store.memory import MemoryStore
from penstock.store.unleased import UnleasedStore
from tests.conftest import STORES, UNLEASED_STORES

HIDDEN = {name for name in vars(UnleasedStore) if not name.startswith("_")}


class Leased:
    """The memory store without the part of `store.unleased`."""

    def __init__(self) -> None:
        self._whole = MemoryStore(f"memory://{uuid4().hex}")

    def __getattr__(self, name: str) -> object:
        if name in HIDDEN:
            raise AttributeError(name)
        return getattr(self._whole, name)


@pytest.fixture
def leased() -> Iterator[penstock.Broker]:
    with penstock.Broker(cast(Store, Leased())) as broker:
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
