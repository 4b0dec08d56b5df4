"""Statements sent by libpq itself, for the hottest call: a cursor of psycopg's takes more time than the server does."""

from __future__ import annotations

import select
from collections.abc import Sequence

import psycopg
from psycopg.errors import InvalidSqlStatementName, error_from_result
from psycopg.pq import ExecStatus, Format
from psycopg.pq.abc import PGconn, PGresult

from penstock.store.postgres.arrays import adapt


class Link(psycopg.Connection):
    """A connection that knows which statements were prepared on it, and hears when its server says something."""

    def __init__(self, pgconn: PGconn) -> None:
        super().__init__(pgconn)
        adapt(self)
        self.prepared: set[bytes] = set()
        self.ear = select.poll()
        self.ear.register(pgconn.socket, select.POLLIN)

    def hung_up(self) -> bool:
        """Whether the server ended the connection while it was idle; a look at the socket, no query.

        To an idle connection that listens to nothing a server says only good-bye.
        """
        return bool(self.ear.poll(0))

    def answer(self) -> PGresult:
        """The last result of what was sent."""
        pgconn = self.pgconn
        while pgconn.flush():  # more than the socket takes at once
            both = select.poll()
            both.register(pgconn.socket, select.POLLIN | select.POLLOUT)
            both.poll()
            pgconn.consume_input()
        found: PGresult | None = None
        while True:
            while pgconn.is_busy():
                self.ear.poll()
                pgconn.consume_input()
            result = pgconn.get_result()
            if result is None:
                assert found is not None
                return found
            found = result


class Prepared:
    """A statement that answers one value. Its parameters and that value are in the server's binary format."""

    def __init__(self, name: str, query: str) -> None:
        self._name = name.encode()
        self._query = query.encode()
        self._formats = [Format.BINARY] * query.count("$")

    def run(self, db: Link, values: Sequence[bytes | None]) -> bytes | None:
        """The value; raises as a cursor does."""
        if self._name in db.prepared:
            try:
                return self._run(db, values)
            except InvalidSqlStatementName:  # psycopg lets the server forget them all where it rolls back
                db.prepared.clear()
        db.pgconn.send_prepare(self._name, self._query)
        _must_be(ExecStatus.COMMAND_OK, db.answer())
        db.prepared.add(self._name)
        return self._run(db, values)

    def _run(self, db: Link, values: Sequence[bytes | None]) -> bytes | None:
        db.pgconn.send_query_prepared(self._name, values, self._formats, Format.BINARY)
        return _must_be(ExecStatus.TUPLES_OK, db.answer()).get_value(0, 0)


def _must_be(status: ExecStatus, result: PGresult) -> PGresult:
    if result.status != status:
        raise error_from_result(result)
    return result
