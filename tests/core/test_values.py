"""Numbers that callers may pass."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.core.values import MAX_SECONDS, number, positive_ms, span_ms, timeout, whole
from penstock.errors import BadValue

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("seconds", "ms"), [(1, 1_000), (0.5, 500), (0.0001, 1), (60.1, 60_100), (MAX_SECONDS, MAX_SECONDS * 1000)]
)
def test_seconds_become_at_least_one_millisecond(seconds: float, ms: int) -> None:
    assert positive_ms("ttl", seconds) == ms


@pytest.mark.parametrize(
    ("seconds", "ms"), [(0, 0), (0.0, 0), (0.0001, 1), (1.5, 1_500), (MAX_SECONDS, MAX_SECONDS * 1000)]
)
def test_a_span_is_never_shorter_than_asked(seconds: float, ms: int) -> None:
    assert span_ms("delay", seconds) == ms


@pytest.mark.parametrize("seconds", [1.1, 2.2, 4.35, 8.2, 1.001, 16.1, 0.07, 0.29])
def test_a_span_of_whole_milliseconds_is_that_many(seconds: float) -> None:
    assert span_ms("delay", seconds) == round(seconds * 1000)


@pytest.mark.parametrize(("given", "seconds"), [(None, None), (0, 0), (2, 2.0), (0.25, 0.25)])
def test_a_timeout_is_seconds_or_none(given: float | None, seconds: float | None) -> None:
    assert timeout(given) == seconds


BAD_SECONDS: list[Any] = [-1, -0.0001, NAN, INF, -INF, 1e308, 10**400, MAX_SECONDS + 1, True, "1", b"1", [1], 1j]


@pytest.mark.parametrize(
    "value", BAD_SECONDS, ids=lambda value: ascii(value)[:20] if not isinstance(value, int) else "int"
)
def test_seconds_that_make_no_sense_are_refused(value: object) -> None:
    with pytest.raises(BadValue, match="ttl"):
        positive_ms("ttl", value)
    with pytest.raises(BadValue, match="delay"):
        span_ms("delay", value)
    with pytest.raises(BadValue, match="timeout"):
        timeout(value)


@pytest.mark.parametrize("value", [0, 0.0, -0.0])
def test_zero_is_not_above_zero(value: float) -> None:
    with pytest.raises(BadValue, match="above 0"):
        positive_ms("ttl", value)


@pytest.mark.parametrize("value", [0, 5, 9])
def test_a_whole_number_in_range(value: int) -> None:
    assert whole("pri", value, 0, 9) == value


@pytest.mark.parametrize("value", [-1, 10, 5.0, NAN, True, "5", None, 10**400], ids=lambda value: ascii(value)[:20])
def test_a_whole_number_out_of_range_or_of_another_type_is_refused(value: object) -> None:
    with pytest.raises(BadValue, match=r"pri .* 0 to 9"):
        whole("pri", value, 0, 9)


@pytest.mark.parametrize("value", [0, -2.5, 2**53, -(2**53), 1e15])
def test_a_number_that_a_double_holds(value: float) -> None:
    assert number("rank", value) == value


@pytest.mark.parametrize(
    "value",
    [NAN, INF, -INF, 2**53 + 1, -(2**53) - 1, 10**400, 1e308, True, "1", None],
    ids=lambda value: ascii(value)[:20],
)
def test_another_number_is_refused(value: object) -> None:
    with pytest.raises(BadValue, match="rank"):
        number("rank", value)


def test_the_message_names_thing_value_and_remedy() -> None:
    with pytest.raises(BadValue, match=r"^pri -3 is out of range: give an int from 0 to 9$"):
        whole("pri", -3, 0, 9)
