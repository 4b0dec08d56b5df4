"""Delays between attempts."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.backoff import Backoff
from penstock.errors import BadValue


@pytest.mark.parametrize(("attempt", "seconds"), [(0, 2), (1, 2), (2, 6), (3, 18), (4, 20), (100_000, 20)])
def test_each_attempt_waits_longer_up_to_the_limit(attempt: int, seconds: float) -> None:
    assert Backoff(base=2, factor=3, limit=20, jitter=0).delay(attempt, 0.5) == seconds


@pytest.mark.parametrize(("chance", "seconds"), [(0, 8), (0.25, 9), (0.5, 10), (1, 12)])
def test_chance_places_the_wait_within_the_jitter(chance: float, seconds: float) -> None:
    assert Backoff(base=10, jitter=0.2).delay(1, chance) == pytest.approx(seconds)


def test_factor_one_waits_the_same_each_time() -> None:
    backoff = Backoff(base=4, factor=1, jitter=0)
    assert {backoff.delay(attempt, 0.5) for attempt in range(1, 9)} == {4}


@pytest.mark.parametrize(("base", "seconds"), [(0, 0), (1, 300)])
def test_attempts_too_large_for_a_float(base: float, seconds: float) -> None:
    assert Backoff(base=base, jitter=0).delay(5000, 0.5) == seconds


@given(attempt=st.integers(0, 10**9), chance=st.floats(0, 1), factor=st.floats(1, 1e9), jitter=st.floats(0, 1))
def test_the_wait_stays_between_nothing_and_twice_the_limit(
    attempt: int, chance: float, factor: float, jitter: float
) -> None:
    assert 0 <= Backoff(base=1, factor=factor, limit=60, jitter=jitter).delay(attempt, chance) <= 120


BAD: list[Any] = [
    {"base": -1}, {"base": float("nan")}, {"base": True}, {"base": "1"}, {"limit": 0}, {"limit": float("inf")},
    {"factor": 0.5}, {"factor": float("nan")}, {"factor": "2"}, {"jitter": -0.1}, {"jitter": 1.1},
    {"jitter": float("nan")}, {"jitter": True},
]  # fmt: skip


@pytest.mark.parametrize("options", BAD, ids=str)
def test_a_backoff_that_makes_no_sense_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(BadValue, match=next(iter(options))):
        Backoff(**options)
