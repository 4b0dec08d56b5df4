"""What a PostgreSQL store promises by the server's real settings, and what should be done about them."""

from __future__ import annotations

from typing import cast

from penstock.core.results import Description
from penstock.store.postgres.location import Location
from penstock.store.postgres.wire import Row

# From here on an open transaction keeps so many dead rows that takes become slow.
_LONG_SECONDS = 300


def describe(row: Row, location: Location) -> Description:
    """The store as it is now."""
    version, fsync, commit, pages, vacuum, connections, schema, oldest, queue = cast(
        "tuple[str, str, str, str, str, int, int, int | None, int]", row
    )
    advice = []
    if fsync != "on" or pages != "on":
        advice.append("fsync or full_page_writes is off: a crash can destroy the database; switch both on")
    if vacuum != "on":
        advice.append("autovacuum is off: the queue's dead rows stay for ever; switch it on")
    if location.pool_size >= connections:
        advice.append(
            f"pool_size is {location.pool_size}, max_connections {connections}: lower the one, raise the other"
        )
    if oldest is not None and oldest > _LONG_SECONDS:
        advice.append(f"a transaction is open for {oldest} s and keeps dead rows from being removed: end it")
    if queue > 50:
        advice.append(f"the notification queue is {queue} % full: end the listener that does not read")
    where = f"{location.place} schema {location.schema}"
    return Description("PostgreSQL", version, where, promise(fsync, commit), schema, advice)


def promise(fsync: str, commit: str) -> str:
    """What the two settings mean for a put that returned."""
    if fsync != "on":
        return (
            "a put that returned survives the end of any client; a crash of the server may lose everything (fsync=off)"
        )
    if commit == "off":
        return (
            "a put that returned survives the end of any client; a crash of the server may lose the last moments "
            "(synchronous_commit=off)"
        )
    return f"a put that returned survives a power cut (synchronous_commit={commit})"
