"""The bounds at which takes start to search never hide a task: not one put meanwhile, nor one in a restored dump."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest

import penstock
from penstock.store.postgres import postgres_step
from penstock.store.postgres.postgres_connection import locate
from penstock.testing import Clock
from tests.postgres.search_bounds import Low, passed_by
from tests.postgres.search_bounds import eager as eager
from tests.postgres.search_bounds import low as low
from tests.servers.postgres import Postgres
from tests.support.threads import begin
from tests.support.verbs import take


@contextmanager
def stopped(monkeypatch: pytest.MonkeyPatch, take_one: Callable[[], object]) -> Iterator[None]:
    """Stop a take that is about to raise the bounds before it checks that it is alone."""
    arrived, gate, raise_bounds = threading.Event(), threading.Event(), postgres_step.raise_bounds

    def wait(*what: Any) -> None:
        arrived.set()
        assert gate.wait(30)
        raise_bounds(*what)

    with monkeypatch.context() as patched:
        patched.setattr(postgres_step, "raise_bounds", wait)
        taking = begin(take_one)
        assert arrived.wait(30)
    yield
    gate.set()
    taking.result(30)


@pytest.mark.usefixtures("eager")
def test_a_task_returned_just_before_is_the_next(
    broker: penstock.Broker, low: Low, monkeypatch: pytest.MonkeyPatch
) -> None:
    tube = broker.tube("work", "fifo")
    old = passed_by(tube, low)
    with stopped(monkeypatch, lambda: take(tube)):
        old.release()
    assert take(tube).id == old.id


@pytest.mark.usefixtures("eager")
def test_a_deadline_just_before_is_kept(url: str, low: Low, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    with penstock.connect(url, clock=clock) as broker:
        tube = broker.tube("work", ttr=1000)
        old = passed_by(tube, low)
        clock.advance(1)
        take(tube)  # the first deadline, after the old task's has changed
        with stopped(monkeypatch, lambda: take(tube)):
            old.release(5)
        clock.advance(5)
        assert take(tube).id == old.id


@pytest.fixture
def copied(server: Postgres, url: str) -> Callable[[str], str]:
    """Dump a store as of a snapshot and restore it as another one. Returns its URL."""
    base, schema, tools = server.url, locate(url).schema, Path(server.binary)

    def copy(snapshot: str) -> str:
        dump = (str(tools.with_name("pg_dump")), base, "--schema", schema, "--snapshot", snapshot)
        dumped = subprocess.run(dump, check=True, capture_output=True, text=True).stdout
        name = f"t{uuid4().hex[:16]}"
        restore = (str(tools.with_name("psql")), base, "--quiet", "--set", "ON_ERROR_STOP=1")
        subprocess.run(restore, check=True, capture_output=True, text=True, input=dumped.replace(schema, name))
        return f"{base}?schema={name}"

    return copy


@pytest.mark.usefixtures("eager")
def test_a_dump_made_meanwhile_has_all_its_tasks_visible(url: str, low: Low, copied: Callable[[str], str]) -> None:
    clock = Clock()
    with penstock.connect(url, clock=clock) as broker, psycopg.connect(locate(url).conninfo) as db:
        tube = broker.tube("work", ttr=1000)
        tube.put_many(range(30))
        tube.put("later", delay=5)
        db.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        ((snapshot,),) = db.execute("SELECT pg_export_snapshot()").fetchall()
        clock.advance(5)
        for _ in range(30):
            take(tube).ack()
        assert low(tube) > 1
        assert low(tube, "dues") > clock()
        copy = copied(snapshot)
    with penstock.connect(copy, clock=clock) as broker:
        assert [task.data for task in broker.tube("work").take_many(40)] == [*range(30), "later"]
        assert broker.check() == []
