"""How SQLite runs the queries of the hot paths: by the index that was made for each, whatever the table holds."""

from __future__ import annotations

import apsw
import pytest
from penstock.store.sqlite.lanes import Q

from penstock.store.sqlite.step import ID_BITS

TUBE = 1
KEY = TUBE << ID_BITS
END = (TUBE + 1) << ID_BITS
NOW = 1_900_000_000_000
HANDLE = "nobody"

# query -> parameters, and what its plan must contain; nothing of it may scan penstock_task or sort
HOT: dict[str, tuple[tuple[object, ...], tuple[str, ...]]] = {
    "look": ((TUBE, HANDLE), ("penstock_timer (tube=?", "penstock_handle_until", "penstock_lingering")),
    "due": ((TUBE, NOW, 1000), ("penstock_timer (tube=? AND at>? AND at<?)",)),
    "ready": ((TUBE, 2**62, NOW, 1), ("penstock_ready (tube=? AND rank1<?)",)),
    "to_lease": ((TUBE, 2**62, NOW, 1, 1), ("penstock_ready (tube=? AND rank1<?)",)),
    "lease": ((KEY | 1, NOW, 1), ("INTEGER PRIMARY KEY",)),
    "lease_many": ((f"[{KEY | 1}]", NOW, 1), ("INTEGER PRIMARY KEY",)),
    "ack_many": ((f"[{KEY | 1}]", 1, 1, NOW), ("INTEGER PRIMARY KEY",)),
    "ack_one": ((KEY | 1, 1, 1, NOW), ("INTEGER PRIMARY KEY",)),
    "ack_laned": ((KEY | 1, 1, 1, NOW), ("INTEGER PRIMARY KEY",)),
    "record": ((KEY | 1,), ("INTEGER PRIMARY KEY",)),
    "change": ((KEY | 1, "r", 0, None, None, 0, None, None), ("INTEGER PRIMARY KEY",)),
    "touch": ((KEY | 1, NOW, 0.5), ("INTEGER PRIMARY KEY",)),
    "delete": ((KEY | 1,), ("INTEGER PRIMARY KEY",)),
    "newest": ((TUBE, END), ("INTEGER PRIMARY KEY (rowid<?)",)),
    "put_one": ((TUBE, END, NOW, 0, 0, 0, None, None, None, None, b"1"), ("INTEGER PRIMARY KEY (rowid<?)",)),
    "buried": ((TUBE, 10), ("penstock_buried (tube=?)",)),
    "held_ids": ((TUBE, 1), ("penstock_aside (tube=? AND state=? AND owner=?)",)),
    "held": ((TUBE, 1), ("penstock_aside (tube=? AND state=? AND owner=?)",)),
    "any_taken": ((TUBE,), ("penstock_aside (tube=? AND state=?",)),
    "read_outcomes": ((KEY, END, 5000), ("INTEGER PRIMARY KEY (rowid>? AND rowid<?)",)),
    "page": ((KEY, END, 5000), ("INTEGER PRIMARY KEY (rowid>? AND rowid<?)",)),
    "page_keys": ((KEY, END, 5000), ("INTEGER PRIMARY KEY (rowid>? AND rowid<?)",)),
    "delete_range": ((KEY, KEY), ("INTEGER PRIMARY KEY (rowid>? AND rowid<?)",)),
    "find_all": ((KEY, END, NOW, 100, TUBE), ("INTEGER PRIMARY KEY (rowid>? AND rowid<?)",)),
    "find_ready": ((KEY, END, NOW, 100, TUBE), ("INTEGER PRIMARY KEY (rowid>? AND rowid<?)",)),
    "find_delayed": ((KEY, END, NOW, 100, TUBE), ("penstock_aside (tube=? AND state=? AND owner=?",)),
    "find_buried": ((KEY, END, NOW, 100, TUBE), ("penstock_aside (tube=? AND state=? AND owner=?",)),
    "ahead": ((TUBE, 0, 0, KEY), ("penstock_ready (tube=?",)),
    "first_waiting": ((TUBE, "1"), ("penstock_laned (tube=? AND utube=? AND state=?)",)),
    "worst_head": ((TUBE, "1"), ("penstock_laned (tube=? AND utube=? AND state=?)",)),
    "turn_heads": ((TUBE, "1", 0), ("penstock_laned (tube=? AND utube=? AND state=?)",)),
    "promote_first": ((TUBE, "1"), ("penstock_laned (tube=? AND utube=? AND state=?)",)),
    "set_head": ((KEY | 1, "r", 0), ("INTEGER PRIMARY KEY",)),
    "lane": ((TUBE, "1"), ("PRIMARY KEY (tube=? AND utube=?)",)),
    "set_lane": ((TUBE, "1", 0, 0, 0, 0), ("PRIMARY KEY (tube=? AND utube=?)",)),
    "shift_lane": ((TUBE, "1", 0, 0, 0), ("PRIMARY KEY (tube=? AND utube=?)",)),
    "forget_lane": ((TUBE, "1"), ("PRIMARY KEY (tube=? AND utube=?)",)),
    "forget_idle_lanes": ((TUBE, NOW), ("penstock_idle_lane (tube=? AND turn<?)",)),
    "counts": ((TUBE,), ("INTEGER PRIMARY KEY",)),
    "get_handle": ((HANDLE,), ("PRIMARY KEY (id=?)",)),
    "beat": ((HANDLE, NOW, NOW), ("PRIMARY KEY (id=?)",)),
    "lapsed_handles": ((NOW,), ("penstock_handle_until (until<?)",)),
    "ended_sessions": ((NOW,), ("penstock_lingering (until",)),
    "any_waiting": ((TUBE,), ("penstock_waiting_tube (tube=?)",)),
    "to_lease_not_cancelled": (
        (TUBE, 2**62, NOW, 1, 1),
        ("penstock_ready (tube=? AND rank1<?)", "penstock_moving_group"),
    ),
    "set_clock": ((KEY | 1, NOW), ("INTEGER PRIMARY KEY",)),
    "deliver": ((KEY | 1, 1, NOW), ("INTEGER PRIMARY KEY",)),
    "first_rank": ((TUBE,), ("penstock_ready (tube=?)",)),
    "ack_named": ((TUBE, '["1-1"]'), ("penstock_address (tube=? AND address=?)",)),
    "undelivered": ((TUBE, 10, 0), ("penstock_ready (tube=?)",)),
    "undelivered_back": ((TUBE, 10, 0), ("penstock_ready (tube=?)",)),
    "delivered": ((TUBE, 10, 0), ("penstock_delivered (tube=?)",)),
    "delivered_back": ((TUBE, 10, 0), ("penstock_delivered (tube=?)",)),
    "find_delivered": ((KEY, END, NOW, 100, TUBE), ("penstock_aside (tube=? AND state=? AND owner=?",)),
    "bump_hand_outs": ((TUBE, 1, 1), ("INTEGER PRIMARY KEY",)),
    "next_marks": ((TUBE, NOW, 1), ("INTEGER PRIMARY KEY",)),
    "find_unstarted": ((KEY, END, NOW, 100, TUBE), ("penstock_unstarted_ids (tube=? AND rowid>? AND rowid<?)",)),
    "by_address": ((TUBE, "a"), ("penstock_address (tube=? AND address=?)",)),
    "address_id": ((TUBE, "a"), ("penstock_address (tube=? AND address=?)",)),
    "has_task": ((KEY | 1,), ("INTEGER PRIMARY KEY",)),
    "replace": ((KEY | 1, "r", 0, 0, 0, 0, None, None, b"1"), ("INTEGER PRIMARY KEY",)),
    "supersede_outcome": ((TUBE, "a", NOW), ("penstock_outcome_address (tube=? AND address=?)",)),
    "outcome": ((KEY | 1, NOW), ("INTEGER PRIMARY KEY",)),
    "last_outcome": ((TUBE, "a", NOW), ("penstock_outcome_address (tube=? AND address=?)",)),
    "sweep_outcomes": ((TUBE, NOW, 1000), ("penstock_outcome_until (tube=? AND until<?)",)),
    "group": ((1, TUBE), ("INTEGER PRIMARY KEY",)),
    "live_group": ((TUBE, "g"), ("penstock_live_group (tube=? AND name=?)",)),
    "live_groups": ((TUBE, "", 100), ("penstock_live_group (tube=? AND name>?)",)),
    "save_group": ((1, "open", 0, 0, None, None, 0, None), ("INTEGER PRIMARY KEY",)),
    "note_moving": ((TUBE,), ("penstock_moving_group (tube=?)",)),
    "moving_groups": ((TUBE,), ("penstock_moving_group (tube=?)",)),
    "unstarted": ((1, 1000), ("penstock_unstarted (group_no=?)",)),
    "member_ids": ((1, 1000), ("penstock_grouped (group_no=?)",)),
    "sweep_groups": ((TUBE, NOW, 1000), ("penstock_over_group (tube=? AND until",)),
}
# These sort, but never more than a tube's leases: the index finds exactly those.
BOUNDED_SORTS = {
    "taken": ((TUBE,), "penstock_aside (tube=? AND state=?)"),
    "find_taken": ((KEY, END, NOW, 100, TUBE), "penstock_aside (tube=? AND state=?)"),
    "lane_holders": ((TUBE, "1", 1), "penstock_aside (tube=? AND state=?)"),
}


