"""The named queries of this store, and the fragments they consist of."""

from __future__ import annotations

import re

from penstock.engine.port import MUTABLE
from penstock.store.mysql.mysql_wire import Prepared, Raw, fill
from penstock.store.sql import sql_queries
from penstock.store.sql.sql_queries import COLUMNS, load_queries

#: The value of `at` for a task without a deadline.
NEVER = 2**53 - 1
#: The server's clock in milliseconds.
TIME = "(TIMESTAMPDIFF(MICROSECOND, DATE'1970-01-01', UTC_TIMESTAMP(3)) DIV 1000)"

# Values that a task stores instead of NULL, so that its row keeps its size.
_NONE = {"taken": 0, "at": NEVER, "owner": 0}
# The index that each of these shared queries must use.
_INDEXES = {
    "PRIMARY": ["by_ids"],
    "penstock_address": ["by_names"],
    "penstock_timer": ["due"],
    "penstock_grouped": ["members"],
    "penstock_ready": [
        "busy", "buried", "find_taken", "find_delivered", "find_delayed", "find_buried",
        "find_unstarted", "holders", "undelivered", "undelivered_back", "delivered", "delivered_back",
    ],
}  # fmt: skip


_RECORD = [
    f"NULLIF(penstock_task.{column}, {_NONE[field]})" if field in _NONE else column for field, column in COLUMNS.items()
]
_GIVEN = {field: f"IFNULL(:{field}, {_NONE[field]})" if field in _NONE else f":{field}" for field in COLUMNS}
#: The columns of counters, quoted, because DELAYED is a reserved word.
COUNTED = {name: f"`{column}`" for name, column in sql_queries.COUNTED.items()}
_FRAGMENTS = {
    "never": str(NEVER),
    "time": TIME,
    "unowned": "IFNULL(owner, 0) = 0",
    "record": ", ".join(_RECORD),
    "brief": ", ".join(_RECORD[:-1]),
    "mutable": ", ".join(f"{COLUMNS[field]} = {_GIVEN[field]}" for field in MUTABLE),
    "import": ", ".join(value for field, value in _GIVEN.items() if field != "id"),
    "counters": ", ".join(COUNTED.values()),
    "sums": ", ".join(f"IFNULL(SUM(c.{column}), 0)" for column in COUNTED.values()),
}

Q = load_queries("penstock.store.mysql", shared=True, fragments=_FRAGMENTS)
for _index, _names in _INDEXES.items():
    for _name in _names:
        _query = getattr(Q, _name).replace("penstock_task WHERE", f"penstock_task FORCE INDEX ({_index}) WHERE", 1)
        setattr(Q, _name, _query)
# MySQL fixes the values of ROW_COUNT() and LAST_INSERT_ID() at PREPARE, so it gets queries with these as text.
for _name, _query in list(vars(Q).items()):
    if "?" in _query or ("@p_" in _query and not re.search(r":[a-z]|(ROW_COUNT|LAST_INSERT_ID)\(\)", _query)):
        setattr(Q, _name, Prepared(_query))


def require(condition: str) -> str:
    """Return a statement that fails, and so ends the packet, if a condition does not hold."""
    return fill(Q.require, condition=Raw(condition))
