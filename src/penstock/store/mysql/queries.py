"""The named queries of this store."""

from __future__ import annotations

from penstock.store.sql.queries import load_queries

Q = load_queries("penstock.store.mysql")


def several(query: str, count: int) -> str:
    """The query with room for so many values in its `IN %s`; the driver takes no lists."""
    return query.replace("IN %s", f"IN ({', '.join(['%s'] * count)})")
