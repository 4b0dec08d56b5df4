"""huey: four threads, no results. On SQLite with every commit on disk, as our own file."""

from __future__ import annotations

import os
import time
from importlib import import_module
from typing import Any

WORKER = ["-m", "huey.bin.huey_consumer", "bench.peers.huey_app.huey", "-w", "4", "-n", "-q"]
_url = os.environ["BENCH_PEER_URL"]
_library: Any = import_module("huey")
if _url.startswith("sqlite"):
    huey = _library.SqliteHuey("bench", filename=_url.removeprefix("sqlite:///"), fsync=True, results=False)
else:
    huey = _library.RedisHuey("bench", url=_url, results=False)


@huey.task()  # type: ignore[untyped-decorator]
def noop(data: str) -> None:
    """Do nothing."""


@huey.task()  # type: ignore[untyped-decorator]
def stamp(sent: int) -> None:
    """Say how long it took to come here."""
    huey.storage.conn.lpush("stamps", time.monotonic_ns() - sent)


def put(count: int, data: str) -> None:
    huey.flush()
    for _ in range(count):
        noop(data)


def left() -> int:
    return int(huey.pending_count())
