"""huey with two processes, no results."""

from __future__ import annotations

from bench.peers.huey_app import left as left
from bench.peers.huey_app import put as put

WORKER = ["-m", "huey.bin.huey_consumer", "bench.peers.huey_app.huey", "-k", "process", "-w", "2", "-n", "-q"]
