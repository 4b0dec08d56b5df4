"""Hot statements read only what they need through the index that they name, however many tasks there are."""

from __future__ import annotations

import json
import re

import pytest

import penstock
from penstock.store.mysql.mysql_queries import Q
from penstock.store.mysql.mysql_wire import Raw, fill
from tests.mysql.conftest import Connection
from tests.mysql.databases import numbers
from tests.support.quiet_broker import quiet

SIZES = [10, 9_000]
# Rows that a statement which finds a hundred may touch: each by its index and by its key, in each joined table.
MOST = 1_000
VALUES: dict[str, object] = {
    "now": 5, "limit": 100, "after": 0, "low": 0, "high": 2**62, "group": 1, "start": 0, "elapsed": 0, "count": 100,
    "name": "g1", "session": 1, "utube": "u1", "rank1": 0, "rank2": 0, "pk": 0, "above": 0, "call": 7, "fair": 1,
    "lease": None, "plain": 1,
}  # fmt: skip
# name -> the index of penstock_task, or of the table that it reads
LOADS = {
    "by_ids": "PRIMARY", "by_names": "penstock_address", "due": "penstock_timer", "buried": "penstock_ready",
    "members": "penstock_grouped", "unstarted": "penstock_queued", "page": "PRIMARY", "undelivered": "penstock_ready",
    "delivered": "penstock_ready", "undelivered_back": "penstock_ready", "first_rank": "penstock_ready",
    "moving_groups": "penstock_moving_group", "live_group": "penstock_live_group",
    "outcomes_by_address": "penstock_outcome_address",
}  # fmt: skip
# In the order in which a packet runs them; variables are passed from one to the next.
PACKETS = {
    "take one": ("look", "find_one", "lease_one", "count_takes", "show_one"),
    "take many": ("look", "find_many", "lease_many", "count_takes", "show_many"),
    "take some": ("look", "find_cancelled", "find_some", "lock_some", "lease_many", "show_many"),
    "take heads": ("look", "find_many", "lease_many", "serve_queues", "count_takes", "show_many"),
    "recover": ("look", "find_to_recover", "serials", "hand_out_delivered", "show_many"),
    "ack": ("ack",),
    "ack by name": ("ack_named",),
    "sweep": ("sweep_outcomes", "sweep_groups", "forget_idle_queues"),
}


def fill_store(own: Connection, tube: int, rows: int) -> None:
    """Ready tasks, one in five with a ttl, in micro-queues of two; others taken, buried, grouped, with addresses."""
    cursor, base = own.cursor(), tube << 40
    cursor.execute(
        "INSERT INTO penstock_task (pk, tube, state, rank1, rank2, pri, utube, created, at, owner, address, group_no,"
        f" data) {numbers(1, rows)} SELECT {base} + i, {tube}, ELT(1 + i % 8, 'r', 'r', 'q', 'r', 't', '!', 'g', 'r'),"
        " i % 7, 0, i % 7, CONCAT('u', i DIV 2), 1, IF(i % 5, 9007199254740991, 1000000 + i), IF(i % 8 = 4, 1, 0),"
        " IF(i % 3, NULL, CONCAT('a', i)), IF(i % 8 = 6, 1, NULL), REPEAT('x', 100) FROM n"
    )
    cursor.execute(
        "INSERT INTO penstock_utube (tube, utube, taken, heads, waiting)"
        f" {numbers(0, rows // 2)} SELECT {tube}, CONCAT('u', i), 0, 1, 1 FROM n"
    )
    cursor.execute(
        "INSERT INTO penstock_outcome (pk, tube, address, status, until)"
        f" {numbers(1, rows)} SELECT {base} + i, {tube}, CONCAT('o', i), 'done', i FROM n"
    )
    cursor.execute(
        f"INSERT INTO penstock_group (tube, name, state, moving, until) {numbers(1, rows)} SELECT {tube},"
        " CONCAT('g', i), IF(i < 9, 'started', 'done'), i < 3, IF(i < 9, NULL, i) FROM n"
    )


@pytest.fixture(params=SIZES)
def tube(request: pytest.FixtureRequest, broker: penstock.Broker, own: Connection) -> int:
    """A tube with some tasks, next to another one; in a transaction."""
    other, tube = (broker.tube(name, kind="utubettl").stored.no for name in ("other", "t"))
    broker.tube("t").take(0)  # joined
    quiet(broker)
    # As on a table that has just grown: the server believes that it is empty.
    for table in ("penstock_task", "penstock_outcome", "penstock_group", "penstock_utube"):
        own.cursor().execute(f"ALTER TABLE {table} STATS_AUTO_RECALC = 0")
        own.cursor().execute(f"ANALYZE TABLE {table}")
    for no in (other, tube):
        fill_store(own, no, request.param)
    own.cursor().execute("SET SESSION group_concat_max_len = 67108864")
    own.begin()
    return tube


