"""SQLite runs the queries of the hot paths through the index made for each, whatever the table contains."""

from __future__ import annotations

import apsw
import pytest

from penstock.store.sql.sql_queries import COUNTED as COUNTERS
from penstock.store.sql.sql_queries import ID_BITS
from penstock.store.sqlite.sqlite_queries import AS_SEEN, DELETE, UPDATE_RECORD, UPDATE_STATE, Q, add_counts

TUBE = 1
KEY = TUBE << ID_BITS
END = (TUBE + 1) << ID_BITS
NOW = 1_900_000_000_000
HANDLE = "nobody"
Values = tuple[object, ...] | dict[str, object]

# Values of named parameters.
NAMED: dict[str, object] = {
    "tube": TUBE, "pk": KEY | 1, "low": KEY, "high": END, "after": KEY, "ids": f"[{KEY | 1}]", "texts": '["a"]',
    "limit": 1000, "start": 0, "now": NOW, "rank1": 0, "rank2": 0, "utube": "1", "address": "a", "name": "g",
    "group": 1, "no": 1, "id": HANDLE, "session": 1, "lapse": 1, "moment": NOW, "host": "h", "pid": 1, "beat": NOW,
    "state": "open", "was": "open", "had": 1, "exact": 1, "total": 0, "remaining": 0, "end_work": None,
    "cancel_work": None, "moving": 0, "until": NOW, "failed": 0, "on_failure": "hold",
}  # fmt: skip

_PK, _PKS = "penstock_task USING INTEGER PRIMARY KEY (rowid=?)", "penstock_task USING INTEGER PRIMARY KEY (rowid>?"
_READY, _QUEUED = "penstock_ready (tube=?", "penstock_queued (tube=? AND utube=? AND state=?)"
_ASIDE = "penstock_aside (tube=? AND state=? AND owner=?"
_HELD, _DELIVERED = "penstock_aside (tube=? AND state=?)", "penstock_delivered (tube=?)"
_COUNTER, _QUEUE = "penstock_counter USING INTEGER PRIMARY KEY (rowid=?)", "PRIMARY KEY (tube=? AND utube=?)"
_NEWEST, _BY_TUBE = "penstock_task USING INTEGER PRIMARY KEY (rowid<?)", "c USING INTEGER PRIMARY KEY (rowid=?)"
_GROUP, _HANDLE = "penstock_group USING INTEGER PRIMARY KEY (rowid=?)", "penstock_handle USING PRIMARY KEY (id=?)"
_SESSION, _OF_SESSION = "USING INTEGER PRIMARY KEY (rowid=?)", "penstock_handle_session (session=?)"
_ACKED_GROUP = "SEARCH g USING INTEGER PRIMARY KEY (rowid=?)"
_ADDRESS = "penstock_address (tube=? AND address=?)"

