"""The memory that a queued task of 100 bytes takes."""

from __future__ import annotations

import pytest

import penstock
from tests.servers.redis import Redis

COUNT = 50_000


@pytest.mark.parametrize(
    ("kind", "options", "most"),
    [("fifo", {}, 350), ("fifottl", {}, 450), ("fifottl", {"ttl": 3600, "ttr": 60}, 450), ("reliable", {}, 212)],
)
def test_a_queued_task_is_small(own_server: Redis, kind: str, options: dict[str, float], most: int) -> None:
    with penstock.connect(own_server.fresh_url()) as broker:
        tube = broker.tube("t", kind=kind, **options)  # type: ignore[arg-type]
        tube.put("first")
        before = _used(own_server)
        for _ in range(COUNT // 1000):
            tube.put_many([b"x" * 100] * 1000)
        assert (_used(own_server) - before) / COUNT <= most
        tube.truncate()
        assert _used(own_server) < before + 2_000_000


def _used(server: Redis) -> int:
    """The memory of the stored data, without buffers that wait for a slow disk."""
    info = dict(line.split(":") for line in server.ask("INFO", "memory").splitlines() if ":" in line)
    return int(info["used_memory"]) - int(info["mem_not_counted_for_evict"])
