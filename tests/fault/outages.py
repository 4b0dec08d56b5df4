"""Faults of a campaign's server: killed and restarted, connections cut, answers lost."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from penstock.core.store_url import with_pool
from tests.fault.history import Recorder
from tests.servers import DURABLE, started
from tests.servers.base import Server
from tests.servers.proxy import proxied
from tests.servers.redis import Redis
from tests.servers.vaults import bare_url

# The databases behind the pools of a campaign: PENSTOCK_POOL=postgres,mariadb tests others.
POOLS = tuple(os.environ.get("PENSTOCK_POOL", "sqlite").split(","))
STORES = ("postgres", "mariadb", "redis", *(f"pool-{name}" for name in POOLS))
CLUSTER = "redis-cluster"
# A pool's database loses nothing when its Redis does, which is one of its faults.
TAILS = ("postgres", "mariadb", "redis")

Fault = tuple[str, Callable[[], None]]


class Outages:
    """A private server behind a proxy that all clients use; behind a pool, a private database.

    `loses_tails`: it is also restarted with an older copy of its data. A pool's Redis always is.
    """

    def __init__(self, name: str, *, loses_tails: bool = False) -> None:
        self.loses_tails = loses_tails
        self.pooled = name.startswith("pool-")
        self._dice = random.Random()
        self._opened = ExitStack()
        self._copies = Path(self._opened.enter_context(TemporaryDirectory(prefix="penstock-copy-")))
        self._copied: float | None = None
        self._injected = 0
        self._server = self._started(Redis if self.pooled else DURABLE[name])
        self._proxy = self._opened.enter_context(proxied(self._server))
        self.url = self._server.fresh_url().replace(str(self._server.port), str(self._proxy.port))
        restart = partial(self._server.restart_some, self._dice)
        self._faults: list[Fault] = [
            ("restart", restart),
            ("cut", self._proxy.cut),
            ("lose_answers", self._lose_answers),
        ]
        self._next_faults: list[Fault] = []
        if self.pooled:
            self.url = with_pool(self.url, self._database(name.removeprefix("pool-")))
            self._faults.append(("flush", self._flush))
        if loses_tails or self.pooled:
            self._faults[0] = ("restart", self._copy)

    def _started(self, make: type[Server]) -> Server:
        return self._opened.enter_context(started(make))

    def _database(self, name: str) -> str:
        if name == "sqlite":
            return f"sqlite:///{self._copies}/pool.db?durability=relaxed"
        behind = self._started(DURABLE[name])
        self._faults.append(("restart", behind.restart))
        return bare_url(behind)

    def inject(self, dice: random.Random, recorder: Recorder) -> None:
        """Inject one fault, each kind equally often. Returns when it is over."""
        self._injected += 1
        if self._copied is not None and self._injected % 4 == 0:
            nodes = self._server.nodes
            if len(nodes) > 1 and dice.random() < 0.5:  # each node of a cluster is replicated separately
                recorder.call("lose_part", partial(self._lose_tail, [dice.choice(nodes)]))
            else:
                recorder.call("lose_tail", partial(self._lose_tail, nodes), since=self._copied)
            return
        if not self._next_faults:
            self._next_faults = dice.sample(self._faults, len(self._faults))
        recorder.call(*self._next_faults.pop())

    def _copy(self) -> None:
        """Kill the server, copy its data, and start it again."""

        def copy(node: Server) -> None:
            self._copy_of(node).mkdir(exist_ok=True)
            _replace(node.folder, self._copy_of(node))
            self._copied = time.monotonic()

        self._while_down(self._server.nodes, copy)

    def _lose_tail(self, nodes: Sequence[Server]) -> None:
        """Restart these nodes with their last copies, as if a replica without the newest writes were promoted."""
        self._while_down(nodes, lambda node: _replace(self._copy_of(node), node.folder))

    def _copy_of(self, node: Server) -> Path:
        return self._copies / str(node.port)

    def _while_down(self, nodes: Sequence[Server], work: Callable[[Server], None]) -> None:
        for node in nodes:
            node.kill()
        for node in nodes:
            work(node)
        for node in reversed(nodes):
            node.start()
        self._server.await_answer()

    def _flush(self) -> None:
        """Flush all of Redis."""
        assert isinstance(self._server, Redis)
        self._server.ask("FLUSHALL")

    @property
    def faults(self) -> set[str]:
        """The names of the faults that it injects."""
        return {name for name, _ in self._faults} | ({"lose_tail"} if self.loses_tails or self.pooled else set())

    def close(self) -> None:
        self._opened.close()

    def _lose_answers(self) -> None:
        """Lose every answer, and its connection, for a moment."""
        self._proxy.lose_answers = True
        time.sleep(0.05)
        self._proxy.lose_answers = False


def _replace(source: Path, target: Path) -> None:
    """Replace the content of a folder; files keep their owners."""
    for left in target.iterdir():
        shutil.rmtree(left) if left.is_dir() else left.unlink()
    subprocess.run(["cp", "-a", f"{source}/.", str(target)], check=True)
