"""SAQ: twenty coroutines at once (and as many connections) on uvloop, results not kept."""

from __future__ import annotations

import asyncio
import os
from importlib import import_module
from typing import Any

WORKER = ["-m", "bench.peers.saq_app"]
_url = os.environ["BENCH_PEER_URL"]
_library: Any = import_module("saq")
_server: Any = import_module("redis").Redis.from_url(_url)


async def noop(context: object, *, data: str) -> None:
    """Do nothing."""


def put(count: int, data: str) -> None:
    _server.delete("saq:default:incomplete", "saq:default:queued")
    asyncio.run(_put(count, data))


async def _put(count: int, data: str) -> None:
    queue = _library.Queue.from_url(_url)
    for _ in range(count):
        await queue.enqueue("noop", data=data, ttl=-1)
    await queue.disconnect()


def left() -> int:
    return int(_server.zcard("saq:default:incomplete"))


async def _work() -> None:
    await _library.Worker(_library.Queue.from_url(_url), functions=[noop], concurrency=20).start()


if __name__ == "__main__":
    import_module("uvloop").run(_work())
