"""Connections to Redis that the other end has closed."""

from __future__ import annotations

import penstock
from penstock.store.redis.redis_store import RedisStore
from penstock.store.redis.servers import Servers
from tests.support.threads import until


def hung_up(broker: penstock.Broker) -> None:
    """Wait until the broker can see that its connections are closed: a call before that would be lost."""
    store = broker.runtime.store
    assert isinstance(store, RedisStore)
    servers = store._servers
    assert isinstance(servers, Servers)
    until(lambda: all(idle.hung_up() for idle in servers._connections.pool.idle))
