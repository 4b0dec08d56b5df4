"""A broker that does what a test calls, and nothing of its own beside it: for tests that count."""

from __future__ import annotations

import penstock


def quiet(broker: penstock.Broker, *, beats: bool = False) -> None:
    """No beats, no looks for dead peers and altered options: on a slow machine they would be counted as part of a verb.

    Without beats its session lapses, in 15 s by the store's clock: a long test gives it one that stands still, or keeps
    the beats and counts the calls of its own thread.
    """
    if not beats:
        broker.runtime._heartbeat.stop()
    broker.runtime._reaped = broker.runtime._clock.fresh_until = float("inf")
