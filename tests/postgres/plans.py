"""The plans of every statement of the store, as the server logs them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import get_ident

import psycopg
import pytest

import penstock
from penstock.store.postgres.postgres_connection import locate
from penstock.store.postgres.postgres_store import PostgresStore
from penstock.testing import Clock
from tests.postgres.schemas import database_of
from tests.support.quiet_broker import quiet

# auto_explain logs the plan of each statement, with what it really read.
_LOG_PLANS = """LOAD 'auto_explain';
SET auto_explain.log_min_duration = 0; SET auto_explain.log_nested_statements = on; SET auto_explain.log_level = notice;
SET auto_explain.log_analyze = on; SET auto_explain.log_buffers = on; SET auto_explain.log_timing = off;
SET client_min_messages = notice"""


@pytest.fixture
def broker(url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[penstock.Broker]:
    """A broker without background work.

    While a heartbeat reads the tables, dead rows cannot be removed; and one call in about 500 sums up the counters of
    all calls before it. Both touch pages that would be counted.
    """
    monkeypatch.setattr(PostgresStore, "fold_chance", 0.0)
    with penstock.connect(url, clock=Clock()) as broker:
        quiet(broker)
        yield broker


class PlanLogger:
    """Makes a store's calls through one connection that logs its plans; nothing in them is random."""

    def __init__(self, url: str, broker: penstock.Broker) -> None:
        server = database_of(broker).server
        self._pool = server.pool
        self.schema = server.location.quoted
        self.plans: list[str] = []
        self.db = server.connect()
        self.db.execute(_LOG_PLANS)
        self.db.add_notice_handler(lambda notice: self.plans.append(notice.message_primary or ""))

    @contextmanager
    def listening(self) -> Iterator[list[str]]:
        """Collect the plans of the calls that this thread makes in the block."""
        borrow, give_back, me = self._pool.borrow, self._pool.give_back, get_ident()
        self._pool.borrow = lambda seconds: self.db if get_ident() == me else borrow(seconds)  # type: ignore[method-assign]
        self._pool.give_back = lambda db, **how: None if db is self.db else give_back(db, **how)  # type: ignore[method-assign]
        self.plans.clear()
        try:
            yield self.plans
        finally:
            self._pool.borrow, self._pool.give_back = borrow, give_back  # type: ignore[method-assign]


def vacuum(url: str) -> None:
    """Vacuum, as autovacuum, which is off here, would do after 5,000 dead rows."""
    with psycopg.connect(locate(url).conninfo, autocommit=True) as db:
        db.execute(f"VACUUM {locate(url).quoted}.penstock_task")


def buffers(plan: str) -> int:
    """The number of pages that a statement touched."""
    line = next((line for line in plan.splitlines() if "Buffers: shared" in line), "")
    return sum(int(part.split("=")[1]) for part in line.split() if part.startswith(("hit=", "read=")))
