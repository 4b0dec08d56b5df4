"""One process on the SQL servers, compared with the bare driver in the same run; every commit waits for the disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import penstock
from bench import private_servers
from bench.bare_servers import MariadbTable, PostgresTable
from bench.rates import NAMES, Bare, Ours, Table, compare
from bench.reporting import Line, Size, Target

_TARGETS = {
    ("postgres", "put"): (Target("T7", 0.8, "× bare"),),
    ("mariadb", "put"): (Target("T15", 0.8, "× bare"),),
    ("mariadb", "take_batches"): (Target("T15", 0.5, "× bare"),),
}


def postgres(size: Size) -> Iterator[Line]:
    """Compared with single prepared statements through psycopg."""
    yield from _beside_bare("postgres", PostgresTable, size)


def mariadb(size: Size) -> Iterator[Line]:
    """Compared with statements through PyMySQL."""
    yield from _beside_bare("mariadb", MariadbTable, size)


def _beside_bare(name: str, table: Callable[[str], Table], size: Size) -> Iterator[Line]:
    with private_servers.running(name) as server, penstock.connect(private_servers.store_url(name, server)) as broker:
        ours, bare = Ours(broker.tube("jobs")), Bare(table(server.url))
        found = compare(ours, bare, size.pick(5, 9), single=size.pick(200, 500), batched=size.pick(2000, 5000))
    for work, rates in found.items():
        targets = _TARGETS.get((name, work), ())
        yield Line(f"{private_servers.NAMES[name]}: {NAMES[work]}", rates.rate, "/s", rates.base, rates.ratio, targets)
