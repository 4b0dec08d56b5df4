"""The cost of round and reliable tubes as they grow, in rows that the server touched."""

from __future__ import annotations

import penstock
from tests.mysql.conftest import Connection
from tests.mysql.databases import numbers
from tests.mysql.test_scaling import Rows, must_not_grow
from tests.mysql.test_scaling import rows as rows

SMALL, LARGE = 300, 30_000


def add_delivered(own: Connection, tube: penstock.Tube, low: int, high: int) -> None:
    """Insert delivered messages by SQL: real pushes and pops would take too long."""
    no, cursor = tube.stored.no, own.cursor()
    cursor.execute(
        "INSERT INTO penstock_task (pk, tube, state, rank1, rank2, pri, attempts, created, taken, data, address)"
        f" {numbers(low, high)} SELECT {no << 40} + i, {no}, 't', i, 0, 0, 1, 1, 1, '1', CONCAT('1-', i) FROM n"
    )
    count = high - low + 1
    cursor.execute(f"INSERT INTO penstock_counter (tube, taken, take_calls) VALUES ({no}, {count}, {count})")
    cursor.execute(
        f"UPDATE penstock_id SET last = {high}, last_ms = 1, last_seq = {high}, serial = {high} WHERE tube = {no}"
    )


def test_a_hundred_times_the_delivered_messages_cost_no_more(
    broker: penstock.Broker, own: Connection, rows: Rows
) -> None:
    small, large = broker.tube("small", kind="reliable"), broker.tube("large", kind="reliable")
    small.take(0)  # joined
    add_delivered(own, small, 1, SMALL)
    add_delivered(own, large, 1, LARGE)
    assert broker.check() == []

    def costs(tube: penstock.Tube) -> dict[str, int]:
        return {
            "put": rows(lambda: tube.put("x")),
            "take": rows(lambda: tube.take(0)),
            "ack": rows(lambda: tube.ack("1-7")),
            "recover": rows(lambda: tube.recover(1, 0)),
            "recover nothing": rows(lambda: tube.recover(10, 3 * 10**9)),
            "inspect": rows(lambda: tube.inspect(0, 2, pending=True)),
            "inspect the end": rows(lambda: tube.inspect(-2, 2, pending=True)),
            "end of a session": rows(broker.session().close),
        }

    must_not_grow(costs(small), costs(large))
    assert [task.id for task in large.recover(2, 0)] == ["1-2", "1-3"]
    assert [task.id for task in large.inspect(-3, 1, pending=True)] == ["1-1"]


def test_a_hundred_times_the_elements_cost_no_more(broker: penstock.Broker, own: Connection, rows: Rows) -> None:
    """Half of the elements were never handed out, the others a moment ago; in the last tube none is due."""
    small, large, idle = (broker.tube(name, kind="round", period=1000) for name in ("small", "large", "idle"))
    for tube, count, handed in ((small, SMALL, SMALL // 2), (large, LARGE, LARGE // 2), (idle, LARGE, LARGE)):
        no, now = tube.stored.no, round(tube.put("x", id="x").created * 1000)
        own.cursor().execute(
            "INSERT INTO penstock_task (pk, tube, state, rank1, rank2, pri, created, taken, data, address)"
            f" {numbers(2, count)} SELECT {no << 40} + i, {no}, 'r', IF(i <= {handed}, {now}, 0), 0, 0, 1,"
            f" IF(i <= {handed}, {now}, 0), '1', i FROM n"
        )
        own.cursor().execute(f"UPDATE penstock_id SET last = {count} WHERE tube = {no}")
        tube.delete("x")
    assert broker.check() == []

    def costs(tube: penstock.Tube) -> dict[str, int]:
        return {
            "put": rows(lambda: tube.put("x", id="x")),
            "put again": rows(lambda: tube.put("x", id="x")),
            "take": rows(lambda: tube.take(0)),
            "take again": rows(lambda: tube.take(0)),
            "peek": rows(lambda: tube.peek("x")),
            "delete": rows(lambda: tube.delete("x")),
        }

    few = costs(small)
    must_not_grow(few, costs(large))
    must_not_grow(few, costs(idle))
    assert idle.take(0) is None
