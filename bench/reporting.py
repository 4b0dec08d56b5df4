"""Results of measurements: a figure, what it is compared with, and whether its targets are met."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import apsw
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table


@dataclass(frozen=True, slots=True)
class Target:
    """A bound on a line's ratio, or on its figure where it is absolute. `source` is its number in BENCH.md."""

    source: str
    bound: float
    of: str
    at_most: bool = False
    absolute: bool = False

    def met(self, line: Line) -> bool:
        value = line.figure if self.absolute or line.ratio is None else line.ratio
        return value <= self.bound if self.at_most else value >= self.bound

    def __str__(self) -> str:
        return f"{'≤' if self.at_most else '≥'} {self.bound:,g} {self.of} ({self.source})"


@dataclass(frozen=True, slots=True)
class Line:
    """One result. `ratio` is the median of the rounds' ratios, not the ratio of the medians."""

    name: str
    figure: float
    unit: str
    base: float | None = None
    ratio: float | None = None
    targets: tuple[Target, ...] = ()
    note: str = ""
    rounds: tuple[float, ...] = ()  # their ratios
    key: str = ""

    def verdicts(self) -> list[str]:
        return ["ok" if target.met(self) else "below" for target in self.targets]


@dataclass(frozen=True, slots=True)
class Size:
    """How much to measure."""

    quick: bool
    long: bool

    def pick(self, quick: int, default: int) -> int:
        """Return the smaller amount in a quick run, otherwise the larger one."""
        return quick if self.quick else default


Bench = Callable[[Size], Iterator[Line]]


def progress_bar(console: Console) -> Progress:
    """Live progress on a terminal."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console, disable=not console.is_terminal)


def measure(benches: dict[str, Bench], size: Size) -> list[Line]:
    """Run the measurements one after the other, with live progress on a terminal."""
    console = Console()
    lines: list[Line] = []
    with progress_bar(console) as progress:
        for name, bench in benches.items():
            current = progress.add_task(name, total=None)
            for line in bench(size):
                lines.append(line)
                progress.update(current, description=f"{name}: {line.name}")
                if not console.is_terminal:
                    print(plain(line), flush=True)
            progress.update(current, description=name, total=1, completed=1)
    return lines


def show(lines: Iterable[Line]) -> None:
    """Print the table of results."""
    table = Table(title=versions())
    for heading in ("work", "ours", "compared with", "ratio", "target", ""):
        table.add_column(heading, justify="right" if heading in ("ours", "compared with", "ratio") else "left")
    for line in lines:
        base = "" if line.base is None else _figure(line.base, line.unit)
        work = f"{line.name}\n[dim]{line.note}[/dim]" if line.note else line.name
        targets, verdicts = "\n".join(map(str, line.targets)), "\n".join(map(_coloured, line.verdicts()))
        table.add_row(work, _figure(line.figure, line.unit), base, _ratio(line), targets, verdicts)
    console = Console()
    # A file has no width; 150 columns fit the longest line.
    (console if console.is_terminal else Console(width=150)).print(table)


def save(lines: Iterable[Line], path: Path) -> None:
    """Write the results as JSON, to compare runs."""
    found = [{**asdict(line), "verdicts": line.verdicts()} for line in lines]
    path.write_text(json.dumps({"versions": versions(), "lines": found}, indent=2) + "\n")


def versions() -> str:
    """The versions of Python, the driver and SQLite."""
    return f"Python {platform.python_version()}, apsw {apsw.apsw_version()}, SQLite {apsw.sqlite_lib_version()}"


def plain(line: Line) -> str:
    """The line as text, for a log."""
    base = "" if line.base is None else f" against {_figure(line.base, line.unit)}"
    ratio = "" if line.ratio is None else f" = {_ratio(line)}"
    targets = (f"{target} {verdict}" for target, verdict in zip(line.targets, line.verdicts(), strict=True))
    note = f"  [{line.note}]" if line.note else ""
    return f"{line.name:44} {_figure(line.figure, line.unit)}{base}{ratio}  {'; '.join(targets)}{note}"


def _ratio(line: Line) -> str:
    ratio = "" if line.ratio is None else f"{line.ratio:.2f}"
    return f"{ratio} ({min(line.rounds):.2f}–{max(line.rounds):.2f})" if line.rounds else ratio


def _figure(value: float, unit: str) -> str:
    return f"{value:,.0f} {unit}" if value >= 1000 else f"{value:.3g} {unit}"


def _coloured(verdict: str) -> str:
    return f"[green]{verdict}[/green]" if verdict == "ok" else f"[red]{verdict}[/red]"
