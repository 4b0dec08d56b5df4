"""Tubes neither leave a pool nor come into one; nothing is half done."""

from __future__ import annotations

import pytest

import penstock
from tests.moving.tubes import exported, imported, moved

STAYS = "is in a pool, which tubes neither leave nor come into"


def test_a_tube_of_a_pool_stays(broker: penstock.Broker) -> None:
    broker.tube("t").put("x")
    with penstock.connect("memory://target") as target:
        with pytest.raises(penstock.UnsupportedOption, match=STAYS):
            exported(broker, "t")
        with pytest.raises(penstock.UnsupportedOption, match=STAYS):
            moved(broker, target, "t")
        assert target.tubes() == []
    assert broker.tube("t").stats().tasks.ready == 1


def test_no_tube_comes_into_a_pool(broker: penstock.Broker) -> None:
    with penstock.connect("memory://source") as source:
        source.tube("t").put("x")
        with pytest.raises(penstock.UnsupportedOption, match=STAYS):
            imported(broker, exported(source, "t"))
        with pytest.raises(penstock.UnsupportedOption, match=STAYS):
            moved(source, broker, "t")
        assert source.tube("t").stats().tasks.ready == 1
    assert broker.tubes() == []
