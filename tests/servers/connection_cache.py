"""Connections to PostgreSQL that outlive their brokers, on stores that are emptied for one test after the other.

A new connection costs the server more than all calls of a test: a process that prepares every statement
again. Callers cannot distinguish a kept connection from a new one.
"""

from __future__ import annotations

import atexit
import contextlib
import os
from collections import defaultdict
from typing import Any, Self

import psycopg
from psycopg.pq import TransactionStatus

from penstock.store.postgres import postgres_connection as connection
from penstock.store.postgres.postgres_connection import locate
from penstock.store.postgres.wire import Link

# Few tests use more at once.
_MOST = 6
_places: set[str] = set()


class _Kept(Link):
    """A connection that is kept for the next caller, unless it is in a transaction or broken."""

    place = ""

    @classmethod
    def connect(cls, conninfo: str = "", **settings: Any) -> Self:
        while (kept := _found(conninfo)) is not None:
            with contextlib.suppress(psycopg.Error):  # the server was restarted
                kept.execute("UNLISTEN *")
                assert isinstance(kept, cls)
                return kept
        made = super().connect(conninfo, **settings)
        made.place = conninfo
        return made

    def close(self) -> None:
        idle = _kept[os.getpid(), self.place]
        whole = self.pgconn.transaction_status == TransactionStatus.IDLE and not self.hung_up()
        if whole and self.place in _places and len(idle) < _MOST:
            self._pool = None  # its broker's thread, which has returned it
            idle.append(self)
        else:
            super().close()


_kept: defaultdict[tuple[int, str], list[_Kept]] = defaultdict(list)


def _found(place: str) -> _Kept | None:
    try:
        return _kept[os.getpid(), place].pop()  # a forked child has none
    except IndexError:
        return None


def keep_connections(url: str) -> str:
    """Keep connections to this URL from now on. Returns the URL."""
    connection.Link = _Kept  # type: ignore[attr-defined]
    _places.add(locate(url).conninfo)
    return url


@atexit.register
def _close() -> None:
    places = list(_places)
    _places.clear()
    for place in places:
        while (kept := _found(place)) is not None:
            kept.close()
