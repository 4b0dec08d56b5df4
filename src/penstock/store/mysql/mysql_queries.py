"""The named queries of this store, and what they are made of."""

from __future__ import annotations

import re

from penstock.core.results import Counts
from penstock.engine.port import MUTABLE
from penstock.store.mysql.wire import Prepared
from penstock.store.sql.sql_queries import COLUMNS, load_queries

#: `at` of a task that has no deadline.
NEVER = 2**53 - 1
#: The server's clock in milliseconds.
TIME = "(TIMESTAMPDIFF(MICROSECOND, DATE'1970-01-01', UTC_TIMESTAMP(3)) DIV 1000)"
#: The counters of what is stored and of calls.
STORED = ("taken", "delayed", "buried", "done")
CALLS = ("take", "ack", "release", "delete", "bury", "kick", "touch", "ttl", "ttr", "delay", "fail")
COUNTED = (*STORED, *CALLS)
assert set(COUNTED) == set(Counts.__struct_fields__) - {"ready", "put"}

# What a task has instead of NULL, so that its row keeps its size.
_NONE = {"taken": 0, "at": NEVER, "owner": 0}
# The index that a shared query is to use.
_INDEXES = {
    "PRIMARY": ["by_ids"],
    "penstock_address": ["by_names"],
    "penstock_timer": ["due"],
    "penstock_grouped": ["members"],
    "penstock_ready": [
        "any_taken", "buried", "find_taken", "find_delivered", "find_delayed", "find_buried",
        "find_unstarted", "holders", "undelivered", "undelivered_back", "delivered", "delivered_back",
    ],
}  # fmt: skip


def counter(name: str) -> str:
    """The column of a counter."""
    return f"`{name}`" if name in STORED else f"{name}_calls"


_RECORD = [
    f"NULLIF(penstock_task.{column}, {_NONE[field]})" if field in _NONE else column for field, column in COLUMNS.items()
]
_COLUMNS = [counter(name) for name in COUNTED]
_FRAGMENTS = {
    "never": str(NEVER),
    "time": TIME,
    "unowned": "IFNULL(owner, 0) = 0",
    "untimed": f"IFNULL(at, {NEVER}) = {NEVER}",
    "record": ", ".join(_RECORD),
    "brief": ", ".join(_RECORD[:-1]),
    "mutable": ", ".join(
        f"{COLUMNS[field]} = IFNULL(:{field}, {_NONE[field]})" if field in _NONE else f"{COLUMNS[field]} = :{field}"
        for field in MUTABLE
    ),
    "counters": ", ".join(_COLUMNS),
    "sums": ", ".join(f"IFNULL(SUM(c.{column}), 0)" for column in _COLUMNS),
}

Q = load_queries("penstock.store.mysql", shared=True, fragments=_FRAGMENTS)
for _index, _names in _INDEXES.items():
    for _name in _names:
        _query = getattr(Q, _name).replace("penstock_task WHERE", f"penstock_task FORCE INDEX ({_index}) WHERE", 1)
        setattr(Q, _name, _query)
# MySQL fixes the values of ROW_COUNT() and LAST_INSERT_ID() when it prepares a statement.
for _name, _query in list(vars(Q).items()):
    if "@p_" in _query and not re.search(r":[a-z]|(ROW_COUNT|LAST_INSERT_ID)\(\)", _query):
        setattr(Q, _name, Prepared(_query))
