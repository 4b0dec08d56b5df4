"""One connection to the server: packets of statements on it, each prepared once."""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

import pymysql
from pymysql.constants import CLIENT

from penstock.errors import PayloadTooLarge
from penstock.store.mysql.faults import TOO_MANY_PREPARED, number
from penstock.store.mysql.location import Location
from penstock.store.mysql.prepared import ROOM, PreparedCalls
from penstock.store.mysql.wire import Ok, Prepared, Rows, ask, literal
from penstock.store.polling import READABLE, make_poll

# How long the server may take to accept a connection.
CONNECT_SECONDS = 10
# A server that is silent for this long is given up; no call of ours takes as long.
READ_SECONDS = 120
# How long a step waits for a row that another transaction holds before it starts again.
LOCK_WAIT_SECONDS = 2

# Statements pass ids on by GROUP_CONCAT, which cuts at this length. MariaDB makes joins of long lists, without indexes.
NEEDED = "group_concat_max_len = 67108864 /*M! , in_predicate_conversion_threshold = 0 */"

# Binary comparisons and strict values, whatever the server's defaults.
_SETTINGS = (
    "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED;"
    "SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION,ERROR_FOR_DIVISION_BY_ZERO',"
    f" {NEEDED}, innodb_lock_wait_timeout = {LOCK_WAIT_SECONDS}"
)


class Answer(NamedTuple):
    """The answers to the statements of a packet: the rows of those that have some, and those of the others."""

    results: list[Rows]
    oks: list[Ok]


class _Connection(pymysql.Connection):
    """PyMySQL's own reads the system's certificates for every connection, 25 ms of CPU, even if it verifies none."""

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

    returned = 0.0  # when it became idle
    _joins = True  # whether a packet may have several statements

    def __init__(self, location: Location) -> None:
        connection = _Connection(
            host=location.host, port=location.port, unix_socket=location.socket, user=location.user,
            password=location.password, database=location.database, charset="utf8mb4", autocommit=False,
            client_flag=CLIENT.MULTI_STATEMENTS, connect_timeout=CONNECT_SECONDS, read_timeout=READ_SECONDS,
            write_timeout=READ_SECONDS, ssl_ca=location.ssl_ca,
            ssl_verify_cert=location.ssl_ca is not None,  # PyMySQL checks neither unless it is asked to
            ssl_verify_identity=location.ssl_ca is not None,
        )  # fmt: skip
        self._poll = make_poll()
        self._poll.register(connection._sock, READABLE)  # type: ignore[attr-defined]
        self._use(connection)
        self._prepares = True
        ask(connection, _SETTINGS)

    def _use(self, connection: pymysql.Connection[pymysql.cursors.Cursor]) -> None:
        self._connection = connection
        #: The largest statement the server takes.
        self.max_packet = int(self.rows("SELECT @@max_allowed_packet")[0][0])
        self._prepares = False
        self._names: dict[str, str] = {}  # of prepared statements
        self._pipelines = self.max_packet >= ROOM and "MariaDB" in connection.server_version  # type: ignore[attr-defined]
        self._calls: PreparedCalls | None = None

    def calls(self) -> PreparedCalls | None:
        """What sends calls on one plain task; None if the server does not prepare them."""
        if self._calls is None and self._prepares and self._pipelines:
            try:
                self._calls = PreparedCalls(self._connection)
            except pymysql.MySQLError as error:
                if number(error) != TOO_MANY_PREPARED:
                    raise
                self._prepares = False
        return self._calls

    def prepare_no_more(self) -> None:
        """The server has no room for prepared statements: from now on they are sent as text."""
        self._prepares = False

    def send(self, statements: Sequence[str], *, commit: bool = True) -> Answer:
        """Send the statements of one transaction, in one round trip, or in as few as the server takes."""
        made: dict[str, str] = {}
        texts = list(statements)
        for place, each in enumerate(statements):
            if isinstance(each, Prepared) and self._prepares:
                name = self._names.get(each) or made.setdefault(each, f"p_{len(self._names) + len(made)}")
                texts[place] = f"EXECUTE {name}"
        # PREPARE follows the SET that begins a packet, and precedes all others: nothing may stand between a statement
        # and one that asks for its ROW_COUNT(). MySQL takes the types of variables from their values at PREPARE.
        first = int(not isinstance(statements[0], Prepared))
        quoted = {name: sql.replace("'", "''") for sql, name in made.items()}
        texts[first:first] = [f"PREPARE {name} FROM '{sql}'" for name, sql in quoted.items()]
        if commit:
            texts.append("COMMIT")
        answer = self._ask(texts)
        self._names.update(made)
        del answer.oks[first : first + len(made)]
        return answer

    def _ask(self, texts: list[str]) -> Answer:
        sql = "; ".join(texts)
        if self._joins and (4 * len(sql) <= self.max_packet or len(sql.encode()) <= self.max_packet):
            return Answer(*ask(self._connection, sql))
        answer = Answer([], [])
        for packet in self._packets(texts):
            results, oks = ask(self._connection, packet)
            answer.results.extend(results)
            answer.oks.extend(oks)
        return answer

    def _packets(self, texts: list[str]) -> Iterator[str]:
        """The statements, as many in each packet as the server takes."""
        packet: list[str] = []
        room = self.max_packet
        for text in texts:
            size = len(text.encode()) + 2
            if size > self.max_packet:
                raise PayloadTooLarge(
                    f"a call of {size} bytes is more than the server takes in one packet: "
                    "raise its max_allowed_packet, or store the data elsewhere and give a reference"
                )
            if packet and (size > room or not self._joins):
                yield "; ".join(packet)
                packet, room = [], self.max_packet
            packet.append(text)
            room -= size
        yield "; ".join(packet)

    def rows(self, sql: str, arguments: Sequence[object] = (), *, raw: bool = False) -> Rows:
        """The rows of one statement, with values for its `%s`. `raw`: names as bytes."""
        return ask(self._connection, _filled(sql, arguments), raw=raw)[0][0]

    def change(self, sql: str, arguments: Sequence[object] = ()) -> int:
        """Run one statement. Returns how many rows it changed."""
        return ask(self._connection, _filled(sql, arguments))[1][0].changed

    def commit(self) -> None:
        self._connection.commit()

    def rolled_back(self) -> bool:
        """Undo the open transaction. Returns False if the connection broke."""
        try:
            self._connection.rollback()
        except (pymysql.MySQLError, OSError):
            return False
        return True

    def hung_up(self) -> bool:
        """Whether something waits to be read: all that an idle connection can receive is its end. No round trip."""
        return self._connection._sock is None or bool(self._poll.poll(0))  # type: ignore[attr-defined]

    def close(self) -> None:
        """Tell the server, if it is there, and close."""
        try:
            self._connection.close()
        except (pymysql.MySQLError, OSError):
            self._connection._force_close()  # type: ignore[attr-defined]


def _filled(sql: str, arguments: Sequence[object]) -> str:
    return sql % tuple(map(literal, arguments)) if arguments else sql
