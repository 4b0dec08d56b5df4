"""Connections to a MySQL or MariaDB server: packets of statements, each prepared once; calls on the caller's own
connection (`bind`); and the translation of PyMySQL's errors."""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec
import pymysql
from pymysql.constants import CLIENT, SERVER_STATUS

from penstock.core.names import kind_of, shown
from penstock.engine.port import Conflict
from penstock.errors import (
    BadValue,
    PayloadTooLarge,
    StoreBusy,
    StoreError,
    StoreUnavailable,
    UnsupportedOption,
)
from penstock.store.mysql.mysql_queries import Q, require
from penstock.store.mysql.mysql_wire import Answer, Prepared, Rows, Statement, ask, fill, joined, literal
from penstock.store.sql.server import AWAY, BUSY, DAMAGED, DENIED, FOREIGN, FULL, USED_UP, Meaning, Server
from penstock.store.sql.sql_queries import Write
from penstock.system.wake import until_readable

# How long the server may take to accept a connection.
CONNECT_SECONDS = 10
# A connection whose server is silent for this long is given up. No penstock call takes that long.
READ_SECONDS = 120
# How long a step waits for a row lock of another transaction before it is retried.
LOCK_WAIT_SECONDS = 2
# How long a process waits for the migration by another one.
_MIGRATE_SECONDS = 60

# Statements pass ids by GROUP_CONCAT, which truncates at this length. The other settings keep the servers from reading
# whole tables: MariaDB would turn long lists into joins, and neither would use an index for more than 32,000 values.
NEEDED = (
    "group_concat_max_len = 67108864 /*!80000 , range_optimizer_max_mem_size = 0 */"
    " /*M! , in_predicate_conversion_threshold = 0, optimizer_max_sel_arg_weight = 0 */"
)

# MariaDB uses snapshot isolation by default since 11.6.2.
_ASKED = "SELECT @@max_allowed_packet, FALSE /*M!110602 OR @@innodb_snapshot_isolation */"

# Binary comparisons and strict values, whatever the server's defaults.
_SETTINGS = (
    "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED;"
    "SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION,ERROR_FOR_DIVISION_BY_ZERO',"
    f" {NEEDED}, innodb_lock_wait_timeout = {LOCK_WAIT_SECONDS}"
)

# In the next transaction, all reads see one snapshot.
REPEATABLE = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"

# The parameters of a URL: allowed values, and how messages describe them. Each connection costs the server a thread.
_PARAMETERS = {
    "socket": (re.compile(".+"), "a path"),
    "pool_size": (re.compile(r"0*[1-9][0-9]{0,2}|0*1000", re.ASCII), "a number from 1 to 1000"),
    "ssl_ca": (re.compile(".+"), "a path"),
}
_VALUES = re.compile(r"VALUES \(%s(?:, %s)*\)")


class Location(msgspec.Struct, frozen=True):
    """One database on one server: its name for messages, and what PyMySQL needs to log in."""

    name: str
    pool_size: int
    login: dict[str, Any]


def parse(url: str) -> Location:
    """Parse a URL. Raises BadValue, which says what is wrong with it."""
    parts = urlsplit(url)
    try:
        port = parts.port or 3306
    except ValueError:
        raise BadValue(f"store URL for {shown(parts.hostname)} has a bad port: give a number up to 65535") from None
    database = unquote(parts.path)[1:]
    if not database or "/" in database:
        raise BadValue("store URL names no database: use mysql://user:password@host:3306/database")
    given = dict(parse_qsl(parts.query, keep_blank_values=True))
    for name, value in given.items():
        if name not in _PARAMETERS:
            raise BadValue(f"parameter {shown(name)} of a mysql:// URL is unknown: use {', '.join(_PARAMETERS)}")
        allowed, wanted = _PARAMETERS[name]
        if not allowed.fullmatch(value):
            raise BadValue(f"parameter {name}={shown(value)} of a mysql:// URL: give {wanted}")
    host, socket = parts.hostname or "localhost", given.get("socket")
    login: dict[str, Any] = {"host": host, "port": port, "unix_socket": socket, "database": database}
    login |= {"user": unquote(parts.username or "root"), "password": unquote(parts.password or "")}
    if "ssl_ca" in given:  # PyMySQL checks neither unless it is asked to
        login |= {"ssl_ca": given["ssl_ca"], "ssl_verify_cert": True, "ssl_verify_identity": True}
    return Location(f"{database} on {socket or f'{host}:{port}'}", int(given.get("pool_size", "8")), login)


