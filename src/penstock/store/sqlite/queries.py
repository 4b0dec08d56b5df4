"""The statements of the SQLite store."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from penstock.engine.port import CHANGED, MUTABLE
from penstock.store.sql.queries import COLUMNS, load_queries

# Counters by their columns. What is ready and what was put follow from the last id.
STORED = ("taken", "delayed", "buried", "done")
CALLS = ("take", "ack", "release", "delete", "bury", "kick", "touch", "ttl", "ttr", "delay", "fail")
COUNTERS = {**{name: name for name in STORED}, **{name: f"{name}_calls" for name in CALLS}}
# A ready task as it is once session ?5 has it at ?3, by call ?6.
_HANDED_OUT = {
    "state": "'t'", "attempts": "attempts + 1", "lease": "(lease >> 28) + 1 << 28 | ?6", "taken": "?3",
    "at": "?3 + ttr", "owner": "?5", "progress": "NULL",
}  # fmt: skip
_LEASED = ", ".join(_HANDED_OUT.get(field, column) for field, column in COLUMNS.items() if field != "errors")
Q = load_queries(
    "penstock.store.sqlite", shared=True, fragments={"leased": _LEASED, "counters": ", ".join(COUNTERS.values())}
)


def _insert(fields: Sequence[str]) -> str:
    columns = ", ".join(COLUMNS[field] for field in fields)
    return f"INSERT INTO penstock_task (pk, tube, {columns}) VALUES (?, ?{', ?' * len(fields)})"


# A task that is still as its holder saw it; one that was loaded in the same transaction always is.
_AS_SEEN = "WHERE pk = ? AND lease = ? AND (state = 't') = ? AND at IS ? AND (errors IS NULL OR ?)"


def _update(fields: Sequence[str]) -> str:
    return f"UPDATE penstock_task SET {', '.join(f'{COLUMNS[field]} = ?' for field in fields)} {_AS_SEEN}"


#: Every field of a task beside its id; and those that a new one has, which saves a tenth of a put of 1,000.
STORED_FIELDS = tuple(field for field in COLUMNS if field != "id")
NEW_FIELDS = tuple(
    field for field in STORED_FIELDS if field not in {*_HANDED_OUT, "reason", "errors"} - {"state", "at"}
)
INSERT, INSERT_NEW = _insert(STORED_FIELDS), _insert(NEW_FIELDS)
#: A change of state, in the order of CHANGED; and a task with new content, in the order of MUTABLE, then its payload.
UPDATE_STATE = _update(CHANGED)
UPDATE_RECORD = _update((*MUTABLE, "payload"))
DELETE = f"DELETE FROM penstock_task {_AS_SEEN}"


@cache
def add_counts(*names: str) -> str:
    """The statement that raises the last id and adds to these counters."""
    sums = "".join(f", {COUNTERS[name]} = {COUNTERS[name]} + ?" for name in names)
    return f"UPDATE penstock_counter SET last_id = max(last_id, ?){sums} WHERE tube = ?"
