"""What wakes a broker's background thread."""

from __future__ import annotations

import penstock
from penstock.runtime.heartbeat import Keeper


def test_a_keeper_that_watches_is_woken_only_for_an_earlier_moment() -> None:
    with penstock.connect("memory://") as broker:
        keeper = Keeper(broker._hub)
        keeper._watching, keeper._until = True, 100.0
        keeper.nudge(None)
        keeper.nudge(100.0)
        assert not keeper._wake.is_set()
        keeper.nudge(99.0)
        assert keeper._wake.is_set()


def test_a_keeper_that_does_not_watch_is_woken_by_whoever_waits() -> None:
    with penstock.connect("memory://") as broker:
        keeper = Keeper(broker._hub)
        keeper.nudge(None)
        assert keeper._wake.is_set()
