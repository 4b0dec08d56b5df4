"""The statements of the SQLite store."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import chain
from typing import Any

import apsw
import msgspec

from penstock.core.ending import Ending
from penstock.engine.port import CHANGED, MUTABLE
from penstock.store.sql.sql_queries import COLUMNS, COUNTED, load_queries

# The columns of a ready task after session ?5 took it at ?3, by call ?6.
_HANDED_OUT = {
    "state": "'t'", "attempts": "attempts + 1", "lease": "(lease >> 28) + 1 << 28 | ?6", "taken": "?3",
    "at": "?3 + ttr", "owner": "?5", "progress": "NULL",
}  # fmt: skip
_LEASED = ", ".join(_HANDED_OUT.get(field, column) for field, column in COLUMNS.items() if field != "errors")
Q = load_queries(
    "penstock.store.sqlite", shared=True, fragments={"leased": _LEASED, "counters": ", ".join(COUNTED.values())}
)


_encode = msgspec.json.Encoder().encode


def as_json(values: Sequence[object]) -> str:
    """Encode a list as a query parameter for json_each."""
    return _encode(values).decode()


#: Rows of a multi-row INSERT. Inserting rows one by one took twice as long for outcomes, 1.5 times for tasks.
ROWS = 50


def _insert(table: str, columns: Sequence[str], conflict: str = "") -> tuple[str, str]:
    """The INSERT of one row, and that of ROWS rows."""
    row = f"({', '.join('?' * len(columns))})"
    one = f"INSERT INTO {table} ({', '.join(columns)}) VALUES {row}"
    return one + conflict, one + f", {row}" * (ROWS - 1) + conflict


def insert_rows(db: apsw.Connection, statements: tuple[str, str], rows: Sequence[tuple[Any, ...]]) -> None:
    """Insert rows with as few statements as possible."""
    one, many = statements
    full = len(rows) - len(rows) % ROWS
    for start in range(0, full, ROWS):
        db.execute(many, tuple(chain.from_iterable(rows[start : start + ROWS])))
    for row in rows[full:]:
        db.execute(one, row)


#: Guard that a task has not changed since its holder read it. Several tasks are always loaded in the same transaction
#: and need no guard: without it, a release of 1,000 takes a sixth less time.
AS_SEEN = " AND lease = ? AND (state = 't') = ? AND at IS ? AND (errors IS NULL OR ?)"


def _update(fields: Sequence[str]) -> str:
    return f"UPDATE penstock_task SET {', '.join(f'{COLUMNS[field]} = ?' for field in fields)} WHERE pk = ?"


#: The columns that a put sets besides the id; setting the others too would make a put of 1,000 a tenth slower.
NEW_FIELDS = tuple(
    field for field in COLUMNS if field not in {"id", *_HANDED_OUT, "reason", "errors"} - {"state", "at"}
)
INSERT_NEW = _insert("penstock_task", ["pk", "tube", *(COLUMNS[field] for field in NEW_FIELDS)])
KEEP_OUTCOME = _insert("penstock_outcome", ["pk", "tube", "address", *Ending.__struct_fields__, "until"])
#: The outcome of an ack; its other columns stay empty.
KEEP_RESULT = _insert("penstock_outcome", ["pk", "tube", "address", "status", "result", "until"])
_NUMBERS = ("taken", "heads", "waiting", "turn")
SET_QUEUE = _insert(
    "penstock_utube", ["tube", "utube", *_NUMBERS],
    f" ON CONFLICT (tube, utube) DO UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in _NUMBERS)}",
)  # fmt: skip
#: Updates of a task's state (columns of CHANGED), and of all its content (columns of MUTABLE, then the payload).
UPDATE_STATE = _update(CHANGED)
UPDATE_RECORD = _update((*MUTABLE, "payload"))
DELETE = "DELETE FROM penstock_task WHERE pk = ?"


@cache
def add_counts(*names: str) -> str:
    """The statement that raises the last id and adds to these counters."""
    sums = "".join(f", {COUNTED[name]} = {COUNTED[name]} + ?" for name in names)
    return f"UPDATE penstock_counter SET last_id = max(last_id, ?){sums} WHERE tube = ?"
