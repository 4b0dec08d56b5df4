"""Connections to the server: a small pool, and what a fork or a lost server does to it."""

from __future__ import annotations

import select
import ssl
import threading
from collections.abc import Sequence
from functools import cache
from queue import Empty, SimpleQueue
from typing import Any

import pymysql
from pymysql.constants import CLIENT

from penstock.errors import PayloadTooLarge, StoreBusy, StoreUnavailable
from penstock.store.forks import reset_in_child
from penstock.store.mysql.faults import TOO_MANY_PREPARED, number, translated
from penstock.store.mysql.location import Location
from penstock.store.mysql.prepared import ROOM, PreparedPut
from penstock.store.mysql.wire import Rows, ask

# How long a call waits for a connection of the pool, and for the server to answer a connect.
POOL_SECONDS = 10.0
CONNECT_SECONDS = 10
# No call of ours takes so long; a server that fell silent is given up after it.
READ_SECONDS = 120
# A step waits so long for a row that another holds, before it starts anew.
LOCK_WAIT_SECONDS = 5

# Our procedures pass on by GROUP_CONCAT, which cuts at this length, the ids of the largest batch and what came in
# a packet.
ROOM_FOR_IDS = "group_concat_max_len = GREATEST(16777216, @@max_allowed_packet)"

# Binary comparisons and strict values, whatever the server's defaults.
_SETTINGS = (
    "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED;"
    "SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION,ERROR_FOR_DIVISION_BY_ZERO',"
    f" {ROOM_FOR_IDS}, innodb_lock_wait_timeout = {LOCK_WAIT_SECONDS}"
)


class _Connection(pymysql.Connection):
    """PyMySQL's own reads the system's certificates for every connection, 25 ms of CPU, also when it verifies none."""

    def _create_ssl_ctx(self, options: dict[str, Any]) -> ssl.SSLContext:
        asked: ssl.SSLContext = super()._create_ssl_ctx(options) if options else _unverified()  # type: ignore[misc]
        return asked


