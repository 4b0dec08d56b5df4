"""`python -m bench.peers.produce MODULE FIRST COUNT`: put so many tasks once told to, as `MODULE.produce` does."""

from __future__ import annotations

import importlib
import sys


def main(module: str, first: int, count: int) -> None:
    """Say that all is ready, and begin when a line comes back."""
    app = importlib.import_module(module)
    print("ready", flush=True)
    sys.stdin.readline()
    app.produce(first, count)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
