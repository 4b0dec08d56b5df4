"""PENSTOCK_LAPSE: how long a session lives without a heartbeat."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import penstock

PROGRAM = """
import sys

import penstock
from penstock.runtime.heartbeat import BEAT_SECONDS
from penstock.testing import Clock

clock = Clock()
holder, other = (penstock.connect(sys.argv[1], clock=clock) for _ in range(2))
holder.tube("t").put("x")
holder.tube("t").take(0)
seen = []
for seconds in (14, 2, 13, 2):
    clock.advance(seconds)
    seen.append(other.tube("t").peek(1).status.value)
print(BEAT_SECONDS, *seen)
"""


@pytest.mark.parametrize(("lapse", "expected"), [(None, "5.0 t r r r"), ("", "5.0 t r r r"), ("30", "10.0 t t t r")])
def test_a_session_lapses_after_the_seconds_of_the_environment(lapse: str | None, expected: str) -> None:
    assert run("memory://lapse", {} if lapse is None else {"PENSTOCK_LAPSE": lapse}) == expected


def test_a_session_that_nobody_joined_lapses_after_them_on_every_store(store_url: str) -> None:
    assert run(store_url, {"PENSTOCK_LAPSE": "30"}) == "10.0 t t t r"


def run(url: str, variables: dict[str, str]) -> str:
    command = [sys.executable, "-c", PROGRAM, url]
    return subprocess.run(
        command, env={**os.environ, **variables}, capture_output=True, text=True, check=True
    ).stdout.strip()


@pytest.mark.parametrize("lapse", ["x", "0", "-1", "nan", "inf", "2.9", "1e9"])
def test_a_bad_number_of_seconds_is_refused(monkeypatch: pytest.MonkeyPatch, lapse: str) -> None:
    monkeypatch.setenv("PENSTOCK_LAPSE", lapse)
    with pytest.raises(penstock.BadValue, match="PENSTOCK_LAPSE .* is not a number of seconds"):
        penstock.connect("memory://")
