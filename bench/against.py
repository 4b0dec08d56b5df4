"""`python -m bench --against REV`: compare the working tree with another commit, alternately, on the same servers.

Each side is a separate process (against_driver.py) with its own store. A round runs each step four times on both sides,
in the order A B B A, so that drift cancels. It compares the lower quartile of the seconds per unit of work, because
other load on the machine can only slow it down; rare stalls are therefore not seen. The result is the median of the
rounds' ratios; above 1, the working tree is faster.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from bench import private_servers
from bench.against_driver import SCENARIOS
from bench.rates import Rates
from bench.reporting import Line, Target, plain, progress_bar

ROOT = Path(__file__).parents[1]
DRIVER = ROOT / "bench" / "against_driver.py"

NAMES = {
    "put": "put one by one",
    "take": "take one by one",
    "ack": "ack one by one",
    "take+ack": "take+ack one by one",
    "delete": "delete by id, one by one",
    "put-100": "put_many of 100",
    "take-100": "take_many of 100",
    "ack-100": "ack_many of 100",
    "put-1000": "put_many of 1,000",
    "ack-1000": "ack_many of 1,000",
    "put-addressed": "put_many of 1,000 with addresses",
    "ack-addressed": "ack_many of 1,000 with addresses, no results",
    "ack-results": "ack of 1,000 with results in one call",
    "put-group": "put_many of 1,000 into a group",
    "ack-group": "ack_many of 1,000 of a group",
    "release-all": "release_all of 1,000",
    "session-end": "end of a session that holds 1,000",
    "lapse": "advance of 1,000 lapsed leases",
    "delay": "advance of 1,000 delays",
    "bury": "bury of 1,000 in one call",
    "kick": "kick of 1,000",
    "put-10000": "put_many of 10,000",
    "drain-500": "take_many(500)+ack_many",
    "put-10000-utubes": "put_many of 10,000 into 1,000 micro-queues",
    "drain-500-utubes": "take_many(500)+ack_many of 1,000 micro-queues",
}


class Pair(NamedTuple):
    """A line that is also compared with another line, both of the working tree."""

    line: str
    base: str
    targets: tuple[Target, ...] = ()


PAIRS = (
    Pair("put-addressed", "put-1000"),
    Pair("ack-results", "ack-1000", (Target("T20", 0.67, "× plain"),)),
    Pair("ack-results", "ack-addressed", (Target("T20", 0.67, "× no results"),)),
    Pair("put-group", "put-1000"),
    Pair("ack-group", "ack-1000"),
    Pair("put-10000-utubes", "put-10000", (Target("T25", 0.5, "× plain"),)),
    Pair("drain-500-utubes", "drain-500", (Target("T25", 0.4, "× plain"),)),
)
# Release, advance and bury should be faster than before, especially on MariaDB.
_RETURNS = {"release-all", "session-end", "lapse", "delay", "bury"}
# These may be slower on MariaDB (docs/decisions/0029-one-engine.md). A pair has no limit: it contains a take.
_MARIADB = {"take": 0.69, "take+ack": None, "ack-100": 0.77, "delete": 0.5}


@dataclass(frozen=True, slots=True)
class Store:
    """A store to measure on, and how many units a step has there: ten calls of one task, a call of 1,000."""

    name: str
    tens: int
    thousands: int


STORES = {
    "full": Store("SQLite FULL", 15, 2),
    "relaxed": Store("SQLite relaxed", 30, 2),
    "memory": Store("memory", 50, 2),
    "postgres": Store("PostgreSQL", 10, 1),
    "mariadb": Store("MariaDB", 10, 1),
    "redis": Store("Redis", 20, 1),
    "redis-cluster": Store("Redis Cluster", 10, 1),
}
# Measured only on request.
_RARE = {"redis-cluster"}
# How often a round runs a scenario on each side. Micro-queues take seconds on some stores.
_TURNS = {name: 1 if name == "utubes" else 4 for name in SCENARIOS}


class Slice(NamedTuple):
    """The result of one step: how many tasks a unit has, and the seconds of each unit."""

    line: str
    tasks: int
    seconds: list[float]


class Lost(Exception):
    """A side failed, so the rest of the scenario cannot be measured."""


class Side:
    """The driver process of one commit."""

    def __init__(self, label: str, source: Path, url: str, store: Store) -> None:
        self._label = label
        # -P: otherwise the driver's folder, which has a module redis, comes first on the path.
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(DRIVER), url, str(store.tens), str(store.thousands)],
            env={**os.environ, "PYTHONPATH": str(source)}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def start(self, source: Path) -> None:
        """Wait until it has opened its store. Raises Lost if it cannot, or if it imports another penstock."""
        loaded = self._read()
        if not Path(loaded).resolve().is_relative_to(source.resolve()):
            raise Lost(f"{self._label}: penstock was imported from {loaded}, not from {source}")

    def step(self, scenario: str | None) -> Slice:
        """Run the first step of a scenario, or the next step of the current one."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # the answer is missing then
            self._process.stdin.write(json.dumps(scenario) + "\n")
            self._process.stdin.flush()
        answer = self._read()
        if "error" in answer:
            raise Lost(f"{self._label}: {answer['error']}")
        return Slice(*answer)

    def close(self) -> None:
        """End the process."""
        try:
            self._process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()

    def _read(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise Lost(f"{self._label}: its process has ended")
        return json.loads(line)


class Commit(NamedTuple):
    """A commit to compare with, and the folder of its sources."""

    label: str
    source: Path


def extract(rev: str, root: Path = ROOT) -> Commit:
    """Extract the sources of a commit into a folder, which is kept. Raises ValueError if there is no such commit."""
    try:
        commit = _git(root, "rev-parse", "--verify", "--end-of-options", f"{rev}^{{commit}}").decode().strip()
        folder = Path(tempfile.gettempdir()) / f"penstock-bench-{commit}"
        if not folder.exists():
            with tempfile.TemporaryDirectory(prefix="penstock-bench-") as partial:
                archive, tree = Path(partial) / "src.zip", Path(partial) / "tree"
                archive.write_bytes(_git(root, "archive", "--format=zip", commit, "src"))
                shutil.unpack_archive(archive, tree)
                tree.rename(folder)
    except subprocess.CalledProcessError as error:
        raise ValueError(f"{rev} has no sources in {root}: {error.stderr.decode().strip()}") from error
    return Commit(commit[:7], folder / "src")


def _git(root: Path, *words: str) -> bytes:
    return subprocess.run(["git", "-C", str(root), *words], capture_output=True, check=True).stdout


def compare(other: Commit, only: Collection[str], rounds: int, *, quick: bool = False) -> list[Line]:
    """Compare the working tree with that commit. `only` names stores and lines; empty means all."""
    stores = [key for key in STORES if key in only] or [key for key in STORES if key not in _RARE]
    lines = {key for key in NAMES if key in only} or set(NAMES)
    lines |= {pair.base for pair in PAIRS if pair.line in lines}
    scenarios = [name for name, (_, measured) in SCENARIOS.items() if not lines.isdisjoint(measured)]
    console, found = Console(), list[Line]()
    with progress_bar(console) as progress:
        for key in stores:
            store = replace(STORES[key], tens=2, thousands=1) if quick else STORES[key]
            bar = progress.add_task(store.name, total=rounds * sum(map(_slices, scenarios)))
            comparison = Comparison(store, lambda: progress.advance(bar))  # noqa: B023
            try:
                with _sides(key, store, other) as sides:
                    comparison.measure(sides, scenarios, rounds)
            except Exception as error:  # whatever happened, the other stores are still measured
                comparison.lost = {**dict.fromkeys(scenarios, f"{type(error).__name__}: {error}"), **comparison.lost}
            found += (report := list(comparison.lines(key, other.label, lines)))
            if not console.is_terminal:
                print(*map(plain, report), sep="\n", flush=True)
    return found


class Comparison:
    """The rates of both sides on one store, by line."""

    def __init__(self, store: Store, advance: Callable[[], object]) -> None:
        self._store = store
        self._advance = advance
        self._rates: dict[str, Rates] = {}
        #: scenario -> why it could not be measured
        self.lost: dict[str, str] = {}

    def measure(self, sides: tuple[Side, Side], scenarios: Sequence[str], rounds: int) -> None:
        """Run the rounds. A scenario that fails is not run again."""
        for round in range(rounds):
            for scenario in scenarios:
                if scenario not in self.lost:
                    try:
                        self._measure_round(sides, scenario, round)
                    except Lost as lost:
                        self.lost[scenario] = str(lost)
                        for line in SCENARIOS[scenario][1]:
                            self._rates.pop(line, None)

    def _measure_round(self, sides: tuple[Side, Side], scenario: str, round: int) -> None:
        found: dict[str, tuple[list[Slice], list[Slice]]] = {line: ([], []) for line in SCENARIOS[scenario][1]}
        for turn in range(_TURNS[scenario]):
            for number, slices in enumerate(found.values()):
                first = (turn + number + round) % 2
                for side in (first, 1 - first):
                    slices[side].append(sides[side].step(None if number else scenario))
                    self._advance()
        for line, (ours, other) in found.items():
            rates = self._rates.setdefault(line, Rates([], []))
            rates.ours.append(_rate(ours))
            rates.bare.append(_rate(other))

    def lines(self, key: str, label: str, wanted: Collection[str]) -> Iterator[Line]:
        """The comparison with the other commit, then those of the working tree with itself."""
        for scenario, (_, measured) in SCENARIOS.items():
            for line in (line for line in measured if line in wanted):
                name, id = f"{self._store.name}: {NAMES[line]}", f"{key}/{line}"
                if line in self._rates:
                    yield _line(name, id, self._rates[line], _limits(key, line, label))
                else:
                    yield Line(name, 0, "/s", note=f"not measured: {self.lost[scenario]}", key=id)
        for line, base, targets in PAIRS:
            ours, other = self._rates.get(line), self._rates.get(base)
            if line in wanted and ours and other and len(ours.ours) == len(other.ours):
                name = f"{self._store.name}: {NAMES[line]} / {NAMES[base]}"
                found = _line(name, f"{key}/{line}/{base}", Rates(ours.ours, other.ours), targets)
                yield replace(found, note=f"{Rates(ours.bare, other.bare).ratio:.2f} in {label}")


def _rate(slices: Sequence[Slice]) -> float:
    """Tasks per second, by the lower quartile of the units."""
    seconds = sorted(second for slice in slices for second in slice.seconds)
    return slices[0].tasks / seconds[(len(seconds) - 1) // 4]


def _line(name: str, key: str, rates: Rates, targets: tuple[Target, ...]) -> Line:
    return Line(name, rates.rate, "/s", rates.base, rates.ratio, targets, rounds=rates.ratios, key=key)


def _limits(store: str, line: str, label: str) -> tuple[Target, ...]:
    """The lowest ratio that a line should reach."""
    bound: float | None = 0.95
    if line in _RETURNS:
        bound = 2.0 if store == "mariadb" else 1.0
    elif line == "kick" or store == "memory":
        bound = None
    elif store == "mariadb":
        bound = _MARIADB.get(line, bound)
    return () if bound is None else (Target("T24" if bound == 0.95 else "engine", bound, f"× {label}"),)


def _slices(scenario: str) -> int:
    return 2 * _TURNS[scenario] * len(SCENARIOS[scenario][1])


@contextmanager
def _sides(key: str, store: Store, other: Commit) -> Iterator[tuple[Side, Side]]:
    """The working tree and the other commit, on fresh stores."""
    with ExitStack() as opened:
        commits, sides = (Commit("the working tree", ROOT / "src"), other), list[Side]()
        for commit, url in zip(commits, _urls(opened, key), strict=True):
            sides.append(side := Side(commit.label, commit.source, url, store))
            opened.callback(side.close)
            side.start(commit.source)
        yield sides[0], sides[1]


def _urls(opened: ExitStack, key: str) -> list[str]:
    if key == "memory":
        return ["memory://bench"] * 2  # each in its own process
    if key in private_servers.NAMES:
        server = opened.enter_context(private_servers.running(key))
        return [private_servers.store_url(key, server) for _ in range(2)]
    folder = opened.enter_context(tempfile.TemporaryDirectory(prefix="penstock-bench-"))
    return [f"sqlite:///{folder}/{side}.db?durability={key}" for side in ("ours", "other")]