class _Connection(pymysql.Connection):
    """PyMySQL's connection, without loading the system's certificates (25 ms of CPU) when none is verified."""

    def _create_ssl_ctx(self, options: dict[str, Any]) -> ssl.SSLContext:
        if not options:
            return ssl._create_unverified_context()  # encrypts if the server can
        return super()._create_ssl_ctx(options)  # type: ignore[misc,no-any-return]


class Link:
    """One connection. Only one thread uses it at a time."""

    prepares = False  # whether statements are prepared
    own = False  # not the caller's: a packet may have several statements, and ends with a commit

    def __init__(self, connection: pymysql.Connection[pymysql.cursors.Cursor]) -> None:
        self._connection = connection
        ((packet, snapshots),) = self.rows(_ASKED)
        #: The largest packet that the server accepts.
        self.max_packet = int(packet)
        #: Whether a transaction fails if it locks a row that changed after its first read.
        self.snapshot_isolation = bool(int(snapshots))
        self._names: dict[Prepared, str] = {}  # of prepared statements
        # Whether prepared statements accept values; otherwise those with values are sent as text.
        self._accepts_values = "MariaDB" in connection.server_version  # type: ignore[attr-defined]
        self._unread = until_readable(connection._sock.fileno())  # type: ignore[attr-defined]

    @classmethod
    def open(cls, location: Location) -> Link:
        """Open a connection with the settings that penstock's statements rely on."""
        connection = _Connection(
            **location.login, charset="utf8mb4", autocommit=False,
            client_flag=CLIENT.MULTI_STATEMENTS | CLIENT.FOUND_ROWS,
            connect_timeout=CONNECT_SECONDS, read_timeout=READ_SECONDS, write_timeout=READ_SECONDS,
        )  # fmt: skip
        link = cls(connection)
        link.prepares = link.own = True
        ask(connection, _SETTINGS)
        return link

    def send(self, statements: Sequence[Statement], *, commit: bool = True) -> Answer:
        """Send the statements of one transaction, in one round trip or as few as the packet size allows."""
        made: dict[Prepared, str] = {}
        texts = [each if type(each) is str else self._execution(each, made) for each in statements]
        first = int(type(statements[0]) is str)
        if made:
            # PREPARE comes after the SET that begins a packet and before all other statements, because nothing may come
            # between a statement and its ROW_COUNT(). MySQL infers the types of variables from their values at PREPARE.
            texts[first:first] = [f"""PREPARE {name} FROM '{sql.replace("'", "''")}'""" for sql, name in made.items()]
        if commit and self.own:
            texts.append("COMMIT")
        packet = "; ".join(texts)
        fits = self.own and len(packet) + 2 <= self.max_packet
        answer = ask(self._connection, packet) if fits else self._send_split(texts)
        if made:
            self._names.update(made)
            del answer.oks[first : first + len(made)]
        return answer

    def _execution(self, statement: Any, made: dict[Prepared, str]) -> str:
        """Return what runs a statement. Adds it to `made` if it must be prepared first."""
        sql, values = (statement, "") if type(statement) is Prepared else (statement.sql, statement.values)
        if not self.prepares or (values and not self._accepts_values):
            return sql.replace("?", "%s") % tuple(values.split(",")) if values else sql
        name = self._names.get(sql) or made.setdefault(sql, f"p_{len(self._names) + len(made)}")
        return f"EXECUTE {name} USING {values}" if values else f"EXECUTE {name}"

    def _send_split(self, texts: Sequence[str]) -> Answer:
        answer = Answer([], [])
        for packet in joined(texts, "; ", self.max_packet if self.own else 0):
            if len(packet) + 2 > self.max_packet:
                raise PayloadTooLarge(
                    f"a call of {len(packet)} bytes is more than the server accepts in one packet: "
                    "raise its max_allowed_packet, or store the data elsewhere and give a reference"
                )
            results, oks = ask(self._connection, packet)
            answer.results.extend(results)
            answer.oks.extend(oks)
        return answer

    def rows(self, sql: str, arguments: Sequence[object] = (), *, alone: bool = False) -> Rows:
        """Run one statement with values for its `%s`; with `alone`, as its own transaction. Returns its rows, with the
        values of VARBINARY columns as bytes."""
        return ask(self._connection, _filled(sql, arguments) + "; COMMIT" * alone, raw=True)[0][0]

    def change(self, sql: str, arguments: Sequence[object] = ()) -> int:
        """Run one statement. Returns how many rows it changed."""
        return ask(self._connection, _filled(sql, arguments))[1][0].changed

    def begin(self, *, snapshot: bool) -> None:
        """Begin a transaction of several round trips; with `snapshot`, a read-only one on one snapshot."""
        if snapshot:
            self.send([REPEATABLE, "START TRANSACTION WITH CONSISTENT SNAPSHOT"], commit=False)

    def finish(self) -> None:
        """Commit the open transaction."""
        self._connection.commit()

    def undone(self) -> bool:
        """Roll back the open transaction. Returns False if the connection broke."""
        try:
            self._connection.rollback()
        except (pymysql.MySQLError, OSError):
            return False
        return True

    def write(self, guard: tuple[str, Sequence[object]], writes: Sequence[Write]) -> None:
        """See `store.pool.vault.Database`. INSERTs have as many rows as possible."""
        statements = [_filled(*guard), require("ROW_COUNT() > 0")]
        for sql, rows in writes:
            head, *tail = _VALUES.split(sql)
            if tail:
                statements += [f"{head}VALUES {part}{tail[0]}" for part in joined(map(literal, rows))]
            else:
                statements += [_filled(sql, row) for row in rows]
        self.send(statements)

    def hung_up(self) -> bool:
        """Return whether there is something to read: an idle connection can only receive its end. No round trip."""
        return self._connection._sock is None or bool(self._unread(0))  # type: ignore[attr-defined]

    def close(self) -> None:
        """Close the connection, after informing the server if it is reachable."""
        try:
            self._connection.close()
        except (pymysql.MySQLError, OSError):
            self._connection._force_close()  # type: ignore[attr-defined]


