"""`python -m bench.peers.latency URL COUNT`: milliseconds from put to start of each of so many tasks of huey.

huey is the one of the peers that starts a task soonest. Its worker was idle before each.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from importlib import import_module
from typing import Any


def main(url: str, count: int) -> None:
    """Put, and read how long it took, one after the other."""
    os.environ["BENCH_PEER_URL"] = url
    app: Any = import_module("bench.peers.huey_app")
    worker = subprocess.Popen([sys.executable, *app.WORKER], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for number in range(count + 1):  # the first waits for the worker to start
            time.sleep(random.uniform(0.02, 0.06))
            app.stamp(time.monotonic_ns())
            _, took = app.huey.storage.conn.blpop("stamps", 30)
            if number:
                print(int(took) / 1e6)
    finally:
        worker.kill()
        worker.wait()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
