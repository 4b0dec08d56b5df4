"""What befalls the server of a campaign: it is killed and started again, connections are cut, answers are lost."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import mkdtemp

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
# A cluster's nodes and a pool's two parts would have to be set back together.
TAILS = ("postgres", "mariadb", "redis")


class Outages:
    """A server of its own, and the proxy that all its clients go through; behind a pool, a database of its own."""

    def __init__(self, name: str, *, loses_tails: bool = False) -> None:
        self.loses_tails = loses_tails
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
        self._copies = Path(mkdtemp(prefix="penstock-copy-"))
        self._copied: float | None = None
        if loses_tails:
            self._strikes[0] = ("restart", self._copy)

    def _database(self, name: str) -> str:
        if name == "sqlite":
            return f"sqlite:///{self._server.folder}/pool.db?durability=relaxed"
        self._behind = DURABLE[name]()
        self._strikes.append(("restart", self._behind.restart))
        return bare_url(self._behind)

    def strike(self, dice: random.Random, recorder: Recorder) -> None:
        """One of them, each as often as the others; it is over when this returns."""
        if self._copied is not None and dice.random() < 0.3:
            recorder.call("lose_tail", self._lose_tail, since=self._copied)
            return
        if not self._coming:
            self._coming = dice.sample(self._strikes, len(self._strikes))
        recorder.call(*self._coming.pop())

    def _copy(self) -> None:
        """Killed and started again; its data is copied in between."""
        self._server.kill()
        _replace(self._server.folder, self._copies)
        self._copied = time.monotonic()
        self._server.start()

    def _lose_tail(self) -> None:
        """As where a replica is promoted that lacks the newest writes: the server starts with the last copy."""
        self._server.kill()
        _replace(self._copies, self._server.folder)
        self._server.start()

    def _flush(self) -> None:
        """All that Redis has is gone."""
        assert isinstance(self._server, Redis)
        self._server.ask("FLUSHALL")

    @property
    def deeds(self) -> set[str]:
        """What all befalls it."""
        return {name for name, _ in self._strikes} | ({"lose_tail"} if self.loses_tails else set())

    def _cut_nodes(self) -> None:
        assert isinstance(self._server, RedisCluster)
        for node in (self._server, *self._server.others):
            node.ask("CLIENT", "KILL", "TYPE", "normal")

    def close(self) -> None:
        self._proxy.close()
        for server in (self._server, self._behind):
            if server is not None:
                server.stop()
        shutil.rmtree(self._copies, ignore_errors=True)

    def _swallow(self) -> None:
        """For so long every answer is lost, and its connection with it."""
        self._proxy.swallow = True
        time.sleep(0.05)
        self._proxy.swallow = False


def _replace(source: Path, target: Path) -> None:
    """Make a folder's content that of another; files keep their owners."""
    for left in target.iterdir():
        shutil.rmtree(left) if left.is_dir() else left.unlink()
    subprocess.run(["cp", "-a", f"{source}/.", str(target)], check=True)
