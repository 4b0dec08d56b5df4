"""`penstock doctor`: is the store in order, what does it promise, and what should be done about it."""

from __future__ import annotations

import logging
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

import click
import msgspec
from rich.console import Console
from rich.table import Table

from penstock.stats import make_stats
from penstock.store.base import Description, Store
from penstock.store.open import open_store

# Enough for a median that one slow call does not move.
_PROBES = 21


class TubeReport(msgspec.Struct, frozen=True):
    """What waits in one tube."""

    name: str
    kind: str
    ready: int
    taken: int
    delayed: int
    buried: int


class Report(msgspec.Struct, frozen=True):
    """Everything the doctor found."""

    store: Description
    round_trip_ms: float
    clock_offset_ms: int
    sessions: int
    tubes: list[TubeReport]


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_obj
def doctor(url: str, as_json: bool) -> None:
    """Look at the store: version, durability, speed, what waits, what to fix.

    \b
    penstock --url sqlite:///jobs.db doctor
    penstock doctor --json

    Exit code 1 when there is something to fix.
    """
    with _once(), closing(open_store(url)) as store:
        report = examine(store)
    if as_json:
        click.echo(msgspec.json.encode(report))
    else:
        _show(report)
    if report.store.advice:
        sys.exit(1)


@contextmanager
def _once() -> Iterator[None]:
    """What opening a store warns of is not logged: the report says it, as something to fix."""
    log = logging.getLogger("penstock")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)


def examine(store: Store) -> Report:
    """Ask the store about itself."""
    offset = store.now() - time.time_ns() // 1_000_000
    tubes = []
    for tube in store.load_tubes():
        tasks = make_stats(store.count(tube)).tasks
        tubes.append(TubeReport(tube.name, tube.kind.name, tasks.ready, tasks.taken, tasks.delayed, tasks.buried))
    return Report(store.describe(), _round_trip(store), offset, len(store.sessions()), tubes)


def _round_trip(store: Store) -> float:
    taken = []
    for _ in range(_PROBES):
        began = time.perf_counter()
        store.load_tube("penstock.doctor")
        taken.append(time.perf_counter() - began)
    return round(statistics.median(taken) * 1000, 3)


def _show(report: Report) -> None:
    console = Console()
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="bold")
    facts.add_column()
    schema = "-" if report.store.schema is None else str(report.store.schema)
    facts.add_row("store", f"{report.store.store} {report.store.version}")
    facts.add_row("at", report.store.where)
    facts.add_row("durability", report.store.durability)
    facts.add_row("round trip", f"{report.round_trip_ms} ms (median of {_PROBES})")
    facts.add_row("clock", f"{report.clock_offset_ms:+d} ms against this host")
    facts.add_row("schema", schema)
    facts.add_row("sessions", str(report.sessions))
    console.print(facts)
    if report.tubes:
        console.print(_tube_table(report.tubes))
    for advice in report.store.advice:
        console.print(f"[bold red]fix[/] {advice}", highlight=False)
    if not report.store.advice:
        console.print("[green]nothing to fix[/]")


def _tube_table(tubes: list[TubeReport]) -> Table:
    table = Table("tube", "kind")
    for heading in ("ready", "taken", "delayed", "buried"):
        table.add_column(heading, justify="right")
    for tube in tubes:
        table.add_row(tube.name, tube.kind, *(f"{n:,}" for n in (tube.ready, tube.taken, tube.delayed, tube.buried)))
    return table
