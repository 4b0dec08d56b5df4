"""Connections to SQL servers that outlive their brokers, on stores that are emptied for one test after the other.

A new connection costs the server more than all calls of a test: each prepares every statement again. Callers cannot
distinguish a kept connection from a new one.
"""

from __future__ import annotations

import atexit
import contextlib
import os
from collections import defaultdict
from typing import Any, Generic, Protocol, Self, TypeVar

import psycopg
import pymysql
from psycopg.pq import TransactionStatus

from penstock.store.mysql import mysql_connection
from penstock.store.mysql.mysql_connection import Link as MysqlLink
from penstock.store.mysql.mysql_connection import Location, parse
from penstock.store.postgres import postgres_connection
from penstock.store.postgres.postgres_connection import locate
from penstock.store.postgres.postgres_wire import Link as PostgresLink

# Few tests use more at once.
_MOST = 6


class _Closable(Protocol):
    def close(self) -> None: ...


K = TypeVar("K")
C = TypeVar("C", bound=_Closable)


class _Cache(Generic[K, C]):
    """The idle connections to some places."""

    def __init__(self) -> None:
        self._places: set[K] = set()
        self._idle: defaultdict[tuple[int, K], list[C]] = defaultdict(list)
        atexit.register(self._close)

    def keep(self, place: K) -> None:
        """Keep connections to this place from now on."""
        self._places.add(place)

    def find(self, place: K) -> C | None:
        """Return the connection that was used last, or None."""
        try:
            return self._idle[os.getpid(), place].pop()  # a forked child has none
        except IndexError:
            return None

    def has_room(self, place: K) -> bool:
        """Whether connections to this place are kept, and few are idle."""
        return place in self._places and len(self._idle[os.getpid(), place]) < _MOST

    def add(self, place: K, connection: C) -> None:
        """Keep the connection for the next caller."""
        self._idle[os.getpid(), place].append(connection)

    def _close(self) -> None:
        places = list(self._places)
        self._places.clear()
        for place in places:
            while (kept := self.find(place)) is not None:
                kept.close()


class _KeptPostgres(PostgresLink):
    """A connection that is kept for the next caller, unless it is in a transaction or broken."""

    place = ""

    @classmethod
    def connect(cls, conninfo: str = "", **settings: Any) -> Self:
        while (kept := _postgres.find(conninfo)) is not None:
            with contextlib.suppress(psycopg.Error):  # the server was restarted
                kept.execute("UNLISTEN *")
                assert isinstance(kept, cls)
                return kept
        made = super().connect(conninfo, **settings)
        made.place = conninfo
        return made

    def close(self) -> None:
        whole = self.pgconn.transaction_status == TransactionStatus.IDLE and not self.hung_up()
        if whole and _postgres.has_room(self.place):
            self._pool = None  # its broker's thread, which has returned it
            _postgres.add(self.place, self)
        else:
            super().close()


class _KeptMysql(MysqlLink):
    """The same for MySQL. A place is the text of a location, which has no hash."""

    place = ""

    @classmethod
    def open(cls, location: Location) -> MysqlLink:
        while (kept := _mysql.find(repr(location))) is not None:
            with contextlib.suppress(pymysql.MySQLError, OSError):  # the server was restarted
                if kept.rows("SELECT 'kept'") == [("kept",)]:  # and no answer to an interrupted call
                    return kept
            MysqlLink.close(kept)
        made = super().open(location)
        assert isinstance(made, cls)
        made.place = repr(location)
        return made

    def close(self) -> None:
        if _mysql.has_room(self.place) and self.prepares and self.undone():
            _mysql.add(self.place, self)
        else:
            super().close()


_postgres = _Cache[str, _KeptPostgres]()
_mysql = _Cache[str, _KeptMysql]()


def keep_connections(url: str) -> str:
    """Keep connections to this URL from now on. Returns the URL."""
    if url.startswith("mysql"):
        mysql_connection.Link = _KeptMysql  # type: ignore[misc]
        _mysql.keep(repr(parse(url)))
    else:
        postgres_connection.Link = _KeptPostgres  # type: ignore[attr-defined]
        _postgres.keep(locate(url).conninfo)
    return url
