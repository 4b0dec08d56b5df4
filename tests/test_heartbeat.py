"""What wakes a broker's background thread."""

from __future__ import annotations

import penstock
from penstock.runtime.heartbeat import Heartbeat


def test_a_waiting_heartbeat_is_woken_only_for_an_earlier_deadline() -> None:
    with penstock.connect("memory://") as broker:
        heartbeat = Heartbeat(broker.runtime)
        heartbeat._watching, heartbeat._until = True, 100.0
        heartbeat.nudge(None)
        heartbeat.nudge(100.0)
        assert not heartbeat._wake.is_set()
        heartbeat.nudge(99.0)
        assert heartbeat._wake.is_set()


def test_nudge_wakes_an_idle_heartbeat() -> None:
    with penstock.connect("memory://") as broker:
        heartbeat = Heartbeat(broker.runtime)
        heartbeat.nudge(None)
        assert heartbeat._wake.is_set()
