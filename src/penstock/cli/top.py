"""`penstock top`: the tubes of a store and the sessions that work on them, live."""

from __future__ import annotations

import os
import re
import select
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count

import click
import msgspec
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

import penstock
from penstock.cli import completion, output, params
from penstock.cli.existing_store import connect_existing
from penstock.core.results import Counts

_COUNTS = ("ready", "taken", "delayed", "buried")
_RATES = ("put", "take", "ack", "release", "bury")
COLUMNS = ("tube", *_COUNTS, "oldest", *(f"{verb}/s" for verb in _RATES))
_NAME_WIDTH = 12
# The most sessions that are shown below the tubes, on a terminal.
_WORKERS = 8


class Row(msgspec.Struct, frozen=True):
    """A tube: its tasks by state, how long its oldest ready task has waited, and tasks per second for each verb."""

    name: str
    kind: str
    paused: bool
    tasks: dict[str, int]
    oldest_ready: float
    per_second: dict[str, float]

    def value(self, column: str) -> str | float:
        """The value that a column is sorted by."""
        if column in ("tube", "oldest"):
            return self.name if column == "tube" else self.oldest_ready
        return self.per_second[column.removesuffix("/s")] if column.endswith("/s") else self.tasks[column]

    def shown(self, column: str) -> str:
        """The text of a column."""
        if column == "oldest":
            return _duration(self.oldest_ready) if self.tasks["ready"] else ""
        return f"{self.value(column):,.1f}" if column.endswith("/s") else f"{self.tasks[column]:,}"


@click.command()
@click.option(
    "--interval", type=params.Seconds(0.1, 3600), default=1, show_default=True, help="Seconds between updates."
)
@click.option(
    "--sort", type=click.Choice(COLUMNS), default="tube", show_default=True, metavar="COLUMN",
    shell_complete=completion.words(*COLUMNS), help=f"Sort by: {', '.join(COLUMNS)}.",
)  # fmt: skip
@click.option("--updates", type=click.IntRange(1), metavar="N", help="Stop after N updates; default: at q or Ctrl-C.")
@output.json_option
@click.pass_obj
def top(url: str, interval: float, sort: str, updates: int | None, as_json: bool) -> None:
    """Watch depths and rates of the tubes, every second.

    \b
    penstock top
    penstock top --sort oldest --interval 5
    penstock top --updates 1 --json

    On a terminal: q quits, s and S change the column to sort by, r reverses the order, the arrow keys, Page Up and Page
    Down scroll. Below the tubes are the sessions that hold or wait for tasks. With --json, prints one line per update.
    """
    view, console = View(sort), Console()
    with connect_existing(url) as broker:
        watch, terminal = Watch(broker), console.is_terminal and not as_json
        with _screen(console) if terminal else _lines(console) as (draw, pressed):
            for number in count(1):
                rows, workers = watch.read(), watch.workers() if terminal else []
                until = time.monotonic() + interval
                if as_json:
                    output.as_json(view.ordered(rows))
                else:
                    draw(view.drawn(rows, workers, console.width, console.height if terminal else None))
                if number == updates:
                    return
                while (left := until - time.monotonic()) > 0:
                    key = pressed(left)
                    if key and not view.press(key, len(rows)):
                        return
                    if key:
                        draw(view.drawn(rows, workers, console.width, console.height))


class Watch:
    """Reads the store, and remembers the previous counters, for the rates."""

    def __init__(self, broker: penstock.Broker) -> None:
        self._broker = broker
        self._before: dict[str, Counts] = {}
        self._at = time.monotonic()

    def read(self) -> list[Row]:
        """Read the tubes; rates are since the last call."""
        runtime = self._broker.runtime
        runtime.apply_all_due()
        now, rows, before, store = time.monotonic(), list[Row](), self._before, runtime.store
        self._before, seconds, self._at = {}, now - self._at, now
        tubes = store.load_tubes()
        counters = store.counters(tubes)
        for tube in tubes:
            if tube.no not in counters:  # dropped since it was listed
                continue
            found = counters[tube.no]
            counts = self._before[tube.name] = found.counts
            old = before.get(tube.name, counts)
            rates = {verb: (getattr(counts, verb) - getattr(old, verb)) / max(seconds, 1e-3) for verb in _RATES}
            tasks = {name: getattr(counts, name) for name in _COUNTS}
            rows.append(Row(tube.name, tube.kind.name, found.paused, tasks, found.waits, rates))
        return rows

    def workers(self) -> list[penstock.SessionInfo]:
        """The sessions that hold or wait for tasks, those with the most first."""
        found = [info for info in self._broker.sessions() if info.held or info.waits]
        return sorted(found, key=lambda info: (-len(info.held), info.host, info.pid))


