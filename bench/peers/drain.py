"""`python -m bench.peers.drain NAME URL TASKS DATA`: tasks per second of one worker of that queue.

A queue is a module `NAME_app` with `put(count, data)`, `left()` (the number of tasks that are not done) and `WORKER`
(the arguments of its worker process). BENCH_PEER_URL is the URL of its server.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import time

from bench.peers.working import working

# If no task was done for this many seconds, something is wrong.
PATIENCE = 60


def main(name: str, url: str, tasks: int, data: str) -> float:
    """Fill the queue, start a worker, and measure from its first task on."""
    os.environ["BENCH_PEER_URL"] = url
    app = importlib.import_module(f"bench.peers.{name}_app")
    app.put(tasks, data)
    with working(app.WORKER) as worker:
        until = time.monotonic() + PATIENCE
        while (before := app.left()) == tasks:
            _check_progress(worker, until)
        began = time.perf_counter()
        while (left := app.left()) > 0:
            _check_progress(worker, until)
        return float((before - left) / (time.perf_counter() - began))


def _check_progress(worker: subprocess.Popen[bytes], until: float) -> None:
    if worker.poll() is not None or time.monotonic() > until:
        raise SystemExit(f"its worker is stuck: {worker.args!r}")
    time.sleep(0.005)


if __name__ == "__main__":
    print(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]))
