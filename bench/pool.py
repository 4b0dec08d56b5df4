"""A pool with each database, compared with that database alone and with Redis alone in the same run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import penstock
from bench import private_servers
from bench.rates import NAMES, Ours, compare
from bench.reporting import Line, Size


def pool_sqlite(size: Size) -> Iterator[Line]:
    """On a SQLite file whose commits wait for the disk."""
    with TemporaryDirectory(prefix="penstock-bench-") as folder:
        yield from _pool("SQLite", f"sqlite:///{Path(folder)}/pool.db", f"sqlite:///{Path(folder)}/alone.db", size)


def pool_postgres(size: Size) -> Iterator[Line]:
    """On a PostgreSQL whose commits wait for the disk."""
    yield from _behind("postgres", size)


def pool_mariadb(size: Size) -> Iterator[Line]:
    """On a MariaDB whose commits wait for the disk."""
    yield from _behind("mariadb", size)


def _behind(name: str, size: Size) -> Iterator[Line]:
    with private_servers.running(name) as server:
        behind, alone = (private_servers.store_url(name, server) for _ in range(2))
        yield from _pool(private_servers.NAMES[name], behind, alone, size)


def _pool(database: str, behind: str, alone: str, size: Size) -> Iterator[Line]:
    with ExitStack() as opened:
        redis = opened.enter_context(private_servers.running("redis"))

        def queue(url: str, pool: str | None = None) -> Ours:
            return Ours(opened.enter_context(penstock.connect(url, pool=pool)).tube("jobs"))

        ours = queue(redis.fresh_url(), behind)
        for other, url in ((database, alone), ("Redis", redis.fresh_url())):
            rates = compare(
                ours, queue(url), size.pick(5, 9), single=size.pick(200, 500), batched=size.pick(2000, 5000)
            )
            for work, found in rates.items():
                name = f"Redis with {database} behind: {NAMES[work]}"
                yield Line(name, found.rate, "/s", found.base, found.ratio, note=f"compared with {other} alone")
