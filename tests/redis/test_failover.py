"""A master that dies: sentinels name its replica, and the broker continues there."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

import penstock
from penstock.testing import Clock
from tests.servers.redis import Redis
from tests.support.threads import until


class Replica(Redis):
    """A replica of a master."""

    master = 0

    def command(self) -> list[str]:
        return [*super().command(), "--replicaof", "127.0.0.1", str(self.master)]


class Sentinel(Redis):
    """The only sentinel of a master. Until `be_quick` it never reports the master as down: a machine may pause."""

    master = 0

    def prepare(self) -> None:
        (self.folder / "sentinel.conf").write_text(
            f"port {self.port}\nbind 127.0.0.1\ndir {self.folder}\n"
            f"sentinel monitor mymaster 127.0.0.1 {self.master} 1\n"
            "sentinel down-after-milliseconds mymaster 3600000\nsentinel failover-timeout mymaster 3000\n"
        )

    def command(self) -> list[str]:
        return [self.binary, str(self.folder / "sentinel.conf"), "--sentinel"]

    def be_quick(self) -> None:
        """Report the master as down after half a second from now on."""
        assert self.ask("SENTINEL", "SET", "mymaster", "down-after-milliseconds", "500") == "OK"


@pytest.fixture
def watched() -> Iterator[tuple[Redis, Redis, Sentinel]]:
    """A master, its replica and a sentinel."""
    master = Redis()
    replica = type("TheReplica", (Replica,), {"master": master.port})()
    sentinel: Sentinel = type("TheSentinel", (Sentinel,), {"master": master.port})()
    until(lambda: "master_link_status:up" in replica.ask("INFO", "replication"))
    until(lambda: f":{replica.port}" in sentinel.ask("INFO", "sentinel") or "slaves=1" in sentinel.ask("INFO"), 60)
    yield master, replica, sentinel
    for server in (sentinel, replica, master):
        server.stop()


@pytest.mark.timeout(300)
def test_a_failover_is_survived(watched: tuple[Redis, Redis, Sentinel]) -> None:
    master, replica, sentinel = watched
    url = f"redis+sentinel://127.0.0.1:{sentinel.port}/mymaster"
    with penstock.connect(url, clock=Clock()) as broker:  # no session lapses, however long it takes
        tube = broker.tube("t")
        tube.put_many(["a", "b"])
        held = tube.take(0)
        assert held is not None
        until(lambda: replica.ask("EXISTS", "{penstock:1}:taken") == "1")
        master.kill()
        sentinel.be_quick()
        end = time.monotonic() + 180  # a sentinel that was paused decides nothing for half a minute
        while True:
            try:
                tube.put("c")
                break
            except (penstock.StoreUnavailable, penstock.OutcomeUnknown):
                assert time.monotonic() < end
        assert "role:master" in replica.ask("INFO", "replication")
        held.ack()
        assert tube.take_many(5)[0].data == "b"
        master.start()  # so that it is stopped like the others


def test_unreachable_sentinels_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.store.redis.servers.TRIES", 1)
    with pytest.raises(penstock.StoreUnavailable) as raised:
        penstock.connect("redis+sentinel://127.0.0.1:1/mymaster").tube("t")
    assert str(raised.value) == (
        "redis+sentinel://127.0.0.1:1 cannot be used now (No master found for 'mymaster'): "
        "check the sentinels, and the name"
    )
