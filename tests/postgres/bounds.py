"""Where takes begin to look (store/postgres/functions/heads.sql): read, and raised whenever that may be."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import psycopg
import pytest

import penstock
from penstock.store.postgres import schema
from penstock.store.postgres.location import locate
from tests.behaviour.verbs import take
from tests.postgres.schemas import damage


class Low(Protocol):
    def __call__(self, tube: penstock.Tube, bound: str = "heads") -> int: ...


@pytest.fixture
def low(url: str) -> Iterator[Low]:
    """From which id on takes look, or from which moment on (dues)."""
    with psycopg.connect(locate(url).conninfo, autocommit=True) as db:

        def read(tube: penstock.Tube, bound: str = "heads") -> int:
            query = f"SELECT pg_sequence_last_value({bound}) FROM {locate(url).quoted}.penstock_tube WHERE name = %s"
            ((value,),) = db.execute(query.encode(), (tube.name,)).fetchall()
            return int(value or 0)

        yield read


def rewritten(url: str, old: str, new: str) -> None:
    """The functions of the one file that says `old` say something else instead."""
    (text,) = (text for text in schema.FUNCTIONS if old in text)
    damage(url, schema._placed(text, locate(url)).replace(old, new))


def eager(url: str) -> None:
    """From here on every take raises what it may."""
    rewritten(url, "least((v_keys[1] - v_low) / 10000.0, 0.2)", "1")


def passed_by(url: str, tube: penstock.Tube, low: Low) -> penstock.Task:
    """A task that is held while the bound goes beyond it."""
    eager(url)
    tube.put_many(range(30))
    old = take(tube)
    for _ in range(20):
        take(tube).ack()
    assert low(tube) > old.id
    return old
