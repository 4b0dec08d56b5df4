"""The hot queries of the procedures use their indexes and read no more than they answer, whatever the table holds."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import penstock
from penstock.store import mysql
from tests.mysql.conftest import Connection

MIGRATIONS = Path(mysql.__file__).parent / "migrations"
SIZES = (0, 1, 100_000)
# what it is for -> file, how it begins, how it ends, its index
HOT = {
    "claim": ("0004_verbs", "SELECT id, rank1, rank2 FROM", "FOR UPDATE SKIP LOCKED", "penstock_ready"),
    "claim of one": ("0016_singles", "SELECT id INTO v_id FROM", "FOR UPDATE SKIP LOCKED", "penstock_ready"),
    "claim while groups move": ("0004_verbs", "SELECT id FROM penstock_task", "LIMIT v_window", "penstock_ready"),
    "heads": ("0004_verbs", "SELECT id, utube FROM penstock_task", "LIMIT v_window", "penstock_ready"),
    "due": ("0003_changes", "SELECT id, at FROM penstock_task", "LIMIT p_limit", "penstock_timer"),
    "first waiting": ("0002_lanes", "SELECT id, rank1, rank2 INTO", "LIMIT 1", "penstock_laned"),
    "worst head": ("0002_lanes", "SELECT id, rank1, IF(p_fair", "DESC LIMIT 1", "penstock_laned"),
    "first to follow": ("0010_groups", "SELECT id, rank1, rank2 FROM", "LIMIT v_some", "penstock_unstarted"),
    "first to go": ("0010_groups", "SELECT id FROM penstock_member", "LIMIT v_some", "PRIMARY"),
    "moving groups": ("0010_groups", "SELECT no, state FROM penstock_group", "ORDER BY no", "penstock_moving_group"),
    "outcomes to forget": ("0008_ends", "SELECT id FROM penstock_outcome", "LIMIT p_limit", "penstock_outcome_until"),
    "groups to forget": ("0008_ends", "SELECT no FROM penstock_group FORCE", "LIMIT p_limit", "penstock_over_group"),
    "first turn": ("0011_unleased", "SELECT rank1 INTO v_rank FROM", "LIMIT 1", "penstock_ready"),
    "to recover": ("0011_unleased", "SELECT id, rank1, taken", "FOR UPDATE SKIP LOCKED", "penstock_ready"),
    "listed": ("0011_unleased", "SELECT id, rank1 FROM", "OFFSET v_start", "penstock_ready"),
    "listed back": ("0011_unleased", "SELECT id, rank1 FROM", "OFFSET v_after", "penstock_ready"),
    "buried": ("0006_upkeep", "SELECT id, rank1, rank2 FROM penstock_task", "LIMIT p_count", "penstock_ready"),
}
# the first of an index: the server looks there while it plans, and then has nothing left to read
FIRST = {
    "next moment": ("0004_verbs", "SELECT MIN(at) INTO v_at", "WHERE tube = v_tube"),
    "next moment, for one": ("0016_singles", "SELECT MIN(at) FROM penstock_task", "WHERE tube = p_tube"),
    "next lapse": ("0016_singles", "SELECT MIN(lapses)", "FROM penstock_handle"),
    "next end": ("0016_singles", "SELECT MIN(ends)", "FROM penstock_session"),
}
VALUES = {
    "p_max": "1e300", "p_now": "5", "p_count": "100", "v_window": "100", "p_limit": "100", "p_fair": "0",
    "p_utube": "'u'", "p_moving": "0", "p_gone": "0", "v_gone": "0", "v_some": "100", "v_now": "5", "p_elapsed": "0",
    "v_state": "'r'", "v_count": "100", "v_start": "0", "v_after": "0",
}  # fmt: skip


def hot_query(name: str, tube: int, **values: str) -> str:
    """The query as it stands in the procedure, with values for its variables."""
    file, begins, ends, *_ = HOT.get(name) or FIRST[name]
    text = (MIGRATIONS / f"{file}.sql").read_text()
    query = text[: text.index(ends, text.index(begins)) + len(ends)]
    query = query[query.rindex(begins) :]
    query = re.sub(r"INTO .*?\s+FROM", "FROM", query, flags=re.DOTALL)
    query = re.sub(r"\b([pv]_tube|v_group)\b", str(tube), query)
    return re.sub(r"\b[pv]_\w+", lambda match: (VALUES | values)[match[0]], query)


def fill(own: Connection, tube: int, rows: int) -> None:
    own.cursor().execute(
        "INSERT INTO penstock_task (tube, id, state, rank1, rank2, pri, created, at, data)"
        f" SELECT {tube}, seq, 'r', seq % 7, 0, seq % 7, 1, IF(seq % 2, 9007199254740991, 1000 + seq), REPEAT('x', 100)"
        f" FROM seq_1_to_{rows}"
    )

    tie(own, tube, max(1, rows // 10))


def tie(own: Connection, tube: int, rows: int) -> None:
    """Members of the group that has the tube's number, outcomes of the tube, and groups, of which few are moving."""
    for statement in (
        f"penstock_member (group_no, id, waits, rank1, rank2) SELECT {tube}, seq, seq % 2, seq % 7, 0",
        f"penstock_outcome (tube, id, address, status, until) SELECT {tube}, seq, seq, 'done', seq",
        f"penstock_group (tube, name, live, moving, until) SELECT {tube}, seq, seq, seq < 10, IF(seq < 10, NULL, seq)",
    ):
        own.cursor().execute(f"INSERT INTO {statement} FROM seq_1_to_{rows}")


