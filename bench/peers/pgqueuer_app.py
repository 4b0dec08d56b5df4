"""PgQueuer: batches of a thousand by asyncpg on uvloop, at the durability of its database."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from importlib import import_module
from typing import Any

WORKER = ["-m", "bench.peers.pgqueuer_app"]
BATCH = 1000
_url = os.environ["BENCH_PEER_URL"]
_asyncpg: Any = import_module("asyncpg")
_library: Any = import_module("pgqueuer")
_drivers: Any = import_module("pgqueuer.db")
_queries: Any = import_module("pgqueuer.queries")


def _run(work: Callable[[Any], Awaitable[Any]]) -> Any:
    async def connected() -> Any:
        connection = await _asyncpg.connect(_url)
        try:
            return await work(connection)
        finally:
            await connection.close()

    return asyncio.run(connected())


def put(count: int, data: str) -> None:
    async def fill(connection: Any) -> None:
        queries = _queries.Queries(_drivers.AsyncpgDriver(connection))
        if not await connection.fetchval("SELECT to_regclass('pgqueuer')"):
            await queries.install()
        await connection.execute("TRUNCATE pgqueuer")
        for _ in range(0, count, BATCH):
            await queries.enqueue(["noop"] * BATCH, [data.encode()] * BATCH, [0] * BATCH)

    _run(fill)


def left() -> int:
    return int(_run(lambda connection: connection.fetchval("SELECT count(*) FROM pgqueuer")))


async def _work() -> None:
    app = _library.PgQueuer(_drivers.AsyncpgDriver(await _asyncpg.connect(_url)))

    @app.entrypoint("noop")  # type: ignore[untyped-decorator]
    async def noop(job: object) -> None:
        """Do nothing."""

    await app.run(batch_size=BATCH)


if __name__ == "__main__":
    import_module("uvloop").run(_work())
