"""A private Redis, and a private Redis Cluster of three nodes."""

from __future__ import annotations

import random
import subprocess
import time
from collections.abc import Sequence
from uuid import uuid4

from tests.servers.base import Server, find, listens


class Redis(Server):
    """Stores are key prefixes of one server, with its append-only file on disk."""

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
        """Run a command with redis-cli. Returns its output."""
        return cli("-p", str(self.port), *command)

    @property
    def product(self) -> str:
        """Redis, or Valkey."""
        return "Valkey" if "valkey_version:" in self.ask("INFO", "server") else "Redis"

    @property
    def url(self) -> str:
        """The server."""
        return f"redis://127.0.0.1:{self.port}/0"

    def fresh_url(self) -> str:
        return f"{self.url}?prefix=t{uuid4().hex[:12]}"


class DurableRedis(Redis):
    """An answered write survives a kill; otherwise it may stay in memory for two seconds while the disk is busy."""

    appendfsync = "always"
    # Flushed data leaves the log soon: a start reads all of it.
    settings = ("--auto-aof-rewrite-min-size", "256kb")

    def empty_url(self) -> str:
        self.ask("FLUSHALL")
        return self.fresh_url()


class _Node(Redis):
    # Nodes do not report each other as failed: one that is paused for a while would stop the whole cluster.
    settings: tuple[str, ...] = ("--cluster-enabled", "yes", "--cluster-node-timeout", "60000")


class RedisCluster(Redis):
    """Three masters that share the slots. Its own process is the first node."""

    settings: tuple[str, ...] = _Node.settings
    node: type[_Node] = _Node

    def start(self) -> None:
        if not hasattr(self, "others"):
            self.others: list[_Node] = []
            super().start()
            self.others = [self.node(), self.node()]
            nodes = [f"127.0.0.1:{node.port}" for node in (self, *self.others)]
            cli("--cluster", "create", *nodes, "--cluster-replicas", "0", "--cluster-yes")
        else:
            super().start()
        self.await_answer()

    @property
    def nodes(self) -> Sequence[Redis]:
        return [self, *self.others]

    def answers(self) -> bool:
        return super().answers() and all(_is_whole(node) for node in self.nodes if self.others)

    def restart_some(self, dice: random.Random) -> None:
        """Restart one node, or all of them."""
        struck = self.nodes if dice.random() < 0.25 else [dice.choice(self.nodes)]
        for node in struck:
            node.kill()
        for node in reversed(struck):
            node.start()
        self.await_answer()

    def announce(self, ports: Sequence[int]) -> None:
        """Announce these ports to clients, one per node; 0: its own. Survives a restart."""
        for node, port in zip(self.nodes, ports, strict=True):
            node.settings = type(node).settings
            announced = ("cluster-announce-bus-port", port and node.port + 10_000), ("cluster-announce-port", port)
            for name, value in announced:
                node.ask("CONFIG", "SET", name, str(value))
                node.settings += (f"--{name}", str(value))
            if f":{port or node.port}@" not in node.ask("CLUSTER", "NODES"):  # Redis 6 reads its own at start
                node.kill()
                node.start()
        there = [f":{port or node.port}@" for node, port in zip(self.nodes, ports, strict=True)]
        while any(port not in node.ask("CLUSTER", "NODES") for node in self.nodes for port in there):
            time.sleep(0.02)  # nodes tell each other at their next ping

    def stop(self) -> None:
        for node in self.others:
            node.stop()
        super().stop()

    @property
    def url(self) -> str:
        """The cluster, by its first node."""
        return f"redis+cluster://127.0.0.1:{self.port}"


class _DurableNode(_Node):
    appendfsync = DurableRedis.appendfsync
    settings = (*_Node.settings, *DurableRedis.settings)


class DurableRedisCluster(RedisCluster):
    """The same for each node."""

    appendfsync = _DurableNode.appendfsync
    settings = _DurableNode.settings
    node = _DurableNode

    def empty_url(self) -> str:
        for node in self.nodes:
            node.ask("FLUSHALL")
        return self.fresh_url()


def _is_whole(node: Redis) -> bool:
    return "cluster_state:ok" in node.ask("CLUSTER", "INFO")


def cli(*arguments: str) -> str:
    """Run redis-cli. Returns its output, without the last line end."""
    program = find("redis-cli", "redis-tools", ("/usr/bin",))
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False, timeout=200)
    return done.stdout.strip()
