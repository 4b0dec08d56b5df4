"""What befalls the server of a campaign: it is killed and started again, connections are cut, answers are lost."""

from __future__ import annotations

import random
import time

from tests.fault.history import Recorder
from tests.servers import DURABLE
from tests.servers.proxy import Proxy

STORES = ("postgres", "mariadb", "redis")


class Outages:
    """A server of its own, and the proxy that all its clients go through."""

    def __init__(self, name: str) -> None:
        self._server = DURABLE[name]()
        self._proxy = Proxy(self._server.port)
        self.url = self._server.fresh_url().replace(str(self._server.port), str(self._proxy.port))

    def strike(self, dice: random.Random, recorder: Recorder) -> None:
        """One of them, and it is over when this returns."""
        op, work = dice.choice(
            [("restart", self._server.restart), ("cut", self._proxy.cut), ("swallow", self._swallow)]
        )
        recorder.call(op, work)

    def close(self) -> None:
        self._proxy.close()
        self._server.stop()

    def _swallow(self) -> None:
        """For so long every answer is lost, and its connection with it."""
        self._proxy.swallow = True
        time.sleep(0.05)
        self._proxy.swallow = False
