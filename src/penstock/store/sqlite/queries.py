"""The queries of the SQLite store."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.engine.port import CHANGED, MUTABLE
from penstock.store.sql.queries import COLUMNS, load_queries

# A ready task as it is once session ?5 has it at ?3.
_HANDED_OUT = {
    "state": "'t'",
    "attempts": "attempts + 1",
    "lease": "lease + 1",
    "taken": "?3",
    "at": "?3 + ttr",
    "owner": "?5",
    "progress": "NULL",
}
_LEASED = ", ".join(_HANDED_OUT.get(field, column) for field, column in COLUMNS.items())
_STORED = [field for field in COLUMNS if field != "id"]

Q = load_queries("penstock.store.sqlite", shared=True, fragments={"leased": _LEASED})

#: Every field of a task, for those that are tied to something or come from elsewhere.
INSERT_RECORD = (
    f"INSERT INTO penstock_task (pk, tube, {', '.join(COLUMNS[field] for field in _STORED)}) "
    f"VALUES (?, ?, {', '.join('?' * len(_STORED))})"
)


def _update(fields: Sequence[str]) -> str:
    return f"UPDATE penstock_task SET {', '.join(f'{COLUMNS[field]} = ?' for field in fields)} WHERE pk = ?"


#: A change of state, in the order of CHANGED; and a task with new content, in the order of MUTABLE, then its payload.
UPDATE_STATE = _update(CHANGED)
UPDATE_RECORD = _update((*MUTABLE, "payload"))
