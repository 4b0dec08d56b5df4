"""`penstock doctor`: the state of the store, what it promises, and what should be fixed."""

from __future__ import annotations

import logging
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

import click
import msgspec

from penstock.broker.stats import make_stats
from penstock.cli import output
from penstock.cli.existing_store import must_exist
from penstock.core.results import Description
from penstock.engine.store import Store, load_tube
from penstock.store.open import open_store

# The number of timed calls: enough that one slow call does not change the median.
_PROBES = 21
_COUNTS = ("ready", "taken", "delayed", "buried")


class TubeReport(msgspec.Struct, frozen=True):
    """The backlog of one tube."""

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
@output.json_option
@click.pass_obj
def doctor(url: str, as_json: bool) -> None:
    """Examine the store: version, durability, speed, backlog, what to fix.

    \b
    penstock --url sqlite:///jobs.db doctor
    penstock doctor --json

    Exit code 1 if there is something to fix.
    """
    must_exist(url)
    with _once(), closing(open_store(url)) as store:
        report = examine(store)
    if as_json:
        output.as_json(report)
    else:
        _show(report)
    if report.store.advice:
        sys.exit(1)


@contextmanager
def _once() -> Iterator[None]:
    """Suppress the warnings logged when a store is opened: the report repeats them as advice."""
    log = logging.getLogger("penstock")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)


def examine(store: Store) -> Report:
    """Examine the store."""
    offset = store.now() - time.time_ns() // 1_000_000
    tubes = []
    for tube in store.load_tubes():
        tasks = make_stats(store.counters(tube).counts).tasks
        tubes.append(TubeReport(tube.name, tube.kind.name, tasks.ready, tasks.taken, tasks.delayed, tasks.buried))
    return Report(store.describe(), _round_trip(store), offset, len(store.sessions()), tubes)


def _round_trip(store: Store) -> float:
    taken = []
    for _ in range(_PROBES):
        began = time.perf_counter()
        load_tube(store, "penstock.doctor")
        taken.append(time.perf_counter() - began)
    return round(statistics.median(taken) * 1000, 3)


def _show(report: Report) -> None:
    store = report.store
    output.sheet(
        {
            "store": f"{store.store} {store.version}".rstrip(),
            "at": store.where,
            "durability": store.durability,
            "round trip": f"{report.round_trip_ms} ms (median of {_PROBES})",
            "clock": f"{report.clock_offset_ms:+d} ms against this host",
            "schema": store.schema,
            "sessions": report.sessions,
        }
    )
    if report.tubes:
        click.echo()
        rows = [[each.name, each.kind, *(f"{getattr(each, name):,}" for name in _COUNTS)] for each in report.tubes]
        output.table(("tube", "kind", *_COUNTS), rows)
    click.echo()
    for advice in store.advice:
        click.echo(f"fix: {advice}")
    if not store.advice:
        click.echo("nothing to fix")
