"""Other queues, measured in the same run as ours, with their own Python environment (bench/peers)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from bench.reporting import Line, Target

# Where `make bench` installs bench/peers/requirements.txt; BENCH_PEERS names another place.
PYTHON = os.environ.get("BENCH_PEERS", str(Path(sys.prefix) / "peers" / "bin" / "python"))
# The share of the tasks that slow queues get, which would take minutes for all.
_SHARE = {"dramatiq": 2, "saq": 4, "celery": 4, "rq": 8}


def waits(name: str, url: str, count: int) -> list[float] | str:
    """Milliseconds from put to start in that queue; the reason as text if it cannot be measured."""
    found = _ask("latency", name, url, str(count))
    return found if isinstance(found, str) else [float(line) for line in found.stdout.split()]


def bulk_rate(name: str, url: str, tasks: int, data: str) -> float | str:
    """Tasks per second of that queue's bulk put; the reason as text if it cannot be measured."""
    found = _ask("bulk_put", name, url, str(tasks), data)
    return found if isinstance(found, str) else float(found.stdout)


def missing(library: str) -> str | None:
    """Why that queue cannot be measured; None if it can."""
    try:
        done = subprocess.run([PYTHON, "-c", f"import {library}"], capture_output=True)
    except FileNotFoundError:
        return f"{PYTHON} is not there: make bench installs it"
    return None if done.returncode == 0 else f"{PYTHON} cannot import it: make bench installs it"


def _ask(module: str, *arguments: str) -> subprocess.CompletedProcess[str] | str:
    """The output of a script of bench/peers; the reason as text if it failed."""
    try:
        return subprocess.run(
            [PYTHON, "-m", f"bench.peers.{module}", *arguments], capture_output=True, text=True, check=True
        )
    except FileNotFoundError:
        return f"{PYTHON} is not there: make bench installs it"
    except subprocess.CalledProcessError as error:
        return str((error.stderr.strip().splitlines() or ["it failed"])[-1])


class PeerQueues:
    """Several queues, each with the URL of its server."""

    def __init__(self, urls: dict[str, str], tasks: int, data: str) -> None:
        self._urls = urls
        self._tasks = tasks
        self._data = data
        self._rates: dict[str, list[float]] = {name: [] for name in urls}
        self._absent: dict[str, str] = {}

    def measure(self) -> None:
        """Run one more round of each queue."""
        for name, url in self._urls.items():
            if name in self._absent:
                continue
            tasks = str(self._tasks // _SHARE.get(name, 1))
            done = _ask("drain", name, url, tasks, self._data)
            if isinstance(done, str):
                self._absent[name] = done
            else:
                self._rates[name].append(float(done.stdout))

    def lines(self, work: str, ours: list[float], source: str, bounds: dict[str, float]) -> Iterator[Line]:
        """Our figure compared with each queue that could be measured; the target is a multiple of its rate."""
        for name, theirs in self._rates.items():
            if name in self._absent:
                yield Line(f"{work}, {name}", median(ours), "/s", note=f"not measured: {name}: {self._absent[name]}")
                continue
            ratio = median(one / other for one, other in zip(ours, theirs, strict=True))
            target = Target(source, bounds[name], f"× {name}")
            yield Line(f"{work}, {name}", median(ours), "/s", median(theirs), ratio, (target,))
