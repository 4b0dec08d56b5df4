"""Loads named queries from .sql files.

`-- name: due` begins a query, `-- fragment: record` a text that replaces `$record` in the queries below it. Other
comment lines, such as the index that a query relies on, are not sent. Parameters are `:name`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.resources import files
from types import SimpleNamespace

from penstock.core.ending import KEEP_EXPIRY, Ending
from penstock.core.results import Counts
from penstock.core.task import Record
from penstock.engine.port import MUTABLE

# A statement of a pool's vault, and the rows of values to run it with: at least one.
Write = tuple[str, Sequence[Sequence[object]]]

_HEADER = re.compile(r"^-- (name|fragment): (\w+)\s*$")
# A task's pk is tube << ID_BITS | id.
ID_BITS = 40
ID_MASK = (1 << ID_BITS) - 1
# The columns of penstock_task whose names differ from the fields of a Record.
_COLUMNS = {"id": f"pk & {ID_MASK}", "payload": "data", "group": "group_name"}
# In the order of Record's fields, so that Record(*row) works.
COLUMNS = {field: _COLUMNS.get(field, field) for field in Record.__struct_fields__}
RECORD = ", ".join(COLUMNS.values())
_GROUP = "no, name, state, total, remaining, end_work, cancel_work, moving, until, failed, on_failure"
# In the order of the fields of a StoredOutcome, with the fields of its Ending inline.
_KEPT = ", ".join(("pk", "address", *Ending.__struct_fields__, "until"))
# The columns that a take reads: all but the last one, errors.
BRIEF = RECORD.rpartition(", ")[0]
# The columns of counters by the field names of `Counts`: stored tasks first, then calls.
COUNTERS = {name: name if place < 5 else f"{name}_calls" for place, name in enumerate(Counts.__struct_fields__)}
# The columns in a store whose ids have no gaps: there, `ready` and `put` follow from the last id.
COUNTED = {name: column for name, column in COUNTERS.items() if name not in ("ready", "put")}
_IMPORTED = [field for field in COLUMNS if field != "id"]
_MUTABLE = ", ".join(f"{COLUMNS[field]} = :{field}" for field in MUTABLE)


def load_queries(package: str, *, shared: bool = False, fragments: dict[str, str] | None = None) -> SimpleNamespace:
    """Return the queries of a package as attributes; with `shared`, also those that all stores share."""
    queries: dict[str, str] = {}
    known = {
        "record": RECORD, "brief": BRIEF, "mutable": _MUTABLE, "group": _GROUP, "kept": _KEPT,
        "imported": ", ".join(COLUMNS[field] for field in _IMPORTED),
        "import": ", ".join(f":{field}" for field in _IMPORTED),
        "no_reply": f"(reply_to IS NULL OR reply_to = '{KEEP_EXPIRY}')", **(fragments or {}),
    }  # fmt: skip
    known["audited"] = known["record"].replace(f" {COLUMNS['payload']},", " NULL,")
    for place in (package, "penstock.store.sql")[: 1 + shared]:
        for role, section, body in _sections(files(place).joinpath("queries.sql").read_text()):
            into = queries if role == "name" else known
            assert section not in into or place != package or not shared, f"{package} has {section} twice"
            if section not in into:
                into[section] = re.sub(r"\$([a-z]\w*)", lambda match: known[match[1]], body)
    return SimpleNamespace(**queries)


def _sections(text: str) -> list[tuple[str, str, str]]:
    sections: list[tuple[str, str, list[str]]] = []
    for line in text.splitlines():
        if match := _HEADER.match(line):
            sections.append((match[1], match[2], []))
        elif sections and line.strip() and not line.lstrip().startswith("--"):
            sections[-1][2].append(line.strip())
    return [(role, name, " ".join(lines).rstrip(";")) for role, name, lines in sections]
