"""Real processes under a nemesis, judged by their histories; and broken builds, which must be caught."""

from __future__ import annotations

import os
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from tests.fault.actors import SABOTAGE
from tests.fault.campaign import PATIENCE, Campaign, seed
from tests.fault.checker import summary
from tests.fault.history import read
from tests.fault.outages import STORES, Outages

LONG = os.environ.get("PENSTOCK_CAMPAIGN") == "long"
SECONDS = 1800.0 if LONG else 15.0
SERVER_SECONDS = 600.0 if LONG else 8.0
TRIES = 4  # one is enough but on a busy machine
# Caught within the first or second of these as a rule; the rest is for busy machines.
BROKEN_SECONDS, BROKEN_TRIES = 4.0, 8


@pytest.mark.timeout(TRIES * (SECONDS + 30))
def test_the_invariants_hold_while_processes_die_and_freeze(tmp_path: Path) -> None:
    told, calls = "", Counter[tuple[str, bool | None]]()
    for attempt in range(TRIES):
        folder, number = tmp_path / str(attempt), seed()
        folder.mkdir()
        violations = Campaign(folder, number).run(SECONDS)
        calls.update((call.op, call.ok) for call in read(folder))
        told = f"PENSTOCK_SEED={number}, histories in {folder}, {dict(calls)}"
        assert not violations, f"{summary(violations)}\n{told}"
        if calls["ack", True] > 100 and calls["ack", False] > 0 and calls["kill", True] > 0:
            return
    pytest.fail(f"too little happened to mean anything: {told}")


@pytest.mark.timeout(SERVER_SECONDS + PATIENCE + 60)
@pytest.mark.parametrize("store", STORES)
def test_the_invariants_hold_while_the_server_is_killed_and_connections_break(store: str, tmp_path: Path) -> None:
    def happened() -> Counter[tuple[str, bool]]:
        return Counter((call.op, call.ok) for call in read(tmp_path))

    def enough() -> bool:
        calls = happened()
        return calls["ack", True] > 20 and all(calls[strike, True] for strike in ("restart", "cut", "swallow", "kill"))

    number = seed()
    with closing(Outages(store)) as outages:
        violations = Campaign(tmp_path, number, outages=outages).run(SERVER_SECONDS, enough)
    told = f"PENSTOCK_SEED={number}, histories in {tmp_path}, {dict(happened())}"
    assert not violations, f"{summary(violations)}\n{told}"
    assert enough(), f"too little happened to mean anything: {told}"


# what is broken -> the invariants of which one must be seen not to hold
EXPECTED = {
    "ack without the lease guard": {"I3", "I4"},
    "release without the lease guard": {"I3", "I5"},
    "promote without the micro-queue check": {"I6"},
    "a put that is not stored": {"I1", "I11"},
}


@pytest.mark.timeout(BROKEN_SECONDS * BROKEN_TRIES + 60)
@pytest.mark.parametrize("broken", SABOTAGE)
def test_a_broken_build_is_caught(broken: str, tmp_path: Path) -> None:
    seen: set[str] = set()
    for attempt in range(BROKEN_TRIES):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        violations = Campaign(folder, seed(), broken).run(BROKEN_SECONDS)
        seen |= {violation.name for violation in violations}
        if seen & EXPECTED[broken]:
            return
    pytest.fail(f"{broken} was not caught, only {seen}")