def plan(db: apsw.Connection, query: str, parameters: tuple[object, ...]) -> list[str]:
    return [row[3] for row in db.execute(f"EXPLAIN QUERY PLAN {query}", parameters)]


@pytest.mark.parametrize("name", HOT)
def test_a_hot_query_uses_its_index_and_never_scans_or_sorts(database: apsw.Connection, name: str) -> None:
    parameters, wanted = HOT[name]
    lines = plan(database, getattr(Q, name), parameters)
    for part in wanted:
        assert any(part in line for line in lines), lines
    assert not [line for line in lines if line.startswith("SCAN penstock_task")], lines
    assert not [line for line in lines if "TEMP B-TREE" in line], lines


@pytest.mark.parametrize("name", BOUNDED_SORTS)
def test_what_sorts_sorts_only_leases(database: apsw.Connection, name: str) -> None:
    parameters, wanted = BOUNDED_SORTS[name]
    lines = plan(database, getattr(Q, name), parameters)
    assert any(wanted in line for line in lines), lines
    assert not [line for line in lines if line.startswith("SCAN")], lines


def test_inserts_and_counter_updates_touch_no_other_row(database: apsw.Connection) -> None:
    bump = plan(database, Q.bump, (TUBE, 0, *[0] * 15))
    assert [line for line in bump if "SCAN" in line] == []
    assert any("INTEGER PRIMARY KEY (rowid=?)" in line for line in bump)


