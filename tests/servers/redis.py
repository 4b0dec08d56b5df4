"""A private Redis, and a private Redis Cluster of three nodes."""

from __future__ import annotations

import subprocess
from uuid import uuid4

from tests.servers.base import Server, find, listens


class Redis(Server):
    """Stores are key prefixes of one server, with its log on disk."""

    package = "redis-server"
    program = "redis-server"
    folders = ("/usr/bin",)
    settings: tuple[str, ...] = ()
    appendfsync = "everysec"

    def prepare(self) -> None:
        pass

    def command(self) -> list[str]:
        return [
            self.binary, "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder), "--save", "",
            "--appendonly", "yes", "--appendfsync", self.appendfsync, *self.settings,
        ]  # fmt: skip

    def answers(self) -> bool:
        return listens(self.port) and self.ask("PING") == "PONG"

    def ask(self, *command: str) -> str:
        """What redis-cli prints for a command."""
        return cli("-p", str(self.port), *command)

    @property
    def url(self) -> str:
        """The server."""
        return f"redis://127.0.0.1:{self.port}/0"

    def fresh_url(self) -> str:
        return f"{self.url}?prefix=t{uuid4().hex[:12]}"


class DurableRedis(Redis):
    """What was answered outlives the server; else it may not be written for two seconds while the disk is busy."""

    appendfsync = "always"


class _Node(Redis):
    settings = ("--cluster-enabled", "yes", "--cluster-node-timeout", "2000")


class RedisCluster(Redis):
    """Three masters that share the slots. Its own process is the first node."""

    settings = _Node.settings

    def start(self) -> None:
        if not hasattr(self, "others"):
            self.others: list[_Node] = []
            super().start()
            self.others = [_Node(), _Node()]
            nodes = [f"127.0.0.1:{node.port}" for node in (self, *self.others)]
            cli("--cluster", "create", *nodes, "--cluster-replicas", "0", "--cluster-yes")
        else:
            super().start()
        self.await_answer()

    def answers(self) -> bool:
        return super().answers() and (not self.others or "cluster_state:ok" in self.ask("CLUSTER", "INFO"))

    def stop(self) -> None:
        for node in self.others:
            node.stop()
        super().stop()

    @property
    def url(self) -> str:
        """The cluster, by its first node."""
        return f"redis+cluster://127.0.0.1:{self.port}"


class DurableRedisCluster(RedisCluster):
    """The same of its first node, which is the one that is killed."""

    appendfsync = "always"


def cli(*arguments: str) -> str:
    """Run redis-cli; what it printed, without the last line end."""
    program = find("redis-cli", "redis-tools", ("/usr/bin",))
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False, timeout=60)
    return done.stdout.strip()
