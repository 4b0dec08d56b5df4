"""What befalls the server of a campaign: it is killed and started again, connections are cut, answers are lost."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from functools import partial

from penstock.store.open import with_pool
from tests.fault.history import Recorder
from tests.servers import DURABLE
from tests.servers.base import Server
from tests.servers.proxy import Proxy
from tests.servers.redis import Redis, RedisCluster
from tests.servers.vaults import bare_url

# The databases behind the pools of a campaign: PENSTOCK_POOL=postgres,mariadb tries others.
POOLS = tuple(os.environ.get("PENSTOCK_POOL", "sqlite").split(","))
STORES = ("postgres", "mariadb", "redis", *(f"pool-{name}" for name in POOLS))
CLUSTER = "redis-cluster"


class Outages:
    """A server of its own, and the proxy that all its clients go through; behind a pool, a database of its own."""

    def __init__(self, name: str) -> None:
        self.pooled = name.startswith("pool-")
        self._server: Server = Redis() if self.pooled else DURABLE[name]()
        self._behind: Server | None = None
        self._proxy = Proxy(self._server.port)
        self.url = self._server.fresh_url().replace(str(self._server.port), str(self._proxy.port))
        self._strikes = [("restart", self._server.restart), ("cut", self._proxy.cut), ("swallow", self._swallow)]
        self._coming: list[tuple[str, Callable[[], None]]] = []
        if name == CLUSTER:  # its nodes send clients to each other, past any proxy
            self.url = self._server.fresh_url()
            self._strikes = [("restart", partial(self._server.strike, random.Random())), ("cut", self._cut_nodes)]
        if self.pooled:
            self.url = with_pool(self.url, self._database(name.removeprefix("pool-")))
            self._strikes.append(("flush", self._flush))

    def _database(self, name: str) -> str:
        if name == "sqlite":
            return f"sqlite:///{self._server.folder}/pool.db?durability=relaxed"
        self._behind = DURABLE[name]()
        self._strikes.append(("restart", self._behind.restart))
        return bare_url(self._behind)

    def strike(self, dice: random.Random, recorder: Recorder) -> None:
        """One of them, each as often as the others; it is over when this returns."""
        if not self._coming:
            self._coming = dice.sample(self._strikes, len(self._strikes))
        recorder.call(*self._coming.pop())

    def _flush(self) -> None:
        """All that Redis has is gone."""
        assert isinstance(self._server, Redis)
        self._server.ask("FLUSHALL")

    @property
    def deeds(self) -> set[str]:
        """What all befalls it."""
        return {name for name, _ in self._strikes}

    def _cut_nodes(self) -> None:
        assert isinstance(self._server, RedisCluster)
        for node in (self._server, *self._server.others):
            node.ask("CLIENT", "KILL", "TYPE", "normal")

    def close(self) -> None:
        self._proxy.close()
        for server in (self._server, self._behind):
            if server is not None:
                server.stop()

    def _swallow(self) -> None:
        """For so long every answer is lost, and its connection with it."""
        self._proxy.swallow = True
        time.sleep(0.05)
        self._proxy.swallow = False