def _filled(sql: str, arguments: Sequence[object]) -> str:
    return sql % tuple(map(literal, arguments)) if arguments else sql


# Errors of penstock's statements if a guard does not hold: a subquery with two rows (`require` in queries.sql), an
# address that is in use, and a task id that is NULL because the tube is gone.
GUARDS = {1242, 1062, 1048}

TOO_MANY_PREPARED = 1461
NO_TABLE = {1146, 1109}
# Errors after which the transaction can be rolled back and retried: a deadlock, a lock wait timeout, and a row that
# changed since it was read (MariaDB's snapshot isolation).
RESTARTABLE = {1213, 1205, 1020}

# Errors of a lost connection, including any without a number: the call may or may not have been applied.
LOST = {2006, 2013, 2055, 4031, 1927, 1152, 1159, 1160, 1161, 0}
# What the other errors mean. With those of the first line, the server refused or ended the statement: nothing was done.
_MEANINGS: list[tuple[set[int], Meaning]] = [
    ({2002, 2003, 2005, 1040, 1042, 1043, 1053, 1129, 1130, 1203, 1226, 1290, 1836, 1317, *LOST}, AWAY),
    (RESTARTABLE, BUSY),
    ({1049}, (StoreUnavailable, "does not exist: create it, or name another one in the URL")),
    ({1044, 1045, 1142, 1143, 1227, 1370, 1698, 2059, 2061}, DENIED),
    ({4025, 3819}, USED_UP),  # the check of penstock_id
    ({1021, 1041, 1114, 1037, 1038, 28}, FULL),
    ({126, 127, 1030, 1034, 1035, 1194, 1195, 1712, 1877, 1932}, DAMAGED),
    ({1054, 1304, 1305, 1318, 1356, *NO_TABLE}, FOREIGN),
]


def error_number(error: BaseException) -> int:
    """Return the server's or the driver's error number; 0 if there is none, as of an OSError."""
    first = error.args[0] if isinstance(error, pymysql.MySQLError) and error.args else 0
    return first if isinstance(first, int) else 0


