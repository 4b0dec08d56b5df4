"""`python -m bench.peers.bulk_put NAME URL TASKS DATA`: tasks a second of that queue's bulk put."""

from __future__ import annotations

import importlib
import os
import sys


def main(name: str, url: str, tasks: int, data: str) -> float:
    """A queue is as in `drain`; its `put` returns its rate, without the time to start."""
    os.environ["BENCH_PEER_URL"] = url
    return float(importlib.import_module(f"bench.peers.{name}_app").put(tasks, data))


if __name__ == "__main__":
    print(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]))