def explain(own: Connection, query: str) -> list[dict[str, object]]:
    cursor = own.cursor()
    cursor.execute("EXPLAIN FORMAT=TRADITIONAL " + query)
    names = [column[0] for column in cursor.description or ()]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def reads(own: Connection, query: str) -> int:
    """The number of rows that the server read for the statement."""
    cursor = own.cursor()

    def count() -> int:
        cursor.execute("SHOW SESSION STATUS LIKE 'Handler_read%'")
        return sum(int(str(value)) for _, value in cursor.fetchall())

    before = count()
    looking = count() - before
    before = count()
    cursor.execute(query)
    cursor.fetchall()
    return count() - before - looking


def values(tube: int) -> dict[str, object]:
    pks = [tube << 40 | id for id in range(1, 101)]
    return {**VALUES, "tube": tube, "ids": pks, "texts": [f"a{id}" for id in range(1, 101)], "address": "o1",
            "low": tube << 40, "high": tube << 40 | 2**40 - 1,
            "tables": Raw("k"), "queues": Raw("")}  # fmt: skip


def test_loads_use_their_indexes(own: Connection, tube: int) -> None:
    for name, index in LOADS.items():
        query = fill(getattr(Q, name), **values(tube))
        explained = explain(own, query)[0]
        assert explained["key"] == index, (name, explained)
        assert explained["type"] != "ALL", (name, explained)
        assert reads(own, query) <= MOST, name


def test_overdue_reads_one_entry_of_each_index_per_tube(own: Connection, tube: int) -> None:
    own.cursor().execute("UPDATE penstock_group SET moving = 0")
    assert reads(own, fill(Q.overdue, now=0)) <= 60


def test_the_next_deadline_of_a_tube_is_three_index_seeks(own: Connection, tube: int) -> None:
    query = fill(Q.ready_since, now=0, ids=[tube])
    assert {row["key"] for row in explain(own, query) if row["table"] == "penstock_task"} == {"penstock_ready"}
    assert reads(own, query) <= 10


def test_statements_of_packets_read_few_rows(own: Connection, broker: penstock.Broker, tube: int) -> None:
    for name in PACKETS:
        must_read_little(own, tube, broker.session_handle.handle, name)
        own.rollback()
        own.begin()


def must_read_little(own: Connection, tube: int, handle: str, name: str) -> None:
    """Run a packet's statements one by one; none may read many rows."""
    own.cursor().execute(
        f"SET @p_t={tube},@p_now=5,@p_h='{handle}',@p_k=7,@p_stop=0,@p_forced=1,@p_id=NULL,@p_n=100,@p_all=0,@p_due=0,"
        "@p_ids=NULL,@p_got=0,@p_m=1e300,@p_held=1,@p_fair=0,@p_gone=0,@p_some=NULL,@p_live=1,@p_groups='',@p_l=1,"
        "@p_us='[]'"
    )
    given = values(tube) | ({"queues": Raw(Q.queue_of_task), "tables": Raw("k, l")} if name == "take heads" else {})
    for place in PACKETS[name]:
        query = fill(getattr(Q, place), **given).replace("?", "100")
        planned = re.sub(r" INTO @p_\w+(, @p_\w+)*", "", query)
        for row in explain(own, planned):
            scanned = row["table"] in ("penstock_task", "k", "h", "q", "l", "g", "o") and row["key"] is None
            assert not scanned, (name, place, row)
            assert "filesort" not in str(row["Extra"]) or row["table"] != "penstock_task", (name, place, row)
        assert reads(own, query) <= MOST, (name, place)


def test_finding_heads_reads_few_rows(own: Connection, tube: int) -> None:
    labels = [f"u{number}".encode().hex().upper() for number in range(50)]
    own.cursor().execute(f"SET @p_t={tube},@p_l=2,@p_fair=0,@p_over=1,@p_gained=0,@p_us='{json.dumps(labels)}'")
    for query in [Q.forget_empty_queues, Q.find_heads, Q.make_heads] * 2:
        assert reads(own, query) <= MOST, query[:80]
    cursor = own.cursor()
    cursor.execute("SELECT @p_gained")
    assert int(str(cursor.fetchall()[0][0])) > 0


def test_takes_skip_a_cancelled_group_without_reading_its_rows(broker: penstock.Broker, own: Connection) -> None:
    tube, cursor = broker.tube("t").stored.no, own.cursor()
    cursor.execute(f"INSERT INTO penstock_group (tube, name, state, moving) VALUES ({tube}, 'g', 'cancelling', 1)")
    group = cursor.lastrowid
    cursor.execute(
        "INSERT INTO penstock_task (pk, tube, state, rank1, rank2, pri, created, data, group_no)"
        f" {numbers(1, SIZES[-1] + 50)} SELECT {tube << 40} + i, {tube}, 'r', 0, 0, 0, 1, 'x',"
        f" IF(i <= {SIZES[-1]}, {group}, NULL) FROM n"
    )
    cursor.execute(
        f"SET @p_t={tube},@p_now=5,@p_ses=1,@p_paused=0,@p_next=9,@p_forced=1,@p_stop=0,@p_m=1e300,@p_gone={group}"
    )
    query = fill(Q.find_some, limit=100)
    assert reads(own, query) <= 400
    cursor.execute("SELECT JSON_LENGTH(@p_some)")
    assert cursor.fetchall() == ((50,),)
