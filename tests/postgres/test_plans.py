"""Hot statements use their indexes whatever the statistics say: no rows, one, many, after a mass delete."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest

import penstock
from tests.postgres.plans import PlanLogger, buffers
from tests.postgres.plans import broker as broker

SCANNED = (
    "penstock_durable",
    "penstock_temporary",
    "penstock_utube",
    "penstock_tube",
    "penstock_handle",
    "penstock_session",
    "penstock_waiter",
)
pytestmark = pytest.mark.timeout(600)

FILL = {
    "empty": 0,
    "one": 1,
    "many": 40_000,
}


@pytest.fixture
def plan_logger(url: str, broker: penstock.Broker) -> Iterator[PlanLogger]:
    plan_logger = PlanLogger(url, broker)
    yield plan_logger
    plan_logger.db.close()


def fill(broker: penstock.Broker, kind: str, count: int) -> penstock.Tube:
    tube = broker.tube("work", kind)
    per_utube = kind.startswith("utube")
    tube.put_many((i, {"utube": i % 5000} if per_utube else {}) for i in range(count))
    return tube


def verbs(tube: penstock.Tube) -> dict[str, Callable[[], object]]:
    """Each hot verb once; those that settle use the tasks of the take before them."""
    per_utube = tube.kind.startswith("utube")
    held: list[penstock.Task] = []
    return {
        "put": lambda: tube.put("x", utube="u" if per_utube else None),
        "put_many": lambda: tube.put_many([("x", {"max_attempts": 1 + i}) for i in range(20)]),
        "take": lambda: held.extend(tube.take_many(1)),
        "ack": lambda: held.pop().ack(),
        "take_many": lambda: held.extend(tube.take_many(100)),
        "release": lambda: held.pop().release(),
        "bury": lambda: held.pop().bury(),
        "ack_many": lambda: tube.ack_many(held),
        "kick": lambda: tube.kick(1),
        "stats": lambda: tube.stats(),
        "oldest ready": lambda: tube.runtime.store.counters([tube.stored]),
        "overdue": lambda: tube.runtime.store.overdue(),
    }


def must_be_hot(verb: str, plans: list[str], rows: int, dead: int) -> None:
    assert plans, verb
    for plan in plans:
        for table in SCANNED:
            assert f"Seq Scan on {table}" not in plan, f"{verb}: {plan}"
        thrown_away = sum(int(number) for number in re.findall(r"Rows Removed by .*?: (\d+)", plan))
        assert thrown_away <= 10 * rows, f"{verb}: {plan}"
        assert "Bitmap" not in plan, f"{verb}: {plan}"
        if verb.startswith("take") and "LockRows" in plan:
            assert "Sort" not in plan, f"{verb}: {plan}"
        # A page or two for each index and row; reading many rows would touch thousands.
        touched = buffers(plan)
        assert touched < 300 + 40 * rows + dead, f"{verb} touched {touched} pages: {plan}"


def try_all(tube: penstock.Tube, plan_logger: PlanLogger, dead: int = 0) -> None:
    """Run all verbs twice and judge the second run: the first fills the connection's caches.

    `dead`: the number of index pages that may be full of dead rows.
    """
    per_utube = tube.kind.startswith("utube")
    for judged in (False, True):
        tube.put_many([("x", {"utube": f"{judged}{i}"} if per_utube else {}) for i in range(3)])
        for verb, call in verbs(tube).items():
            with plan_logger.listening() as plans:
                call()
            if judged:
                must_be_hot(verb, plans, 120 if "many" in verb else 1, dead)


@pytest.mark.parametrize("kind", ["fifottl", "utubettl"])
@pytest.mark.parametrize("size", FILL)
def test_hot_verbs_use_their_indexes(broker: penstock.Broker, plan_logger: PlanLogger, size: str, kind: str) -> None:
    tube = fill(broker, kind, FILL[size])
    tube.ack_many(tube.take_many(1))  # creates the session
    plan_logger.db.execute(f"ANALYZE {plan_logger.schema}.penstock_task")
    try_all(tube, plan_logger)


@pytest.mark.parametrize("kind", ["fifottl", "utubettl"])
def test_plans_made_for_an_empty_table_hold_when_it_is_full_and_when_it_was_emptied(
    broker: penstock.Broker, plan_logger: PlanLogger, kind: str
) -> None:
    tube = broker.tube("work", kind)
    with plan_logger.listening():
        for _ in range(8):  # prepared, generic, cached: for an empty table
            tube.put("x")
            tube.ack_many(tube.take_many(1))
    fill(broker, kind, FILL["many"])
    try_all(tube, plan_logger)
    tube.truncate()
    tube.take(0)  # skips dead rows, and marks them in the index
    fill(broker, kind, 120)
    try_all(tube, plan_logger, dead=5000)
    plan_logger.db.execute(f"VACUUM {plan_logger.schema}.penstock_task")  # as autovacuum does after 5,000 dead rows
    try_all(tube, plan_logger)


def unleased_verbs(tube: penstock.Tube) -> dict[str, Callable[[], object]]:
    """Each hot verb of a kind without leases."""
    held: list[penstock.Task] = []
    if tube.kind == "round":
        return {
            "put": lambda: tube.put("x", id="x"),
            "put again": lambda: tube.put("y", id="x"),
            "replace": lambda: tube.put("z", id="x", on_duplicate="replace"),
            "put_many": lambda: tube.put_many([(n, {"id": f"more {n}"}) for n in range(20)]),
            "take": lambda: tube.take(0),
            "take_many": lambda: tube.take_many(100),
            "peek": lambda: tube.peek("x"),
            "delete": lambda: tube.delete("x"),
        }
    return {
        "put": lambda: tube.put("x"),
        "put_many": lambda: tube.put_many(range(20)),
        "take": lambda: held.extend(tube.take_many(1)),
        "take_many": lambda: held.extend(tube.take_many(100)),
        "recover": lambda: tube.recover(1, 0),
        "recover many": lambda: tube.recover(100, 0),
        "inspect": lambda: tube.inspect(-1, 1, pending=True),
        "ack": lambda: tube.ack(held.pop().id),
        "ack_many": lambda: tube.ack_many([task.id for task in held]),
    }


@pytest.mark.parametrize("kind", ["round", "reliable"])
def test_hot_verbs_of_unleased_kinds_use_their_indexes_whenever_planned(
    broker: penstock.Broker, plan_logger: PlanLogger, kind: str
) -> None:
    tube = broker.tube("work", kind, period=1000 if kind == "round" else None)
    with plan_logger.listening():
        for _ in range(8):  # prepared, generic, cached: for an empty table
            tube.put_many([("x", {"id": "x"} if kind == "round" else {})])
            for warm in unleased_verbs(tube).values():
                warm()
    tube.put_many((n, {"id": f"e{n}"} if kind == "round" else {}) for n in range(FILL["many"]))
    tube.take_many(FILL["many"] // 2)
    plan_logger.db.execute(f"VACUUM {plan_logger.schema}.penstock_task")
    for judged in (False, True):  # the first call after the vacuum plans again, and reads the catalogue
        for verb, call in unleased_verbs(tube).items():
            with plan_logger.listening() as plans:
                call()
            if judged:
                must_be_hot(verb, plans, 120 if "many" in verb else 1, 0)


def test_peek_and_tasks_use_their_indexes(broker: penstock.Broker, plan_logger: PlanLogger) -> None:
    tube = fill(broker, "fifottl", 20_000)
    for task in tube.take_many(3):
        task.bury()
    for status in (None, "r", "t", "~", "!"):
        with plan_logger.listening():
            tube.tasks(status, limit=10, after=5000)
        with plan_logger.listening() as plans:
            tube.tasks(status, limit=10, after=5000)
        for plan in plans:
            assert "Seq Scan on penstock_durable" not in plan, plan
            assert buffers(plan) < 100, plan


def test_an_ack_reads_none_of_the_outcomes_that_are_kept(broker: penstock.Broker, plan_logger: PlanLogger) -> None:
    tube = broker.tube("work")
    for _ in range(2):
        tube.put_many(("x", {"address": str(n)}) for n in range(3000))
        tube.ack_many(tube.take_many(3000))
    for judged in (False, True):
        tube.put("x", address="one")
        (task,) = tube.take_many(1)
        with plan_logger.listening() as plans:
            task.ack("result")
        if judged:
            must_be_hot("ack", plans, 1, 0)
    assert tube.wait("one", 0).result == "result"