class MysqlServer(Server[Link]):
    """The server of one store."""

    errors = (pymysql.MySQLError, OSError)
    queries = Q

    def __init__(self, location: Location) -> None:
        self.location = location
        super().__init__(location.pool_size, f"database {location.name}")

    def open(self, seconds: float = 0) -> Link:
        with self.translating():
            return Link.open(self.location)

    def send(self, statements: Sequence[Statement], *, safe: bool = False) -> Answer:
        """Send statements as one transaction. Raises Conflict if another transaction interfered or a guard failed."""
        return self.attempt(lambda link: link.send(statements), safe=safe)

    def conflict(self, error: Exception) -> Conflict | None:
        return Conflict() if error_number(error) in GUARDS | RESTARTABLE else None

    def is_lost(self, connection: Link, error: Exception) -> bool:
        return error_number(error) in LOST

    def meaning(self, error: Exception) -> Meaning:
        code = error_number(error)
        return next((meaning for codes, meaning in _MEANINGS if code in codes), (StoreError, "failed: {text}"))

    def text_of(self, error: Exception) -> str:
        return str(error.args[1] if len(error.args) > 1 else error) or "the connection is closed"  # by bind's caller

    def may_retry(self, connection: Link, error: Exception, *, safe: bool, restart: bool) -> bool:
        if error_number(error) == TOO_MANY_PREPARED:
            connection.prepares = False
            return True
        return super().may_retry(connection, error, safe=safe, restart=restart)

    # the schema

    def must_suit(self, link: Link) -> None:
        version = str(link.rows(Q.settings)[0][0])
        least = (10, 6) if "mariadb" in version.lower() else (8, 0)  # the first with SKIP LOCKED and JSON_TABLE
        if tuple(int(part) for part in version.split("-")[0].split(".")[:2]) < least:
            raise StoreUnavailable(f"{self.place} is {version}: use MariaDB 10.6 or later, or MySQL 8 or later")

    def meta(self, link: Link) -> dict[str, str]:
        try:
            return dict(link.rows(Q.meta))
        except pymysql.MySQLError as error:
            if error_number(error) not in NO_TABLE:
                raise
            return {}

    def set_meta(self, link: Link, meta: dict[str, str]) -> None:
        link.send([fill(Q.set_meta, name=name, value=value) for name, value in meta.items()])

    @contextmanager
    def alone(self, link: Link) -> Iterator[None]:
        (locked,) = link.rows(Q.lock_schema, (_MIGRATE_SECONDS,))[0]
        if not locked:
            raise StoreBusy(f"another process has been migrating {self.place} for over {_MIGRATE_SECONDS} s: check it")
        try:
            yield
        finally:
            link.rows(Q.unlock_schema)

    def apply(self, link: Link, sql: str) -> None:
        """Run the statements of a migration. DDL commits implicitly, so each must be safe to run twice."""
        link.send([sql.strip().rstrip(";")])


class BoundServer(MysqlServer):
    """Runs every call in a savepoint of the caller's transaction. Retries nothing: the caller decides that."""

    bound = True

    def __init__(self, own: MysqlServer, connection: object, identity: str) -> None:
        self.location, self.place = own.location, own.place
        if not isinstance(connection, pymysql.Connection):
            raise UnsupportedOption(f"bind was given {kind_of(connection)}: on MySQL it needs a pymysql.Connection")
        begun = connection.server_status & SERVER_STATUS.SERVER_STATUS_IN_TRANS  # type: ignore[attr-defined]
        if connection.get_autocommit() and not begun:
            raise BadValue("the connection is in no transaction: call its begin() first")
        with self.translating():
            self._link = Link(connection)
            self._link.change(f"SET SESSION {NEEDED}")
            meta = self.meta(self._link)
        if f"mysql:{meta.get('id')}" != identity:
            raise BadValue(f"the connection is to another database: bind one on {self.place}")

    @contextmanager
    def transaction(self, *, snapshot: bool) -> Iterator[Link]:
        """Run a savepoint of the caller's transaction."""
        link = self._link
        try:
            if link.snapshot_isolation:  # concurrent puts, takes and acks must not count as conflicts
                link.change("SET SESSION innodb_snapshot_isolation = OFF")
            link.change("SAVEPOINT penstock")
            try:
                yield link
            except Exception as error:
                try:
                    self._end("ROLLBACK TO SAVEPOINT penstock")
                except self.errors:
                    # A deadlock has rolled back the caller's whole transaction, including the savepoint: report it.
                    raise self.translated(error) from error
                raise
            self._end("RELEASE SAVEPOINT penstock")
        except self.errors as error:
            raise self.conflict(error) or self.translated(error) from error

    def _end(self, statement: str) -> None:
        self._link.change(statement)
        if self._link.snapshot_isolation:
            self._link.change("SET SESSION innodb_snapshot_isolation = ON")
