"""`python -m bench [--only NAME] [--quick] [--long] [--json FILE]`: measure, and print ok or below for each target.

`python -m bench --against REV [--only STORE_OR_LINE] [--rounds 5]` compares the working tree with another commit.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from bench import (
    against,
    cancelled,
    coroutines,
    cost,
    crowd,
    pool,
    pool_crowd,
    processes,
    recovery,
    redis,
    redis_protocol,
    scale,
    sql,
    sqlite,
    worker_rates,
)
from bench.reporting import Bench, Size, measure, save, show

BENCHES: dict[str, Bench] = {
    "full": sqlite.full,
    "relaxed": sqlite.relaxed,
    "memory": sqlite.memory,
    "postgres": sql.postgres,
    "mariadb": sql.mariadb,
    "cost": cost.cost,
    "awaited": coroutines.awaited,
    "backlog": scale.backlog,
    "utubes": scale.utubes,
    "latency": processes.latency,
    "idle": processes.idle,
    "crowd": crowd.crowd,
    "wire": redis_protocol.wire,
    "redis": redis.redis_puts,
    "redis-memory": redis.redis_memory,
    "pool-sqlite": pool.pool_sqlite,
    "pool-postgres": pool.pool_postgres,
    "pool-mariadb": pool.pool_mariadb,
    "pool-crowd-mariadb": pool_crowd.pool_crowd_mariadb,
    "pool-crowd-postgres": pool_crowd.pool_crowd_postgres,
    "drain-sqlite": worker_rates.drain_sqlite,
    "drain-redis": worker_rates.drain_redis,
    "drain-results": worker_rates.drain_results,
    "drain-processes": worker_rates.drain_processes,
    "drain-postgres": worker_rates.drain_postgres,
    "latency-redis": worker_rates.latency_redis,
    "idle-worker": worker_rates.idle_worker,
    "cancel": cancelled.cancel,
    "recovery": recovery.recovery,
    "recovery-loaded": recovery.recovery_loaded,
}


def main() -> None:
    """Parse the arguments, measure, print the results."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--only", action="append", default=[], help="only this measurement; repeatable")
    parser.add_argument("--quick", action="store_true", help="smaller amounts, under a minute")
    parser.add_argument("--long", action="store_true", help="also 10 × 150,000 tasks in micro-queues")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the results to this file")
    parser.add_argument("--against", metavar="REV", help="compare with this commit; --only then names stores and lines")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="with --against: the median of N rounds")
    given = parser.parse_args()
    if given.quick and given.long:
        parser.error("--quick and --long exclude each other")
    known = [*against.STORES, *against.NAMES] if given.against else list(BENCHES)
    for name in given.only:
        if name not in known:
            parser.error(f"--only {name} is unknown: use one of {', '.join(known)}")
    if given.against:
        if given.rounds < 1:
            parser.error(f"--rounds {given.rounds} is too few: give at least 1")
        try:
            other = against.extract(given.against)
        except ValueError as error:
            parser.error(f"--against {error}")
        lines = against.compare(other, given.only, given.rounds, quick=given.quick)
    else:
        chosen = {name: BENCHES[name] for name in given.only or BENCHES}
        lines = measure(chosen, Size(given.quick, given.long))
    show(lines)
    if given.json:
        save(lines, given.json)


if __name__ == "__main__":
    main()
