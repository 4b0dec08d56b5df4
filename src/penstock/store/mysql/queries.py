"""The named queries of this store, and what they are made of."""

from __future__ import annotations

from penstock.core.results import Counts
from penstock.engine.port import MUTABLE
from penstock.store.sql.queries import COLUMNS, load_queries

#: `at` of a task that waits for no moment.
NEVER = 2**53 - 1
#: The server's clock in milliseconds.
TIME = "(TIMESTAMPDIFF(MICROSECOND, DATE'1970-01-01', UTC_TIMESTAMP(3)) DIV 1000)"
#: The counters of what is stored and of calls, in the order of the fragment `counters`.
STORED = ("taken", "delayed", "buried", "done")
CALLS = ("take", "ack", "release", "delete", "bury", "kick", "touch", "ttl", "ttr", "delay", "fail")
COUNTED = (*STORED, *CALLS)
assert set(COUNTED) == set(Counts.__struct_fields__) - {"ready", "put"}

# What a task keeps instead of NULL, so that its row keeps its size.
_NONE = {"taken": 0, "at": NEVER, "owner": 0}


def counter(name: str) -> str:
    """The column of a counter."""
    return f"`{name}`" if name in STORED else f"{name}_calls"


_COLUMNS = [counter(name) for name in COUNTED]
#: The columns of a task, in the order of Record.
RECORD = ", ".join(
    f"NULLIF(penstock_task.{column}, {_NONE[field]})" if field in _NONE else column for field, column in COLUMNS.items()
)
_FRAGMENTS = {
    "record": RECORD,
    "mutable": ", ".join(
        f"{COLUMNS[field]} = IFNULL(:{field}, {_NONE[field]})" if field in _NONE else f"{COLUMNS[field]} = :{field}"
        for field in MUTABLE
    ),
    "sums": ", ".join(f"SUM({column}) AS {column}" for column in _COLUMNS),
    "summed": ", ".join(f"c.{column} + IFNULL(d.{column}, 0)" for column in _COLUMNS),
    "folded": ", ".join(f"c.{column} = c.{column} + d.{column}" for column in _COLUMNS),
}

Q = load_queries("penstock.store.mysql", shared=True, fragments=_FRAGMENTS)
