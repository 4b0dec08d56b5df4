"""A broker without background work, for tests that count calls."""

from __future__ import annotations

import penstock


def quiet(broker: penstock.Broker, *, beats: bool = False) -> None:
    """Switch off heartbeats and scans for dead peers and altered options: on a slow machine they would be counted.

    Without heartbeats its session lapses after 15 s of the store's clock: a long test uses a stopped clock, or keeps
    the heartbeats and counts only calls of its own thread.
    """
    if not beats:
        broker.runtime._heartbeat.stop()
    broker.runtime._reaped = broker.runtime._clock.fresh_until = float("inf")
