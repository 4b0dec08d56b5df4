"""Processes that are killed and frozen, checked by their histories; broken builds must be caught."""

from __future__ import annotations

import os
import sys
from contextlib import closing, nullcontext
from functools import partial
from pathlib import Path

import pytest

from tests.fault.actors import DEFECTS
from tests.fault.campaign import PATIENCE, CallCounts, Campaign, seed
from tests.fault.checker import summary
from tests.fault.invariants import Violation
from tests.fault.outages import CLUSTER, STORES, TAILS, Outages

ASKED = os.environ.get("PENSTOCK_CAMPAIGN")  # short: as in make test, and also a cluster
LONG = ASKED == "long"
SECONDS, SERVER_SECONDS = (1800.0, 600.0) if LONG else (0.0, 0.0)
if asked := os.environ.get("PENSTOCK_CAMPAIGN_SECONDS"):  # the minimum of each run
    SECONDS = SERVER_SECONDS = float(asked)
BROKEN_TRIES = 8  # usually caught in the first or second; each is longer than the one before


def much(counts: CallCounts) -> bool:
    """Enough work, killed processes, and leases that ended while their holder was frozen."""
    return counts["ack", True] > 100 and counts["ack", False] > 0 and counts["kill", True] > 8


def some(counts: CallCounts, faults: set[str]) -> bool:
    """The same with a server, after each of its faults."""
    return counts["ack", True] > 50 and all(counts[fault, True] for fault in ("kill", *faults))


def judge(campaign: Campaign, violations: list[Violation]) -> None:
    sys.stdout.write(f"{campaign.description()}\n")  # shown by pytest -rP
    assert not violations, f"{summary(violations)}\n{campaign.description()}"


@pytest.mark.timeout(SECONDS + PATIENCE + 240)
def test_the_invariants_hold_while_processes_die_and_freeze(tmp_path: Path) -> None:
    campaign = Campaign(tmp_path, seed())
    violations = campaign.run(much, SECONDS)
    judge(campaign, violations)


@pytest.mark.timeout(SERVER_SECONDS + PATIENCE + 240)
@pytest.mark.parametrize("store", (*STORES, CLUSTER) if ASKED else STORES)  # each restart of a node takes two seconds
def test_the_invariants_hold_while_the_server_is_killed_and_connections_break(store: str, tmp_path: Path) -> None:
    with closing(Outages(store)) as outages:
        campaign = Campaign(tmp_path, seed(), outages=outages)
        violations = campaign.run(partial(some, faults=outages.faults), SERVER_SECONDS)
    judge(campaign, violations)


@pytest.mark.timeout(SERVER_SECONDS + PATIENCE + 240)
@pytest.mark.parametrize("store", (*TAILS, CLUSTER) if ASKED else TAILS)
def test_no_older_attempt_settles_anything_after_the_newest_writes_are_lost(store: str, tmp_path: Path) -> None:
    with closing(Outages(store, loses_tails=True)) as outages:
        campaign = Campaign(tmp_path, seed(), outages=outages)
        violations = campaign.run(partial(some, faults=outages.faults), SERVER_SECONDS)
    judge(campaign, violations)


def enough(counts: CallCounts, attempt: int, faults: set[str]) -> bool:
    return counts["ack", True] > 60 * attempt and all(counts[fault, True] >= attempt for fault in faults)


# what is broken -> the invariants, one of which must be violated
EXPECTED = {
    "ack without the lease guard": {"I3", "I4"},
    "release without the lease guard": {"I3", "I5"},
    "promote without the micro-queue check": {"I6"},
    "a put that is not stored": {"I1", "I11"},
    "leases without their random part": {"I3"},
}
# Found only if the newest writes are lost.
LOSES_TAILS = {"leases without their random part"}


@pytest.mark.timeout(PATIENCE * BROKEN_TRIES)
@pytest.mark.parametrize("broken", DEFECTS)
def test_a_broken_build_is_caught(broken: str, tmp_path: Path) -> None:
    seen: set[str] = set()
    for attempt in range(1, BROKEN_TRIES + 1):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        with closing(Outages("redis", loses_tails=True)) if broken in LOSES_TAILS else nullcontext() as outages:
            faults = {"lose_tail"} if outages else set()
            campaign = Campaign(folder, seed(), broken, outages)
            violations = campaign.run(partial(enough, attempt=attempt, faults=faults))
        seen |= {violation.name for violation in violations}
        if seen & EXPECTED[broken]:
            return
    pytest.fail(f"{broken} was not caught, only {seen}")