# query -> parameters, and what its plan must contain; it must not scan a table that grows, or sort
HOT: dict[str, tuple[Values, tuple[str, ...]]] = {
    # put
    "last_id": ((TUBE,), (_NEWEST, _BY_TUBE)),
    "put_one": ((TUBE, END, 0, 0, 0, None, None, None, b"1"), (_NEWEST, _BY_TUBE)),
    "by_names": (NAMED, (_ADDRESS,)),
    "supersede_outcomes": ((TUBE, '["a"]', NOW), ("penstock_outcome_address (tube=? AND address=?)",)),
    "next_marks": ((TUBE, NOW, 1), (_COUNTER,)),
    # take
    "look": (
        (TUBE, HANDLE),
        ("penstock_timer (tube=?", "penstock_handle_until", "penstock_lingering", _HANDLE, "penstock_moving_group"),
    ),
    "overdue": (
        NAMED,
        (
            "penstock_timer (tube=?",
            "penstock_moving_group",
            "penstock_outcome_until",
            "penstock_over_group",
            "penstock_handle_until",
            "penstock_lingering",
        ),
    ),
    "to_lease": ((TUBE, 2**62, NOW, 1, 1, 1), (f"{_READY} AND rank1<?)", "penstock_moving_group")),
    "lease": ((KEY | 1, NOW, 1, 1), (_PK,)),
    "lease_many": ((f"[{KEY | 1}]", NOW, 1, 1), (_PK,)),
    "to_hand_out": ((TUBE, 0, NOW, 1), (f"{_READY} AND rank1<?)",)),
    "hand_out": ((KEY | 1, "t", 1, NOW), (_PK,)),
    "first_rank": ((TUBE,), (f"{_READY})",)),
    "delivered_first": ((TUBE, 1), (_DELIVERED,)),
    "forget_waiter": ((HANDLE, TUBE), ("PRIMARY KEY (handle=? AND tube=?)",)),
    "ready_since": (NAMED, (f"{_READY})", f"{_READY} AND rank1=?)")),
    # ack and flush
    "ack_alone": ((KEY | 1, 1, 1, NOW), (_PK,)),
    "ack_many": ((f"[{KEY | 1}]", 1, 1, NOW, 1), (_PK, _ACKED_GROUP)),
    "delete": ((KEY | 1, NOW), (_PK,)),
    "count_down": ((1, 1), (_GROUP,)),
    "ack_named": ((TUBE, '["1-1"]'), (_ADDRESS,)),
    "by_id": (NAMED, (_PK,)),
    "by_ids": (NAMED, (_PK,)),
    "held_leases": (NAMED, ("SEARCH k USING INTEGER PRIMARY KEY (rowid=?)", _ACKED_GROUP)),
    "sweep_outcomes": (NAMED, ("penstock_outcome_until (tube=? AND until<?)",)),
    "groups_by_no": (NAMED, (_GROUP,)),
    "live_group": (NAMED, ("penstock_live_group (tube=? AND name=?)",)),
    "change_group": (NAMED, (_GROUP,)),
    # micro-queues
    "queue": (NAMED, (_QUEUE,)),
    "queues_named": ((TUBE, '["1"]'), (_QUEUE,)),
    "serve_queue": ((TUBE, "1"), (_QUEUE,)),
    "pass_on": ((TUBE, "1", 1), (_QUEUE,)),
    "pass_on_many": ((TUBE, '["1"]', 1), (_QUEUE,)),
    "forget_queue": ((TUBE, "1"), (_QUEUE,)),
    "forget_idle_queues": (NAMED, ("penstock_idle_utube (tube=? AND turn<?)", _QUEUE)),
    "promote": ((TUBE, "1"), (_PK, _QUEUED)),
    "promote_many": ((TUBE, '["1"]', True), (_PK, _QUEUED, _QUEUE)),
    "is_overtaken": ((TUBE, "1", False), (_QUEUED, _QUEUED)),
    "demote": ((TUBE, "1", False), (_QUEUED,)),
    "turn_heads": ((TUBE, "1", 0), (_QUEUED,)),
    # what is due
    "due": (NAMED, ("penstock_timer (tube=? AND at<?)",)),
    "moving_groups": (NAMED, ("penstock_moving_group (tube=?)",)),
    "members": (NAMED, ("penstock_grouped (group_no=?)",)),
    "unstarted": (NAMED, ("penstock_unstarted (group_no=?)",)),
    "sweep_groups": (NAMED, ("penstock_over_group (tube=? AND until",)),
    "buried": (NAMED, ("penstock_buried (tube=?)",)),
    "busy": (
        NAMED,
        ("penstock_aside (tube=? AND state=?", "penstock_waiter_tube (tube=?)", "penstock_moving_group (tube=?)"),
    ),
    "erase": (NAMED, (_PKS,)),
    # sessions
    "beat": (NAMED, (_HANDLE,)),
    "beating": (NAMED, (_HANDLE,)),
    "handles": (NAMED, (_HANDLE,)),
    "presence_of": (NAMED, (_HANDLE,)),
    "forget_handle": (NAMED, (_HANDLE,)),
    "forget_handle_waiters": (NAMED, ("PRIMARY KEY (handle=?)",)),
    "lapsed_handles": (NAMED, ("penstock_handle_until (until<?)",)),
    "ended_sessions": (NAMED, ("penstock_lingering (until",)),
    "live_session": (NAMED, ("(id=?)", _OF_SESSION)),
    "resume_session": (NAMED, (_SESSION,)),
    "lock_session": (NAMED, (_SESSION,)),
    "linger": (NAMED, (_SESSION, _OF_SESSION)),
    "forget_session": (NAMED, (_SESSION,)),
    "held": (NAMED, (_ASIDE,)),
    # looking
    "counters": (NAMED, (_NEWEST, _BY_TUBE)),
    "page": (NAMED, (_PKS,)),
    "find_all": (NAMED, (_PKS,)),
    "find_ready": (NAMED, (_PKS,)),
    "find_delivered": (NAMED, (_ASIDE,)),
    "find_delayed": (NAMED, (_ASIDE,)),
    "find_buried": (NAMED, (_ASIDE,)),
    "find_unstarted": (NAMED, ("penstock_unstarted_ids (tube=? AND rowid>? AND rowid<?)",)),
    "undelivered": (NAMED, (f"{_READY})",)),
    "undelivered_back": (NAMED, (f"{_READY})",)),
    "delivered": (NAMED, (_DELIVERED,)),
    "delivered_back": (NAMED, (_DELIVERED,)),
    "ahead": (NAMED, (f"{_READY} AND (rank1,rank2)<(?,?))",)),
    "newest_group": (NAMED, ("penstock_named_group (tube=? AND name=?)",)),
    "live_groups": (NAMED, ("penstock_live_group (tube=? AND name>?)",)),
    "outcomes_by_id": (NAMED, ("INTEGER PRIMARY KEY (rowid=?)",)),
    "outcomes_by_address": (NAMED, ("penstock_outcome_address (tube=? AND address=?)",)),
    "outcomes_after": (NAMED, ("INTEGER PRIMARY KEY (rowid>? AND rowid<?)",)),
}
# These sort, but never more than a tube's leases: the index finds exactly these.
BOUNDED_SORTS = {"find_taken": _HELD, "holders": _HELD}


