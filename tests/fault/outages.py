"""What befalls the server of a campaign: it is killed and started again, connections are cut, answers are lost."""

from __future__ import annotations

import random
import time

from penstock.store.open import with_pool
from tests.fault.history import Recorder
from tests.servers import DURABLE
from tests.servers.base import Server
from tests.servers.proxy import Proxy
from tests.servers.redis import Redis

STORES = ("postgres", "mariadb", "redis", "pool")


class Outages:
    """A server of its own, and the proxy that all its clients go through."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._server: Server = Redis() if name == "pool" else DURABLE[name]()
        self._proxy = Proxy(self._server.port)
        self.url = self._server.fresh_url().replace(str(self._server.port), str(self._proxy.port))
        self._strikes = [("restart", self._server.restart), ("cut", self._proxy.cut), ("swallow", self._swallow)]
        if name == "pool":
            self.url = with_pool(self.url, f"sqlite:///{self._server.folder}/pool.db?durability=relaxed")
            self._strikes.append(("flush", self._flush))

    def strike(self, dice: random.Random, recorder: Recorder) -> None:
        """One of them, and it is over when this returns."""
        op, work = dice.choice(self._strikes)
        recorder.call(op, work)

    def _flush(self) -> None:
        """All that Redis has is gone."""
        assert isinstance(self._server, Redis)
        self._server.ask("FLUSHALL")

    def close(self) -> None:
        self._proxy.close()
        self._server.stop()

    def _swallow(self) -> None:
        """For so long every answer is lost, and its connection with it."""
        self._proxy.swallow = True
        time.sleep(0.05)
        self._proxy.swallow = False