def explain(own: Connection, query: str) -> dict[str, object]:
    """The plan of the query itself; a subquery in it is not run."""
    cursor = own.cursor()
    cursor.execute("EXPLAIN " + query)
    return dict(zip([column[0] for column in cursor.description or ()], cursor.fetchall()[0], strict=True))


def reads(own: Connection, query: str) -> int:
    """How many rows the server touched for the query."""
    cursor = own.cursor()
    cursor.execute("FLUSH STATUS")
    cursor.execute(query)
    cursor.fetchall()
    cursor.execute("SHOW SESSION STATUS LIKE 'Handler_read%'")
    return sum(int(str(value)) for _, value in cursor.fetchall())


@pytest.mark.parametrize("deleted", [False, True], ids=["", "after a mass delete"])
@pytest.mark.parametrize("rows", SIZES)
def test_hot_queries(broker: penstock.Broker, own: Connection, rows: int, deleted: bool) -> None:
    tube = broker.tube("t")._stored.no
    other = broker.tube("other")._stored.no
    if rows:
        fill(own, tube, rows)
        fill(own, other, rows)
    if deleted:
        own.cursor().execute(f"DELETE FROM penstock_task WHERE tube = {tube} AND id % 100 > 0")
    for name in FIRST:
        query = hot_query(name, tube)
        assert explain(own, query)["table"] is None, name
        assert reads(own, query) <= 2, name
    for name, (*_, index) in HOT.items():
        query = hot_query(name, tube)
        explained = explain(own, query)
        assert explained["key"] == index, (name, explained)
        assert explained["type"] in ("range", "ref"), (name, explained)
        assert "filesort" not in str(explained["Extra"]), (name, explained)
        assert reads(own, query) <= 110, name


def test_takes_pass_by_a_cancelled_group_without_reading_its_rows(broker: penstock.Broker, own: Connection) -> None:
    tube, cursor = broker.tube("t")._stored.no, own.cursor()
    cursor.execute(f"INSERT INTO penstock_group (tube, name, state, moving) VALUES ({tube}, 'g', 'cancelling', 1)")
    group = str(cursor.lastrowid)
    cursor.execute(
        "INSERT INTO penstock_task (tube, id, state, rank1, rank2, pri, created, at, data, group_no)"
        f" SELECT {tube}, seq, 'r', 0, 0, 0, 1, 9007199254740991, 'x', IF(seq <= {SIZES[-1]}, {group}, NULL)"
        f" FROM seq_1_to_{SIZES[-1] + 50}"
    )
    for name in ("claim while groups move", "heads"):
        query = hot_query(name, tube, p_moving="1", p_gone=group, v_gone=group)
        cursor.execute(query)
        assert len(cursor.fetchall()) == 50, name
        assert reads(own, query) <= 110, name
