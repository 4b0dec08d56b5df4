"""Connections to Redis whose other end is gone."""

from __future__ import annotations

import penstock
from penstock.store.redis.redis_store import RedisStore
from penstock.store.redis.servers import OneServer
from tests.support.threads import until


def hung_up(broker: penstock.Broker) -> None:
    """Come back when the broker can see that its connections were closed: until then a call would be sent in vain."""
    store = broker.runtime.store
    assert isinstance(store, RedisStore)
    servers = store._servers
    assert isinstance(servers, OneServer)
    until(lambda: not any(idle.usable() for idle in servers._connections._idle))
