"""How pages format values."""

from __future__ import annotations

import pytest

import penstock
from penstock.server.http import formatting


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0124, "12 ms"), (1, "1 s"), (2.63, "2.6 s"), (45.8, "46 s"), (89.9, "90 s"), (90, "1.5 min"),
        (3600, "60 min"), (5400, "1.5 h"), (24_000, "6.7 h"), (604_800, "7 d"), (10**8, "1157 d"),
    ],
)  # fmt: skip
def test_a_length_of_time(value: float, text: str) -> None:
    assert formatting.seconds(value) == text


def test_options_have_their_units() -> None:
    shown = [formatting.option(60.0, "ttr"), formatting.option(60, "capacity"), formatting.option(True, "fair")]
    assert shown == ["60 s", "60", "yes"]
    assert formatting.option(penstock.Backoff(2, 3), "backoff") == "base 2, factor 3, limit 300, jitter 0.1"
