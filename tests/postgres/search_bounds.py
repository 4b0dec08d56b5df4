"""The lower bounds at which takes start to search (`heads` and `dues` of a tube): read them, and raise them early."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import psycopg
import pytest

import penstock
from penstock.store.postgres import postgres_step
from penstock.store.postgres.postgres_connection import locate
from tests.support.verbs import take


class Low(Protocol):
    def __call__(self, tube: penstock.Tube, bound: str = "heads") -> int: ...


@pytest.fixture
def low(url: str) -> Iterator[Low]:
    """The lowest id, or the earliest deadline (dues), at which takes start to search."""
    with psycopg.connect(locate(url).conninfo, autocommit=True) as db:

        def read(tube: penstock.Tube, bound: str = "heads") -> int:
            query = f"SELECT pg_sequence_last_value({bound}) FROM {locate(url).quoted}.penstock_tube WHERE name = %s"
            ((value,),) = db.execute(query.encode(), (tube.name,)).fetchall()
            return int(value or 0)

        yield read


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every take raise the bounds as far as it may."""
    monkeypatch.setattr(postgres_step, "raise_chance", lambda passed: 1.0)


def passed_by(tube: penstock.Tube, low: Low) -> penstock.Task:
    """A taken task that the bound has moved past."""
    tube.put_many(range(30))
    old = take(tube)
    for _ in range(20):
        take(tube).ack()
    assert low(tube) > old.id
    return old
