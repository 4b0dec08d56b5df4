"""`python -m bench.peers.latency NAME URL COUNT`: milliseconds from put to start of each of COUNT tasks of a queue.

A queue is as in `drain`, and has `latency(count)`. Its worker was idle before each.
"""

from __future__ import annotations

import importlib
import os
import sys

from bench.peers.working import working


def main(name: str, url: str, count: int) -> None:
    """Start the queue's worker, and measure with its producer."""
    os.environ["BENCH_PEER_URL"] = url
    app = importlib.import_module(f"bench.peers.{name}_app")
    with working(app.WORKER):
        print(*app.latency(count), sep="\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
