"""`penstock top`: the tubes of a store, live."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import islice

import click
import msgspec
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

import penstock
from penstock.broker.stats import TubeStats
from penstock.broker.tube_factory import find_tube
from penstock.cli import output, params
from penstock.cli.existing_store import connect_existing

_COUNTS = ("ready", "taken", "delayed", "buried")
_RATES = ("put", "take", "ack", "release", "bury")
_NAME_WIDTH = 12


class Row(msgspec.Struct, frozen=True):
    """A tube: what is in it, and how many tasks a second each verb meets."""

    name: str
    kind: str
    tasks: dict[str, int]
    per_second: dict[str, float]


@click.command()
@click.option(
    "--interval", type=params.Seconds(0.1, 3600), default=1, show_default=True, help="Seconds between updates."
)
@click.option("--looks", type=click.IntRange(1), metavar="N", help="Stop after N updates; default: at Ctrl-C.")
@output.json_option
@click.pass_obj
def top(url: str, interval: float, looks: int | None, as_json: bool) -> None:
    """Watch depths and rates of the tubes, every second.

    \b
    penstock top
    penstock top --interval 5
    penstock top --looks 1 --json

    With --json, prints one line per update.
    """
    with connect_existing(url) as broker:
        views = islice(watch(broker, interval), looks)
        if as_json:
            for rows in views:
                output.as_json(rows)
            return
        _show(views)


def _show(views: Iterator[list[Row]]) -> None:
    """One table that changes on a terminal; elsewhere one after the other."""
    console = Console()
    if not console.is_terminal:
        for rows in views:
            console.print(_drawn(rows, console.width))
        return
    with Live(console=console, auto_refresh=False) as live:
        for rows in views:
            live.update(_drawn(rows, console.width), refresh=True)


def watch(broker: penstock.Broker, interval: float) -> Iterator[list[Row]]:
    """The tubes now, and again after each interval."""
    before: dict[str, TubeStats] = {}
    then = time.monotonic()
    while True:
        now = time.monotonic()
        stats = _stats(broker)
        yield [_row(kind, name, found, before.get(name), now - then) for (name, kind), found in stats.items()]
        before, then = {name: found for (name, _), found in stats.items()}, now
        time.sleep(interval)


def _stats(broker: penstock.Broker) -> dict[tuple[str, str], TubeStats]:
    found = {}
    for info in broker.tubes():
        try:
            found[info.name, info.kind] = find_tube(broker.runtime, broker.session_handle, info.name).stats()
        except penstock.NoSuchTube:  # dropped since it was listed
            continue
    return found


def _row(kind: str, name: str, stats: TubeStats, before: TubeStats | None, seconds: float) -> Row:
    rates = dict.fromkeys(_RATES, 0.0)
    if before is not None and seconds > 0:
        rates = {verb: (getattr(stats.calls, verb) - getattr(before.calls, verb)) / seconds for verb in _RATES}
    return Row(name, kind, {name: getattr(stats.tasks, name) for name in _COUNTS}, rates)


def _drawn(rows: list[Row], width: int) -> Table:
    """A table for a terminal so wide: long names are cut, and what is rare is left out, before a number is."""
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 1, 0, 0))
    headings = [*_COUNTS, *(f"{verb}/s" for verb in _RATES)]
    while (rest := width - sum(len(heading) + 1 for heading in headings)) < _NAME_WIDTH and len(headings) > 1:
        headings.pop()
    table.add_column("tube", no_wrap=True, max_width=max(rest, _NAME_WIDTH))
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True, min_width=len(heading))
    for row in rows:
        counts = [f"{row.tasks[name]:,}" for name in _COUNTS]
        rates = [f"{row.per_second[verb]:,.1f}" for verb in _RATES]
        table.add_row(Text(row.name), *(counts + rates)[: len(headings)])
    return table
