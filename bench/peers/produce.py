"""`python -m bench.peers.produce MODULE FIRST COUNT`: put COUNT tasks with `MODULE.produce`, after a start signal."""

from __future__ import annotations

import importlib
import sys


def main(module: str, first: int, count: int) -> None:
    """Print a line when ready, and start when a line comes back."""
    app = importlib.import_module(module)
    print("ready", flush=True)
    sys.stdin.readline()
    app.produce(first, count)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