class View:
    """The order of the rows, and the first row on the screen."""

    def __init__(self, sort: str = "tube") -> None:
        self.sort = sort
        self.reverse = False
        self.first = 0
        self._page = 10  # rows on the screen

    def press(self, key: str, there: int) -> bool:
        """Handle a key. Returns False to quit."""
        steps = {"down": 1, "up": -1, "page down": self._page, "page up": -self._page, "home": -there, "end": there}
        if key in steps:
            self.first = max(0, min(self.first + steps[key], there - self._page))
        elif key in ("s", "S"):
            self.sort = COLUMNS[(COLUMNS.index(self.sort) + (1 if key == "s" else -1)) % len(COLUMNS)]
            self.first = 0
        elif key == "r":
            self.reverse = not self.reverse
        return key != "q"

    def ordered(self, rows: list[Row]) -> list[Row]:
        """The rows by name, or by a number, the largest first; ties by name."""
        by_name = sorted(rows, key=lambda row: row.name)
        return sorted(by_name, key=lambda row: row.value(self.sort), reverse=(self.sort != "tube") != self.reverse)

    def drawn(
        self, rows: list[Row], workers: list[penstock.SessionInfo], width: int, height: int | None
    ) -> RenderableType:
        """The table of tubes, and with a height also the sessions and the keys."""
        if height is None:
            return self._tubes(self.ordered(rows), width)
        shown = workers[: min(_WORKERS, height // 3)]
        self._page = max(1, height - 3 - (len(shown) + 2 if shown else 0))
        self.first = max(0, min(self.first, len(rows) - self._page))
        part = self.ordered(rows)[self.first : self.first + self._page]
        last = f"{self.first + 1}-{self.first + len(part)} of " if len(part) < len(rows) else ""
        keys = f"{last}{len(rows):,} tubes by {self.sort}   q quit  s S sort  r reverse  ↑ ↓ scroll"
        blocks: list[RenderableType] = [self._tubes(part, width)]
        blocks += [Text(), _workers(shown, len(workers))] if shown else []
        return Group(*blocks, Text(), Text(keys, style="dim", no_wrap=True, overflow="ellipsis"))

    def _tubes(self, rows: list[Row], width: int) -> Table:
        """A table for a terminal of that width. In a narrow one, names are cut and the last columns left out."""
        headings = list(COLUMNS[1:])
        while (rest := width - sum(len(heading) + 1 for heading in headings)) < _NAME_WIDTH and len(headings) > 1:
            headings.pop()
        table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 1, 0, 0))
        table.add_column(self._heading("tube"), no_wrap=True, max_width=max(rest, _NAME_WIDTH))
        for heading in headings:
            table.add_column(self._heading(heading), justify="right", no_wrap=True, min_width=len(heading))
        for row in rows:
            name = Text(f"{row.name} (paused)", style="yellow") if row.paused else Text(row.name)
            table.add_row(name, *(row.shown(heading) for heading in headings))
        return table

    def _heading(self, column: str) -> Text:
        return Text(column, style="reverse" if column == self.sort else "")


def _workers(shown: list[penstock.SessionInfo], there: int) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column(f"worker ({there:,})", no_wrap=True)
    table.add_column("holds", justify="right")
    table.add_column("waits for", no_wrap=True, overflow="ellipsis")
    for info in shown:
        table.add_row(Text(f"{info.host}:{info.pid}"), f"{len(info.held):,}", Text(" ".join(info.waits)))
    return table


def _duration(seconds: float) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size:
            return f"{seconds / size:.1f}{unit}"
    return f"{seconds:.1f}s"


# What a terminal sends for keys that are not letters.
_KEYS = {
    "\x1b[A": "up", "\x1b[B": "down", "\x1b[5~": "page up", "\x1b[6~": "page down", "\x1b[H": "home", "\x1b[F": "end",
    "\x1bOA": "up", "\x1bOB": "down", "k": "up", "j": "down", " ": "page down",
}  # fmt: skip
_KEY = re.compile(r"\x1b[\[O][0-9]*[A-Za-z~]|[\x20-\x7e]")
_Screen = tuple[Callable[[RenderableType], object], Callable[[float], str]]


@contextmanager
def _lines(console: Console) -> Iterator[_Screen]:
    """Print one table after the other, without keys."""

    def wait(seconds: float) -> str:
        time.sleep(seconds)
        return ""

    yield console.print, wait


@contextmanager
def _screen(console: Console) -> Iterator[_Screen]:
    """Draw on the whole screen, and read keys."""
    with Live(console=console, auto_refresh=False, screen=True) as live, _keys() as pressed:
        yield lambda drawn: live.update(drawn, refresh=True), pressed


@contextmanager
def _keys() -> Iterator[Callable[[float], str]]:
    """Yield a function that waits for a key and returns its name, or "" after a timeout.

    Without a terminal it only waits.
    """
    if os.name != "posix" or not sys.stdin.isatty():
        with _lines(Console()) as (_, wait):
            yield wait
        return
    import termios
    import tty

    fd, waiting = sys.stdin.fileno(), deque[str]()
    before = termios.tcgetattr(fd)

    def pressed(seconds: float) -> str:
        if not waiting and select.select([fd], [], [], seconds)[0]:
            waiting.extend(_KEY.findall(os.read(fd, 1024).decode("ascii", "ignore")))
        key = waiting.popleft() if waiting else ""
        return _KEYS.get(key, key)

    try:
        tty.setcbreak(fd)
        yield pressed
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)
