"""Celery: four threads, a prefetch of a thousand messages, no results, gossip, mingling or heartbeat."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

WORKER = [
    "-m", "celery", "-A", "bench.peers.celery_app", "worker", "--pool", "threads", "--concurrency", "4",
    "--prefetch-multiplier", "250", "--without-gossip", "--without-mingle", "--without-heartbeat", "-l", "ERROR",
]  # fmt: skip
_url = os.environ["BENCH_PEER_URL"]
app: Any = import_module("celery").Celery("bench", broker=_url)
app.conf.task_ignore_result = True
_server: Any = import_module("redis").Redis.from_url(_url)


@app.task  # type: ignore[untyped-decorator]
def noop(data: str) -> None:
    """Do nothing."""


def put(count: int, data: str) -> None:
    app.control.purge()
    with app.connection_for_write() as connection, app.amqp.Producer(connection) as producer:
        for _ in range(count):
            noop.apply_async((data,), producer=producer)


def left() -> int:
    return int(_server.llen("celery") + _server.hlen("unacked"))
