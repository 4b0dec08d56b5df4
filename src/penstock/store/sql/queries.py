"""Named queries from a .sql file.

`-- name: take_ready` begins a query, `-- fragment: record` a text that `$record` stands for in the queries
below it. Other comment lines say which index a query relies on; they are not sent.
"""

from __future__ import annotations

import re
from importlib.resources import files
from types import SimpleNamespace

_HEADER = re.compile(r"^-- (name|fragment): (\w+)\s*$")


def load_queries(package: str, file: str = "queries.sql") -> SimpleNamespace:
    """The queries of a package's file as attributes."""
    queries: dict[str, str] = {}
    fragments: dict[str, str] = {}
    for role, name, body in _sections(files(package).joinpath(file).read_text()):
        expanded = re.sub(r"\$([a-z]\w*)", lambda match: fragments[match[1]], body)
        (queries if role == "name" else fragments)[name] = expanded
    return SimpleNamespace(**queries)


def _sections(text: str) -> list[tuple[str, str, str]]:
    sections: list[tuple[str, str, list[str]]] = []
    for line in text.splitlines():
        if match := _HEADER.match(line):
            sections.append((match[1], match[2], []))
        elif sections and line.strip() and not line.lstrip().startswith("--"):
            sections[-1][2].append(line.strip())
    return [(role, name, " ".join(lines).rstrip(";")) for role, name, lines in sections]
