"""Puts on a private Redis, compared with the bare driver in the same run; and the memory of a queued task."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any, cast

import hiredis
import redis

import penstock
from bench import private_servers
from bench.peer_queues import bulk_rate
from bench.rates import DATA, PUT_BATCH, Ours, Rates, alternate
from bench.reporting import Line, Size, Target
from penstock.core import codec
from penstock.core.entry import plain_entry
from penstock.store.redis.puts import plain_request
from penstock.store.redis.redis_store import RedisStore
from tests.servers.base import Server

_PUT = (Target("T2", 0.9, "× a bare EVALSHA loop"),)
_LPUSH = (Target("T2", 0.7, "× a bare LPUSH loop"),)
_MANY = (Target("T3", 0.6, "× a bare pipeline of LPUSH"),)
_BULLMQ = (Target("T3", 4, "× BullMQ"),)
_MEMORY = {
    "fifo": Target("T5", 300, "bytes", at_most=True),
    "fifottl": Target("T5", 400, "bytes", at_most=True),
    "reliable": Target("T5", 212, "bytes", at_most=True),
}


class Bare:
    """redis-py alone, by the data that penstock stores."""

    def __init__(self, client: Any, broker: penstock.Broker) -> None:
        self._client = client
        self._data = codec.encode(DATA)
        self._script = equal_script(broker)

    def evalsha(self, tasks: int) -> None:
        digest, keys, words = self._script
        for _ in range(tasks):
            self._client.evalsha(digest, len(keys), *keys, *words, self._data)

    def lpush(self, tasks: int) -> None:
        for _ in range(tasks):
            self._client.lpush("bare", self._data)

    def lpush_batches(self, tasks: int) -> None:
        for _ in range(tasks // PUT_BATCH):
            pipeline = self._client.pipeline(transaction=False)
            for _ in range(PUT_BATCH):
                pipeline.lpush("bare", self._data)
            pipeline.execute()


def equal_script(broker: penstock.Broker) -> tuple[bytes, tuple[bytes, ...], tuple[object, ...]]:
    """The script that a put runs: its digest, its keys for a separate tube, and its arguments before the data."""
    tube, store = broker.tube("equal"), broker.runtime.store
    tube.put(DATA)  # the server has it from now on
    assert isinstance(store, RedisStore)
    stored, runner = tube.stored, store._runner
    reader = hiredis.Reader()
    reader.feed(cast(bytes, plain_request(runner, stored, plain_entry(stored, b""))(b"").command))
    _, digest, count, *words = cast("list[bytes]", reader.gets())
    return digest, tuple(words[: int(count)]), tuple(words[int(count) : -1])


def redis_puts(size: Size) -> Iterator[Line]:
    """One by one and by the thousand."""
    single, batched = size.pick(1000, 4000), size.pick(5000, 20_000)
    with _server() as (server, client), penstock.connect(server.fresh_url()) as broker:
        ours, bare = Ours(broker.tube("jobs")), Bare(client, broker)
        works: dict[str, tuple[Callable[[int], None], Callable[[int], None], int, tuple[Target, ...]]] = {
            "put one by one compared with EVALSHA": (ours.put, bare.evalsha, single, _PUT),
            "put one by one compared with LPUSH": (ours.put, bare.lpush, single, _LPUSH),
            "put_many of 1,000 compared with a pipeline": (ours.put_batches, bare.lpush_batches, batched, _MANY),
        }
        found = {name: Rates([], []) for name in works}
        theirs: list[float | str] = []
        for round in range(size.pick(7, 15)):
            for name, (mine, other, tasks, _) in works.items():
                alternate(mine, other, tasks, found[name], round % 2 == 0)
            if not theirs or isinstance(theirs[-1], float):
                theirs.append(bulk_rate("bullmq", server.url, batched // 2, DATA))
    for name, rates in found.items():
        yield Line(f"Redis: {name}", rates.rate, "/s", rates.base, rates.ratio, works[name][3])
    yield _compared_with_bullmq(found["put_many of 1,000 compared with a pipeline"].ours, theirs)


def _compared_with_bullmq(ours: list[float], theirs: list[float | str]) -> Line:
    name, rates = (
        "Redis: put_many of 1,000 compared with BullMQ's addBulk",
        [one for one in theirs if isinstance(one, float)],
    )
    if len(rates) < len(ours):
        return Line(name, median(ours), "/s", note=f"not measured: bullmq: {theirs[-1]}")
    both = Rates(ours, rates)
    return Line(name, both.rate, "/s", both.base, both.ratio, _BULLMQ)


def redis_memory(size: Size) -> Iterator[Line]:
    """`used_memory` of tasks of 100 bytes, divided by their number, which is fixed because hash tables double."""
    count = 100_000
    for kind, target in _MEMORY.items():
        with _server() as (server, client), penstock.connect(server.fresh_url()) as broker:
            tube = broker.tube("jobs", kind=kind)
            tube.put(DATA)
            before = client.info("memory")["used_memory"]
            Ours(tube).put_batches(count)
            used = (client.info("memory")["used_memory"] - before) / count
        yield Line(f"Redis: a queued task of 100 bytes, {kind}", used, "bytes", targets=(target,))


@contextmanager
def _server() -> Iterator[tuple[Server, Any]]:
    with private_servers.running("redis") as server, redis.Redis(port=server.port) as client:
        yield server, client
