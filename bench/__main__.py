"""`python -m bench [--only NAME] [--quick] [--long] [--json FILE]`: measure, and say ok or below for each target."""

from __future__ import annotations

import argparse
from pathlib import Path

from bench import awaited, crowd, pool, processes, redis, scale, sql, sqlite, wire, worker
from bench.report import Bench, Size, measure, save, show

BENCHES: dict[str, Bench] = {
    "full": sqlite.full,
    "relaxed": sqlite.relaxed,
    "memory": sqlite.memory,
    "postgres": sql.postgres,
    "mariadb": sql.mariadb,
    "awaited": awaited.awaited,
    "backlog": scale.backlog,
    "utubes": scale.utubes,
    "latency": processes.latency,
    "idle": processes.idle,
    "crowd": crowd.crowd,
    "wire": wire.wire,
    "redis": redis.redis_puts,
    "redis-memory": redis.redis_memory,
    "pool-sqlite": pool.pool_sqlite,
    "pool-postgres": pool.pool_postgres,
    "pool-mariadb": pool.pool_mariadb,
    "drain-sqlite": worker.drain_sqlite,
    "drain-redis": worker.drain_redis,
    "drain-postgres": worker.drain_postgres,
    "latency-redis": worker.latency_redis,
    "idle-worker": worker.idle_worker,
}


def main() -> None:
    """Parse, measure, show."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--only", choices=BENCHES, action="append", help="just this one; may be given again")
    parser.add_argument("--quick", action="store_true", help="smaller amounts, under a minute")
    parser.add_argument("--long", action="store_true", help="also 10 × 150,000 tasks in micro-queues")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the lines there as well")
    given = parser.parse_args()
    if given.quick and given.long:
        parser.error("--quick and --long exclude each other")
    chosen = {name: BENCHES[name] for name in given.only or BENCHES}
    lines = measure(chosen, Size(given.quick, given.long))
    show(lines)
    if given.json:
        save(lines, given.json)


if __name__ == "__main__":
    main()
