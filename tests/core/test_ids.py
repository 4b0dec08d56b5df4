"""Ids of messages, and how a delivery without a lease changes a task."""

from __future__ import annotations

import pytest

from penstock.core.ids import Mark, next_marks, read_mark, shown_mark
from penstock.core.kind import find_kind
from penstock.core.lifecycle import delivered, dispatched, round_limit, round_wait_ms
from penstock.core.options import make_tube
from penstock.core.task import Record

RECORD = Record(
    id=7, state="r", rank1=0, rank2=0, pri=0, utube=None, attempts=0, lease=0, created=5, taken=None, expires=99, at=99,
    ttr=None, owner=None, reason=None, extra=None, payload=b"1", address="a",
)  # fmt: skip
ROUND = make_tube(1, "t", find_kind("round"), {"period": 2})


@pytest.mark.parametrize(
    ("last", "now", "marks"),
    [
        ((0, 0), 5, [(5, 1), (5, 2)]),
        ((4, 9), 5, [(5, 1), (5, 2)]),
        ((5, 9), 5, [(5, 10), (5, 11)]),
        ((6, 9), 5, [(6, 10), (6, 11)]),
    ],
)
def test_marks_grow_whatever_the_clock_does(last: Mark, now: int, marks: list[Mark]) -> None:
    assert next_marks(last, now, 2) == marks
    assert next_marks(last, now, 0) == []


def test_a_mark_is_read_as_it_is_shown() -> None:
    assert shown_mark((1599352749159, 4)) == "1599352749159-4"
    assert read_mark("1599352749159-4") == (1599352749159, 4)
    assert read_mark("1-1xyz") is None


def test_a_delivered_element_stays_ready_behind_the_others() -> None:
    once = dispatched(RECORD, 10_000)
    assert (once.state, once.rank1, once.taken, once.attempts, once.at) == ("r", 10_000, 10_000, 1, 99)
    assert (once.lease, once.owner, once.expires) == (0, None, 99)


def test_a_delivered_message_has_its_serial_and_no_owner() -> None:
    twice = delivered(delivered(RECORD, 10, 1), 20, 5)
    assert (twice.state, twice.rank1, twice.taken, twice.attempts) == ("t", 5, 20, 2)
    assert (twice.lease, twice.owner) == (0, None)


@pytest.mark.parametrize(
    ("rank", "now", "wait"), [(0, 1, None), (0, 9000, None), (5000, 6999, 1), (5000, 7000, None), (5000, 4000, 3000)]
)
def test_when_an_element_may_be_handed_out(rank: int, now: int, wait: int | None) -> None:
    assert round_wait_ms(ROUND, rank, now) == wait
    assert (rank <= round_limit(ROUND, now)) is (wait is None)