def plan(db: apsw.Connection, query: str, parameters: Values) -> list[str]:
    return [row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {query}", parameters)]


def scanned(lines: list[str]) -> list[str]:
    """The tables that a plan scans, except lists of parameters, tubes (t) and results of a subquery."""
    return [line for line in lines if line.startswith("SCAN") and not line.startswith(_FEW)]


_FEW = ("SCAN json_each", "SCAN j ", "SCAN t ", "SCAN found", "SCAN CONSTANT ROW")


@pytest.mark.parametrize("name", HOT)
def test_a_hot_query_uses_its_index_and_never_scans_or_sorts(database: apsw.Connection, name: str) -> None:
    parameters, wanted = HOT[name]
    lines = plan(database, getattr(Q, name), parameters)
    for part in wanted:
        assert any(part in line for line in lines), lines
    assert not scanned(lines), lines
    assert not [line for line in lines if "TEMP B-TREE" in line], lines


@pytest.mark.parametrize("name", BOUNDED_SORTS)
def test_queries_that_sort_sort_only_leases(database: apsw.Connection, name: str) -> None:
    lines = plan(database, getattr(Q, name), NAMED)
    assert any(BOUNDED_SORTS[name] in line for line in lines), lines
    assert not [line for line in lines if line.startswith("SCAN")], lines


@pytest.mark.parametrize("guard", ["", AS_SEEN], ids=["many", "one"])
@pytest.mark.parametrize("query", [UPDATE_STATE, UPDATE_RECORD, DELETE], ids=["state", "record", "delete"])
def test_a_flush_finds_each_task_by_its_key(database: apsw.Connection, query: str, guard: str) -> None:
    assert plan(database, query + guard, (None,) * (query + guard).count("?")) == [f"SEARCH {_PK}"]


@pytest.mark.parametrize("names", [COUNTERS, ("taken", "done", "ack")])
def test_counter_updates_touch_no_other_row(database: apsw.Connection, names: tuple[str, ...]) -> None:
    query = add_counts(*names)
    assert plan(database, query, (0,) * query.count("?")) == [f"SEARCH {_COUNTER}"]
    assert plan(database, Q.count_hand_outs, (TUBE, 0, 0)) == [f"SEARCH {_COUNTER}"]


def test_every_query_is_either_hot_or_named_as_rare() -> None:
    """A new query must be listed here, so that someone considers its plan."""
    assert set(vars(Q)) == set(HOT) | set(BOUNDED_SORTS) | COUNTED | RARE


# Of one row, by its primary key, or a new one.
COUNTED = {
    "clock", "look_at_tube", "count_hand_outs", "tube_lives", "add_group", "count_waiter",
}  # fmt: skip
# At open, at tube and session changes, in transfers and in check: not in put, take or ack.
RARE = {
    "meta", "get_meta", "set_meta", "has_meta", "add_tube", "add_counter", "all_tubes", "tubes_named", "set_tube",
    "hide_tube", "hide_counter", "forget_tube", "forget_counter", "forget_queues", "forget_groups", "forget_outcomes",
    "forget_waiters", "add_session", "add_handle", "all_sessions", "presences", "waits_of", "groups_above",
    "import_members", "set_group_total", "set_mark", "all_groups", "audited", "stored_queues", "early_outcomes",
    "restore", "set_ready_state", "add_queue", "drop_outcomes", "stray_waiters", "forget_stray_waiters", "import_task",
    "import_outcome",
}  # fmt: skip
