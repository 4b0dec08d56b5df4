"""Other queues measured beside ours in the same run, by a Python of their own (bench/peers)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from bench.report import Line, Target

# Where `make bench` installs bench/peers/requirements.txt; another one by BENCH_PEERS.
PYTHON = os.environ.get("BENCH_PEERS", str(Path(sys.prefix) / "peers" / "bin" / "python"))
# Of the tasks that the fastest gets, for those that would take minutes.
_SHARE = {"dramatiq": 2, "saq": 4, "celery": 4, "rq": 8}


def waits(name: str, url: str, count: int) -> list[float] | str:
    """Milliseconds from put to start of that queue's tasks; why not, where it cannot be measured."""
    found = _ask("latency", name, url, str(count))
    return found if isinstance(found, str) else [float(line) for line in found.stdout.split()]


def bulk_rate(name: str, url: str, tasks: int, data: str) -> float | str:
    """Tasks a second of that queue's bulk put; why not, where it cannot be measured."""
    found = _ask("bulk", name, url, str(tasks), data)
    return found if isinstance(found, str) else float(found.stdout)


def missing(library: str) -> str | None:
    """Why that queue cannot be measured; None where it can."""
    try:
        done = subprocess.run([PYTHON, "-c", f"import {library}"], capture_output=True)
    except FileNotFoundError:
        return f"{PYTHON} is not there: make bench installs it"
    return None if done.returncode == 0 else f"{PYTHON} cannot import it: make bench installs it"


def _ask(module: str, *arguments: str) -> subprocess.CompletedProcess[str] | str:
    """What a script of bench/peers printed; why not, where it failed."""
    try:
        return subprocess.run(
            [PYTHON, "-m", f"bench.peers.{module}", *arguments], capture_output=True, text=True, check=True
        )
    except FileNotFoundError:
        return f"{PYTHON} is not there: make bench installs it"
    except subprocess.CalledProcessError as error:
        return str((error.stderr.strip().splitlines() or ["it failed"])[-1])


class Beside:
    """Some queues, each with the URL of its tasks."""

    def __init__(self, urls: dict[str, str], tasks: int, data: str) -> None:
        self._urls = urls
        self._tasks = tasks
        self._data = data
        self._rates: dict[str, list[float]] = {name: [] for name in urls}
        self._absent: dict[str, str] = {}

    def measure(self) -> None:
        """One more round of each."""
        for name, url in self._urls.items():
            if name in self._absent:
                continue
            tasks = str(self._tasks // _SHARE.get(name, 1))
            done = _ask("measure", name, url, tasks, self._data)
            if isinstance(done, str):
                self._absent[name] = done
            else:
                self._rates[name].append(float(done.stdout))

    def lines(self, work: str, ours: list[float], source: str, bounds: dict[str, float]) -> Iterator[Line]:
        """Our figure beside that of each, the target where it could be measured: so many times its rate."""
        for name, theirs in self._rates.items():
            if name in self._absent:
                yield Line(f"{work}, {name}", median(ours), "/s", note=f"not measured: {name}: {self._absent[name]}")
                continue
            ratio = median(one / other for one, other in zip(ours, theirs, strict=True))
            target = Target(source, bounds[name], f"× {name}")
            yield Line(f"{work}, {name}", median(ours), "/s", median(theirs), ratio, (target,))