@cache
def _unverified() -> ssl.SSLContext:
    """Encrypts where the server can, and trusts whoever answers: for URLs that name no ssl_ca."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


class Link:
    """One connection. Only one thread uses it at a time."""

    def __init__(self, location: Location) -> None:
        connection = _Connection(
            host=location.host,
            port=location.port,
            unix_socket=location.socket,
            user=location.user,
            password=location.password,
            database=location.database,
            charset="utf8mb4",
            autocommit=False,
            client_flag=CLIENT.MULTI_STATEMENTS,
            connect_timeout=CONNECT_SECONDS,
            read_timeout=READ_SECONDS,
            write_timeout=READ_SECONDS,
            ssl_ca=location.ssl_ca,
            ssl_verify_cert=location.ssl_ca is not None,  # PyMySQL looks at neither unless told
            ssl_verify_identity=location.ssl_ca is not None,
        )
        self._poll = select.poll()
        self._poll.register(connection._sock, select.POLLIN)  # type: ignore[attr-defined]
        self._use(connection)
        self.packet(_SETTINGS)

    def _use(self, connection: pymysql.Connection[pymysql.cursors.Cursor]) -> None:
        self._connection = connection
        self._cursor = connection.cursor()
        #: The largest statement the server takes.
        self.max_packet = int(self.rows("SELECT @@max_allowed_packet")[0][0])
        self._prepares = self.max_packet >= ROOM and "MariaDB" in connection.server_version  # type: ignore[attr-defined]
        self._puts: PreparedPut | None = None

    def prepared_put(self) -> PreparedPut | None:
        """What sends plain puts; None where the server takes none that are prepared."""
        if self._puts is None and self._prepares:
            try:
                self._puts = PreparedPut(self._connection)
            except pymysql.MySQLError as error:
                if number(error) != TOO_MANY_PREPARED:
                    raise
                self._prepares = False
        return self._puts

    def finish(self, *statements: str) -> Rows:
        """The last words of a transaction, with its commit."""
        return self.packet(*statements, "COMMIT")

    def finish_each(self, *statements: str) -> Rows:
        """Several transactions of one statement each, in one round trip."""
        return self.packet("; COMMIT; ".join((*statements, "")).removesuffix("; "))

    def packet(self, *statements: str) -> Rows:
        """Send statements in one round trip; the rows of all their results, one after the other."""
        return ask(self._connection, self._fitting("; ".join(statements)))[0]

    def _fitting(self, sql: str) -> str:
        if 4 * len(sql) > self.max_packet and len(sql.encode()) > self.max_packet:
            raise PayloadTooLarge(
                f"a call of {len(sql)} bytes is more than the server takes in one packet: "
                "raise its max_allowed_packet, or store the data elsewhere and give a reference"
            )
        return sql

    def numbers(self, *statements: str) -> list[int]:
        """Send statements and the commit in one round trip; the number that each of them left (LAST_INSERT_ID)."""
        return ask(self._connection, self._fitting("; ".join((*statements, "COMMIT"))))[1]

    def rows(self, sql: str, arguments: Sequence[object] = ()) -> Rows:
        """The rows of one statement."""
        self._cursor.execute(sql, tuple(arguments) or None)
        return list(self._cursor.fetchall())

    def filled(self, sql: str, arguments: Sequence[object]) -> str:
        """The statement with its arguments in it."""
        return str(self._cursor.mogrify(sql, tuple(arguments) or None))

    def change(self, sql: str, arguments: Sequence[object] = ()) -> int:
        """How many rows one statement changed."""
        return int(self._cursor.execute(sql, tuple(arguments) or None))

    def many(self, sql: str, rows: Sequence[Sequence[object]]) -> None:
        """One statement for each of these rows, as many as fit in one round trip."""
        self._cursor.executemany(sql, [tuple(row) for row in rows])

    @property
    def last_number(self) -> int:
        """The number that the last INSERT was given."""
        return int(self._cursor.lastrowid)

    def commit(self) -> None:
        self._connection.commit()

    def rollback(self) -> None:
        self._connection.rollback()

    def alive(self) -> bool:
        """Whether nothing waits to be read: an idle connection has only its end to tell. No round trip."""
        return self._connection._sock is not None and not self._poll.poll(0)  # type: ignore[attr-defined]

    def discard(self) -> None:
        """Close it without a word to the server."""
        self._connection._force_close()  # type: ignore[attr-defined]

    def close(self) -> None:
        """Take leave of the server."""
        try:
            self._connection.close()
        except (pymysql.MySQLError, OSError):
            self.discard()


class Pool:
    """Up to so many connections, opened when they are needed, the last used one first."""

    def __init__(self, location: Location) -> None:
        self._location = location
        self._closed = False
        self._reset()
        reset_in_child(self)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        # A permit for each connection that may be in use. Not a Semaphore, which is made of Python: 4 µs of a put.
        self._permits: SimpleQueue[None] = SimpleQueue()
        for _ in range(self._location.pool_size):
            self._permits.put(None)
        self._idle: list[Link] = []

    def borrow(self) -> Link:
        """A live connection; StoreBusy when all are in use for too long, StoreUnavailable when there is no server."""
        if self._closed:
            raise StoreUnavailable(f"this broker on database {self._location.name} is closed: connect again")
        try:
            self._permits.get(timeout=POOL_SECONDS)
        except Empty:
            raise StoreBusy(
                f"all {self._location.pool_size} connections to database {self._location.name} are in use: "
                "use fewer threads, or give the URL a larger pool_size"
            ) from None
        try:
            while True:
                with self._lock:
                    link = self._idle.pop() if self._idle else None
                if link is None:
                    return Link(self._location)
                if link.alive():
                    return link
                link.discard()
        except (pymysql.MySQLError, OSError) as error:
            self._permits.put(None)
            raise translated(error, self._location.name) from error
        except BaseException:
            self._permits.put(None)
            raise

    def give_back(self, link: Link, *, broken: bool = False) -> None:
        """The caller is done with it, outside of any transaction."""
        if broken:
            link.discard()
        elif self._closed:
            link.close()
        else:
            with self._lock:
                self._idle.append(link)
        self._permits.put(None)

    def close(self) -> None:
        """No more connections; those in use are closed when they come back."""
        self._closed = True
        with self._lock:
            idle, self._idle = self._idle, []
        for link in idle:
            link.close()

    def after_fork(self) -> None:
        """In a child: the parent's connections are the parent's. Dropping them closes our copy of the socket only."""
        self._reset()
