"""BullMQ: a node process each for its producer and its worker (`bullmq/bullmq.cjs`), installed with this Python."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

WORKER = ["-m", "bench.peers.bullmq_app", "work"]
_SCRIPT = str(Path(__file__).parent / "bullmq" / "bullmq.cjs")
_LIBRARIES = Path(sys.prefix) / "bullmq" / "node_modules"
_url = os.environ["BENCH_PEER_URL"]
_server: Any = import_module("redis").Redis.from_url(_url)


def node(*arguments: str) -> str:
    """Run the script. Returns its output."""
    if not (_LIBRARIES / "bullmq").is_dir():
        raise SystemExit(f"{_LIBRARIES} does not have it: make bench installs it where npm is")
    done = subprocess.run(["node", _SCRIPT, *arguments], env=_environment(), stdout=subprocess.PIPE, check=True)
    return done.stdout.decode()


def put(count: int, data: str) -> float:
    """Fill the queue by addBulk; jobs a second."""
    return float(node("bulk", str(count), data))


def left() -> int:
    return int(_server.llen("bull:bench:wait") + _server.llen("bull:bench:active"))


def latency(count: int) -> list[float]:
    """Milliseconds from put to start of each of `count` jobs, with a running worker."""
    return [float(line) for line in node("latency", str(count)).split()]


def _environment() -> dict[str, str]:
    return {**os.environ, "NODE_PATH": str(_LIBRARIES)}


if __name__ == "__main__":
    os.execvpe("node", ["node", _SCRIPT, *sys.argv[1:]], _environment())
