"""RQ: its worker without a process for each job, results not kept."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

WORKER = ["-m", "bench.peers.rq_app"]
_library: Any = import_module("rq")
_server: Any = import_module("redis").Redis.from_url(os.environ["BENCH_PEER_URL"])
_queue = _library.Queue("bench", connection=_server)


def noop(data: str) -> None:
    """Do nothing."""


def put(count: int, data: str) -> None:
    _queue.empty()
    made = _library.Queue.prepare_data
    _queue.enqueue_many([made("bench.peers.rq_app.noop", (data,), result_ttl=0) for _ in range(count)])


def left() -> int:
    return len(_queue) + int(_queue.started_job_registry.get_job_count(cleanup=False))


if __name__ == "__main__":
    _library.SimpleWorker([_queue], connection=_server).work(logging_level="ERROR")
