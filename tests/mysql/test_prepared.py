"""Plain puts as prepared statements: they store what other puts store, and a failed one leaves nothing behind."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import penstock
from tests.mysql.conftest import Connection
from tests.support.threads import begin, until
from tests.support.verbs import take

OPTIONS: list[dict[str, object]] = [
    {},
    {"ttl": 60},
    {"ttl": 60, "ttr": 30, "pri": 7, "max_attempts": 3, "callback": "https://example.org/?" + "x" * 300},
]


def texts(broker: penstock.Broker) -> None:
    """Make its only connection put without prepared statements from now on."""
    (link,) = broker.runtime.store.server.pool.idle  # type: ignore[attr-defined]
    link.prepares = False


def ask(own: Connection, sql: str) -> tuple[tuple[object, ...], ...]:
    cursor = own.cursor()
    cursor.execute(sql)
    return cursor.fetchall()


@pytest.mark.parametrize("options", OPTIONS)
def test_both_ways_store_the_same(broker: penstock.Broker, own: Connection, options: dict[str, object]) -> None:
    tube = broker.tube("t", **options)  # type: ignore[arg-type]
    stored = [tube.put("x")]
    if "MariaDB" in str(ask(own, "SELECT VERSION()")):
        assert ask(own, "SHOW GLOBAL STATUS LIKE 'Prepared_stmt_count'")[0][1] != "0"
    texts(broker)
    stored.append(tube.put("x"))
    columns = "state, place, rank1, rank2, pri, utube, expires - created, at = IFNULL(expires, at), ttr, extra, data"
    first, second = ask(own, f"SELECT {columns} FROM penstock_task ORDER BY pk")
    assert first == second
    assert [task.id for task in stored] == [1, 2]
    for task in stored:
        seen = tube.peek(task.id)
        assert (seen.created, seen.expires, seen.pri) == (task.created, task.expires, task.pri)


@pytest.mark.parametrize("size", [0, 250, 251, 65_535, 65_536, 300_000])
def test_data_of_any_length_is_read_back(broker: penstock.Broker, size: int) -> None:
    tube = broker.tube("t")
    tube.put(b"\xff" * size)
    assert take(tube).data == b"\xff" * size


@contextmanager
def refused(own: Connection) -> Iterator[None]:
    """Make the server refuse new tasks during the block."""
    ask(
        own,
        "CREATE TRIGGER no BEFORE INSERT ON penstock_task FOR EACH ROW SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'no'",
    )
    yield
    ask(own, "DROP TRIGGER no")


@pytest.mark.parametrize("prepared", [True, False])
def test_a_task_that_is_refused_takes_no_id(broker: penstock.Broker, own: Connection, prepared: bool) -> None:
    tube = broker.tube("t")
    tube.put("first")
    if not prepared:
        texts(broker)
    with refused(own), pytest.raises(penstock.StoreError, match="no"):
        tube.put("second")
    assert tube.put("third").id == 2
    assert tube.stats().calls.put == 2
    assert broker.check() == []


def test_a_put_that_is_killed_while_it_waits_stores_nothing(
    patient: None, broker: penstock.Broker, own: Connection
) -> None:
    tube = broker.tube("t")
    tube.put("first")
    own.begin()
    ask(own, "SELECT last FROM penstock_id FOR UPDATE")
    waiting = begin(lambda: tube.put("second"))
    under_way = (
        "SELECT id FROM information_schema.processlist WHERE command IN ('Execute', 'Query') AND db = DATABASE() "
        "AND id <> CONNECTION_ID() AND info LIKE 'INSERT INTO penstock_id%'"
    )
    until(lambda: bool(ask(own, under_way)))
    ((id,),) = ask(own, under_way)
    ask(own, f"KILL QUERY {id}")
    with pytest.raises(penstock.StoreUnavailable):
        waiting.result(60)
    own.commit()  # no earlier: a put that gets the lock before it notices its kill completes
    assert tube.put("third").id == 2
    assert broker.check() == []


def test_a_server_that_prepares_no_more_gets_text(url: str, own: Connection) -> None:
    ((_, before),) = ask(own, "SHOW GLOBAL VARIABLES LIKE 'max_prepared_stmt_count'")
    ask(own, "SET GLOBAL max_prepared_stmt_count = 0")
    try:
        with penstock.connect(url) as broker:
            tube = broker.tube("t")
            assert [tube.put("x").id for _ in range(2)] == [1, 2]
    finally:
        ask(own, f"SET GLOBAL max_prepared_stmt_count = {before}")