def test_every_query_is_either_hot_or_named_as_rare() -> None:
    """A new query must be placed here, so that its plan is thought of."""
    assert set(vars(Q)) == set(HOT) | set(BOUNDED_SORTS) | COUNTED | RARE


# Of one counter or lane row, by its primary key.
COUNTED = {
    "bump", "bump_take", "bump_ack", "insert", "insert_linked", "save_lane", "tube_lives", "is_paused", "keep_outcome",
    "add_group",
}  # fmt: skip
# At open, at tube and session changes, and in check: not on the way of a task.
RARE = {
    "get_meta", "set_meta", "has_meta", "add_tube", "add_counter", "get_tube", "all_tubes", "tube_by_no", "set_paused",
    "hide_tube", "hidden_tubes", "forget_tube", "forget_counter", "forget_lanes", "forget_waiting_tube",
    "add_session", "get_session", "session_by_no", "all_sessions", "set_until", "linger", "forget_session",
    "add_handle", "get_locus", "forget_handle", "last_lapse", "has_handles", "session_presence", "add_waiting",
    "drop_waiting", "forget_done_waiting", "forget_waiting_handle", "waits_of", "recount", "set_counts", "orphans",
    "true_lanes", "stored_lanes", "lane_order", "stray_waiting", "forget_outcomes", "forget_groups", "replies_in_range",
    "all_groups", "recount_group", "early_members", "stray_members", "free_strays", "early_outcomes",
    "forget_early_outcomes", "check_moving", "unsound", "newest_record", "mend", "last_mark", "set_last_mark",
    "hidden_tube", "sealed_tubes", "rename_tube", "set_options", "seal_tube", "seal_counter", "any_following",
    "read_groups", "adopt", "adopt_outcome", "adopt_members", "set_group_total", "stranded", "make_ready",
}  # fmt: skip
