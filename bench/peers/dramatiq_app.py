"""dramatiq: one process, eight threads, no middleware except the one that acknowledges."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

WORKER = ["-m", "dramatiq", "bench.peers.dramatiq_app", "--processes", "1", "--threads", "8"]
_library: Any = import_module("dramatiq")
_broker = import_module("dramatiq.brokers.redis").RedisBroker(url=os.environ["BENCH_PEER_URL"], middleware=[])
_library.set_broker(_broker)


@_library.actor  # type: ignore[untyped-decorator]
def noop(data: str) -> None:
    """Do nothing."""


def put(count: int, data: str) -> None:
    _broker.flush("default")
    for _ in range(count):
        noop.send(data)


def left() -> int:
    return int(_broker.client.hlen("dramatiq:default.msgs"))
