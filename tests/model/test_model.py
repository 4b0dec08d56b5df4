"""Every store against the naive model. PENSTOCK_CAMPAIGN=long runs hours of examples.

A failure prints its calls, and the blob that reproduces them.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

import penstock
from penstock.core import kind as known
from tests.conftest import DURABLE, STORES
from tests.model.machine import Machine
from tests.model.sharded import ShardedMachine
from tests.model.strategies import OWN_KINDS

QUICK = settings(
    max_examples=40,
    derandomize=True,  # the same examples in every run; PENSTOCK_CAMPAIGN=long searches for new ones
    stateful_step_count=50,
    deadline=None,
    print_blob=True,
    report_multiple_bugs=False,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
    suppress_health_check=list(HealthCheck),
)
# A server is a hundred times slower than memory, and an example is judged for four seconds. A file runs
# the code of memory.
SERVER = settings(QUICK, max_examples=10, stateful_step_count=30)
LONG = settings(QUICK, derandomize=False, phases=tuple(Phase), max_examples=20_000, stateful_step_count=120)
CAMPAIGN = os.environ.get("PENSTOCK_CAMPAIGN", "")


@pytest.fixture(autouse=True)
def own_kinds_and_locks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The kinds of the machine, and a private folder for the locks of thousands of sessions."""
    monkeypatch.setattr(known, "_kinds", dict(known._kinds))
    for kind in OWN_KINDS:
        penstock.register_kind(kind)
    monkeypatch.setenv("PENSTOCK_LOCKS", str(tmp_path / "locks"))


@pytest.mark.timeout(24 * 3600 if CAMPAIGN == "long" else 600)
@pytest.mark.parametrize("store", STORES)
def test_the_store_answers_what_the_model_answers(store: str) -> None:
    machine = type(f"Machine_{store}", (Machine,), {"make_url": STORES[store], "durable": store in DURABLE})
    quick = QUICK if store == "memory" else SERVER
    run_state_machine_as_test(machine, settings=LONG if CAMPAIGN == "long" else quick)


@pytest.mark.timeout(24 * 3600 if CAMPAIGN == "long" else 600)
@pytest.mark.parametrize("store", ["sqlite", "redis", "redis-cluster"])
def test_a_sharded_tube_keeps_what_it_promises(store: str) -> None:
    """On a store that keeps the tube whole, one that splits it, and one that splits it over servers."""
    machine = type(f"Sharded_{store}", (ShardedMachine,), {"make_url": STORES[store]})
    run_state_machine_as_test(machine, settings=LONG if CAMPAIGN == "long" else settings(SERVER, max_examples=5))
