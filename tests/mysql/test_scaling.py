"""The cost of verbs on tasks with groups and addresses as these grow, in rows that the server touched."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from statistics import median
from typing import TypeAlias

import pytest

import penstock
from penstock.core.results import ADVANCE_STEP
from penstock.store.mysql.mysql_store import MysqlStore
from penstock.testing import Clock
from tests.mysql.conftest import Connection
from tests.plans.cancelled_group import clearing, must_clear_in_steps, plain_cost, takes_after_cancel
from tests.support.quiet_broker import quiet
from tests.support.verbs import take

Rows: TypeAlias = Callable[[Callable[[], object]], int]

SMALL, LARGE = 2_000, 20_000
GROWTH = 1.5
# A number of rows that does not matter compared with thousands.
NOISE = 200
# The number of cancelled tasks that a step removes.
STEP = ADVANCE_STEP


@pytest.fixture
def broker(url: str) -> Iterator[penstock.Broker]:
    """A broker without background work, which needs no heartbeat however slow the machine is."""
    with penstock.connect(url, clock=Clock()) as broker:
        quiet(broker)
        yield broker


@pytest.fixture
def rows(own: Connection, broker: penstock.Broker, monkeypatch: pytest.MonkeyPatch) -> Rows:
    """The number of rows that the server read and wrote for one call; index entries that it skipped do not count."""
    cursor = own.cursor()
    database: MysqlStore = broker.runtime.store  # type: ignore[assignment]
    # Otherwise one call in 64 sums up the counters of all calls before it.
    monkeypatch.setattr(MysqlStore, "fold_chance", 0.0)

    def count() -> int:
        cursor.execute("SHOW GLOBAL STATUS LIKE 'Handler%'")
        found = [(str(name), int(str(value))) for name, value in cursor.fetchall()]
        return sum(value for name, value in found if "commit" not in name and "icp" not in name)

    def of(call: Callable[[], object]) -> int:
        for stored in database.step().tubes():
            database.fold(stored)
        before = count()
        looking = count() - before
        before = count()
        call()
        return count() - before - looking

    return of


def must_not_grow(small: dict[str, int], large: dict[str, int]) -> None:
    grown = {name: (small[name], cost) for name, cost in large.items() if cost > small[name] * GROWTH + NOISE}
    assert not grown


def costs(tube: penstock.Tube, rows: Rows, size: int) -> dict[str, int]:
    """The cost of each verb while tasks of a group of that size still follow its start or cancel."""
    group, tasks = tube.group("g"), []
    group.put_many(range(size))
    group.on_end("end")

    def take() -> None:
        task = tube.take(0)
        assert task is not None
        tasks.append(task)

    found = {"put": rows(lambda: group.put("x")), "start": rows(group.start)}
    found["take"] = rows(take)
    found["ack"] = rows(lambda: tasks[0].ack())
    found["cancel"] = rows(group.cancel)
    found["put of others"] = rows(lambda: tube.put("other"))
    assert group.wait(0) == "cancelled"
    return found


@pytest.mark.parametrize("kind", ["fifo", "utube"])
def test_takes_after_a_cancel_clear_a_step_each(broker: penstock.Broker, rows: Rows, kind: str) -> None:
    tube = broker.tube("t", kind=kind)
    calls = takes_after_cancel(tube, rows, STEP)
    must_clear_in_steps(calls, STEP)
    # They cost what they remove, and no row of the thousands that the first ones skip; some also fold counters.
    spent = [call.cost for call in calls[: clearing(STEP)]]
    assert median(spent[:5]) <= median(spent[-5:]) + NOISE, spent
    must_not_grow({"take": plain_cost(broker.tube("plain", kind=kind), rows)}, {"take": plain_cost(tube, rows)})
    assert broker.check() == []


def test_a_large_group_is_started_and_cancelled_in_bounded_steps(broker: penstock.Broker, rows: Rows) -> None:
    tube = broker.tube("t", kind="fifo")
    small = costs(broker.tube("warm", kind="fifo"), rows, SMALL)
    must_not_grow(small, costs(tube, rows, LARGE))
    stats = tube.stats()
    assert (stats.tasks.total, stats.calls.delete, stats.calls.ack) == (1, LARGE, 1)


def test_an_address_among_many_costs_no_more(broker: penstock.Broker, rows: Rows) -> None:
    tube = broker.tube("t", kind="fifo")

    def verbs(address: str) -> dict[str, int]:
        found = {"put": rows(lambda: tube.put("x", address=address))}
        found["duplicate"] = rows(lambda: tube.put("y", address=address, on_duplicate="ignore"))
        found["replace"] = rows(lambda: tube.put("z", address=address, on_duplicate="replace"))
        found["wait"] = rows(lambda: tube.wait("nobody"))
        return found

    small = verbs("a")
    tube.put_many((n, {"address": f"n{n}"}) for n in range(LARGE))
    tube.ack_many(tube.take_many(LARGE // 2))  # as many outcomes
    must_not_grow(small, verbs("b"))


@pytest.mark.parametrize("mode", ["ignore", "replace"])
def test_four_times_the_duplicates_cost_four_times_as_much(broker: penstock.Broker, rows: Rows, mode: str) -> None:
    tube = broker.tube("t", kind="fifo")

    def again(count: int) -> int:
        items = [(n, {"address": f"n{n}"}) for n in range(count)]
        tube.put_many(items, on_duplicate=mode)
        return rows(lambda: tube.put_many(items, on_duplicate=mode))

    assert again(1000) * 4 * GROWTH > again(4000)


RELATIONS = {"penstock_outcome", "penstock_group"}


@pytest.fixture
def touched(own: Connection) -> Iterator[Callable[[], set[str]]]:
    """The tables whose rows were read or written since the last call; on MySQL, written."""
    cursor = own.cursor()
    cursor.execute("SELECT VERSION()")
    mariadb = "MariaDB" in str(cursor.fetchall())
    if mariadb:
        table = "information_schema.table_statistics"
        moved = "rows_read + rows_changed > 0"
        found = f"SELECT table_name FROM {table} WHERE table_schema = DATABASE() AND {moved}"
        begin, again, end = "SET GLOBAL userstat = 1", "FLUSH TABLE_STATISTICS", "SET GLOBAL userstat = 0"
    else:
        table = "performance_schema.table_io_waits_summary_by_table"
        found = f"SELECT object_name FROM {table} WHERE object_schema = DATABASE() AND count_write > 0"
        begin = again = end = f"TRUNCATE {table}"

    def look() -> set[str]:
        cursor.execute(found)
        names = {str(name) for (name,) in cursor.fetchall()}
        cursor.execute(again)
        return names

    cursor.execute(begin)
    yield look
    cursor.execute(end)


def test_plain_tasks_touch_nothing_of_it(broker: penstock.Broker, touched: Callable[[], set[str]]) -> None:
    tube = broker.tube("t")
    tube.put("first")
    take(tube).ack()  # joined, connected
    touched()
    tube.put("one")
    tube.put_many(range(10))
    tasks = tube.take_many(5)
    tube.ack_many(tasks[:3])
    tasks[3].release()
    tasks[4].bury()
    plain = touched()
    assert "penstock_task" in plain
    assert not plain & RELATIONS
    tube.put("addressed", address="a", group="g", reply_to="t")
    tube.delete(13)
    assert touched() >= RELATIONS
