"""Calls through the interface of stores: effects whose timing no test through a broker can control."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from penstock.core.entry import make_entry
from penstock.core.kind import find_kind
from penstock.core.lifecycle import Move
from penstock.core.results import Presence
from penstock.engine.store import Store
from penstock.errors import TubeFull
from penstock.store.open import open_store
from penstock.testing import Clock

# What export, import and move use, and what a database implements.
TRANSFER = {"freeze_tube", "erase_tube", "read_page", "import_batch", "activate_tube"}
DATABASE = {"step"}


def test_brokers_ask_at_most_thirty_things_of_a_store() -> None:
    calls = {name for name, member in vars(Store).items() if callable(member) and not name.startswith("_")}
    assert calls > TRANSFER | DATABASE
    assert len(calls - TRANSFER - DATABASE) <= 30
    assert all(getattr(Store, name).__doc__ for name in calls)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> Iterator[Store]:
    url = f"memory://{uuid4().hex}" if request.param == "memory" else f"sqlite:///{tmp_path}/jobs.db"
    opened = open_store(url, clock)
    yield opened
    opened.close()


def test_a_waiting_take_counts_in_every_tube_though_something_is_due_in_one(store: Store, clock: Clock) -> None:
    first, second = (store.save_tube(name, find_kind("fifottl"), {}, exist_ok=False) for name in ("first", "second"))
    store.put(first, [make_entry(first, "later", {"delay": 0.05})])
    store.put(second, [make_entry(second, "gone", {"ttl": 0.01})])
    store.join(Presence("h", "host", 1, "here"), None, 0)
    clock.advance(0.02)
    taken = store.take([first, second], 1, "h", blocked="register")
    assert (taken.records, taken.wait_ms) == ([], 30)
    assert [session.waits for session in store.sessions()] == [["first", "second"]]


def test_an_ack_wakes_the_waiters_of_the_task(store: Store) -> None:
    tube = store.save_tube("t", find_kind("fifottl"), {}, exist_ok=False)
    store.put(tube, [make_entry(tube, "x", {"address": "a"}), make_entry(tube, "y", {})])
    session = store.join(Presence("h", "host", 1, "here"), None, 0).session
    taken = store.take([tube], 2, "h").records
    settled = store.settle(tube, [Move("ack", record.id, session, record.lease) for record in taken], brief=True)
    assert settled.effects.ended == [("task", tube.no, 1)]


def test_old_outcomes_are_forgotten_a_thousand_at_a_time(store: Store, clock: Clock) -> None:
    tube = store.save_tube("t", find_kind("fifottl"), {"retention": 5}, exist_ok=False)
    store.put(tube, [make_entry(tube, n, {"address": str(n), "ttl": 0.01}) for n in range(2500)])
    clock.advance(0.02)
    assert [store.advance(tube).more for _ in range(3)] == [True, True, False]
    clock.advance(5.0)
    assert [store.advance(tube).more for _ in range(3)] == [True, True, False]
    assert not store.overdue().tubes


def test_a_put_that_is_refused_changes_nothing(store: Store, clock: Clock) -> None:
    """Not even a task past its ttl is removed: its on_change event would be lost."""
    tube = store.save_tube("t", find_kind("fifottl"), {"capacity": 1}, exist_ok=False)
    entry = make_entry(tube, "x", {"address": "a", "ttl": 0.01})
    store.put(tube, [entry])
    clock.advance(0.02)
    with pytest.raises(TubeFull):
        store.put(tube, [entry, make_entry(tube, "y", {"group": "g"})])
    assert store.groups(tube) == []
    assert [event.name for event in store.advance(tube).effects.events] == ["ttl"]


def test_the_reply_of_a_task_that_a_put_expired_is_put_before_the_new_task(store: Store, clock: Clock) -> None:
    tube = store.save_tube("t", find_kind("fifottl"), {}, exist_ok=False)
    store.put(tube, [make_entry(tube, "old", {"address": "a", "ttl": 0.01, "reply_to": "t"})])
    clock.advance(0.02)
    stored = store.put(tube, [make_entry(tube, "new", {"address": "a"})])
    assert [(event.name, event.record.id) for event in stored.effects.events] == [("ttl", 1), ("put", 2), ("put", 3)]
    assert [record.id for record in stored.records] == [3]
