"""Sends statements through libpq, several in one round trip and one transaction. psycopg's cursors would take more time
than the server does."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from itertools import count
from struct import Struct
from typing import Any, NamedTuple

import psycopg
from psycopg.adapt import Transformer
from psycopg.errors import error_from_result
from psycopg.generators import send
from psycopg.pq import ExecStatus, Format, TransactionStatus
from psycopg.pq.abc import PGconn, PGresult
from psycopg.waiting import wait

from penstock.store.sql.sql_queries import Write
from penstock.system.wake import until_readable

Row = tuple[Any, ...]

_length = Struct("!i").pack

# Element types of arrays: the type's OID, and a function that packs the length and the value of a fixed-size element.
_ELEMENTS: dict[str, tuple[int, Callable[[Any], bytes] | None]] = {
    "integer": (23, partial(Struct("!ii").pack, 4)), "bigint": (20, partial(Struct("!iq").pack, 8)),
    "double precision": (701, partial(Struct("!id").pack, 8)), "boolean": (16, partial(Struct("!i?").pack, 1)),
    "text": (25, None), "bytea": (17, None),
}  # fmt: skip
# How single values are encoded: numbers as text, so that the server infers their type.
_ENCODE: dict[type, Callable[[Any], bytes | None]] = {
    type(None): lambda value: None, bool: b"%d".__mod__, int: b"%d".__mod__,
    float: lambda value: repr(value).encode(), str: str.encode, bytes: bytes,
}  # fmt: skip
_NULL = _length(-1)
_PARAMETER = re.compile(r"(?<!:):([a-z]\w*)")
_ARRAY = re.compile(rf"(?<!:):([a-z]\w*)::({'|'.join(_ELEMENTS)})\[\]")
_ROWS = re.compile(r"\bROWS (\w+)\(([^)]*)\)")
_MATCHES = re.compile(r"MATCHES (\w+\.(\w+))")
_CONDITION = re.compile(r"IF (\w+) \{")
_PART = re.compile(r"IF (\w+) \{([^{}]*)\}")
_HEAD = Struct("!iiIii")  # dimensions, flags, the type's OID, number of items, first index
_TEXT, _BINARY = Format.TEXT, Format.BINARY
_FAILED, _ROWS_CAME = ExecStatus.FATAL_ERROR, ExecStatus.TUPLES_OK
_INTERVAL = 0.1  # seconds after which a send that the server does not read notices Ctrl-C
_numbers = count()


class Call(NamedTuple):
    """A statement with its encoded parameters and their formats."""

    query: Query
    values: list[bytes | None]
    formats: list[Format]


class Query(str):
    """A statement, the names of its parameters in order, and its name as a prepared statement.

    `ROWS u(key bigint | state text, at bigint)` becomes a table made of the lists that a call passes under these names.
    If all columns of a part between bars have the same value in every row, another form of the statement passes single
    values instead. If only the key varies, `k.pk MATCHES u.key` needs no table at all, which is a tenth faster.
    `IF queues {...}` is left out of a call without a value for `queues`: a CTE costs 20 µs even if it does nothing.
    """

    sent: bytes
    names: tuple[str, ...]
    called: bytes
    notifies: bool  # whether its last column may be a notification
    _arrays: dict[str, str]  # the types of parameters that are arrays
    _columns: list[dict[str, str]]  # the columns of ROWS by part, with their types
    _optional: set[str]  # the conditions of parts that may be left out
    _forms: dict[frozenset[str], Query]

    def __new__(cls, text: str, called: str = "") -> Query:
        names: dict[str, int] = {}
        made = super().__new__(cls, text)
        made.sent = _PARAMETER.sub(lambda match: f"${names.setdefault(match[1], len(names) + 1)}", text).encode()
        made.names = tuple(names)
        made.called = called.encode()
        made.notifies = "pg_notify(" in text
        made._arrays = dict(_ARRAY.findall(text))
        rows = _ROWS.search(text)
        parts = rows[2].split("|") if rows else []
        made._columns = [dict(column.strip().split(maxsplit=1) for column in part.split(",")) for part in parts]
        made._optional = set(_CONDITION.findall(text))
        made._forms = {}
        return made

    def call(self, values: Mapping[str, Any]) -> Call:
        """Encode the parameters. An empty list for a column of ROWS means NULL in all rows; a list of one item applies
        to all rows."""
        query = self
        if self._columns or self._optional:
            query = self._form(values := dict(values))
        arrays, encoded, formats = query._arrays, list[bytes | None](), list[Format]()
        for name in query.names:
            value = values[name]
            packed = _array(value, arrays[name]) if name in arrays else _ENCODE[type(value)](value)
            encoded.append(packed)
            formats.append(_TEXT if type(value) in _AS_TEXT else _BINARY)
        return Call(query, encoded, formats)

    def _form(self, values: dict[str, Any]) -> Query:
        """Return the form of the statement for these values, and replace columns that have one value by that value."""
        chosen = {name for name in self._optional if values[name]}
        for part in self._columns[1:]:
            lists = {name: values[name] or [None] for name in part}
            if all(items.count(items[0]) == len(items) for items in lists.values()):
                values.update((name, items[0]) for name, items in lists.items())
            else:
                chosen.update(part)
                rows = len(values[next(iter(self._columns[0]))])
                values.update((name, items * rows) for name, items in lists.items() if len(items) < rows)
        form = self._forms.get(key := frozenset(chosen))
        if form is None:
            form = self._forms[key] = Query(self._formed(key), f"{next(_numbers)}.{self.called.decode()}")
        return form

    def _formed(self, chosen: frozenset[str]) -> str:
        text = str(self)
        while _PART.search(text):  # parts of parts first
            text = _PART.sub(lambda match: match[2] if match[1] in chosen else "", text)
        if not self._columns:
            return text
        key, *others = self._columns
        arrays = key | {name: type for part in others for name, type in part.items() if name in chosen}
        values = [f":{name}::{type} AS {name}" for part in others for name, type in part.items() if name not in arrays]
        if arrays == key and _MATCHES.search(text):
            text = _MATCHES.sub(rf"= ANY (:\2::{next(iter(key.values()))}[])", text)
            return _ROWS.sub(rf"(SELECT {', '.join(values)}) \1", text)
        listed = ", ".join(f":{name}::{type}[]" for name, type in arrays.items())
        shown = ", ".join([*(f"v.{name}" for name in arrays), *values])
        text = _MATCHES.sub(r"BETWEEN \1 AND \1", text)
        return _ROWS.sub(rf"(SELECT {shown} FROM unnest({listed}) v({', '.join(arrays)})) \1", text)


_AS_TEXT = {type(None), bool, int, float}


def _array(items: Sequence[Any], kind: str) -> bytes:
    """Encode an array in binary, because the server reads that faster."""
    oid, element = _ELEMENTS[kind]
    if kind == "text":
        items = [None if item is None else item.encode() for item in items]
    if element is None:
        packed = [_NULL if item is None else _length(len(item)) + item for item in items]
    else:
        packed = [_NULL if item is None else element(item) for item in items]
    return _HEAD.pack(1, 0, oid, len(items), 1) + b"".join(packed)


class Wire:
    """Sends statements through a connection of psycopg, and tracks which of them are prepared there."""

    prepares = False
    #: Called after a statement that notified other processes.
    notified: Callable[[], object] = staticmethod(lambda: None)

    def __init__(self, pgconn: PGconn) -> None:
        self.pgconn = pgconn
        self.prepared: set[bytes] = set()
        self.until_readable = until_readable(pgconn.socket)
        self._loader = Transformer()

    def run(self, calls: Sequence[Call]) -> list[list[Row]]:
        """Send statements together. Returns the rows of each that has columns. Outside of a transaction they form
        one."""
        pgconn, prepared = self.pgconn, self.prepared
        if len(calls) == 1 and calls[0].query.called in prepared:  # a put is a tenth faster without a pipeline
            query, values, formats = calls[0]
            pgconn.send_query_prepared(query.called, values, formats, _BINARY)
            return self._read([(query, self._answer())])
        expected: list[bytes | Query] = []  # the name of a statement to prepare, or a query to run
        pgconn.enter_pipeline_mode()
        for query, values, formats in calls:
            called = query.called
            if not (self.prepares and called):
                pgconn.send_query_params(query.sent, values, None, formats, _BINARY)
            else:
                if called not in prepared and called not in expected:
                    pgconn.send_prepare(called, query.sent)
                    expected.append(called)
                pgconn.send_query_prepared(called, values, formats, _BINARY)
            expected.append(query)
        pgconn.pipeline_sync()
        results = [(what, self._answer()) for what in expected]
        self._next()  # the end of the pipeline
        pgconn.exit_pipeline_mode()
        return self._read(results)

    def _answer(self) -> PGresult:
        """Wait for the answer to one statement."""
        if self.pgconn.flush():
            wait(send(self.pgconn), self.pgconn.socket, _INTERVAL)
        result = None
        while (more := self._next()) is not None:
            result = more
        if result is None:
            raise psycopg.OperationalError("the connection is closed")
        return result

    def _next(self) -> PGresult | None:
        pgconn = self.pgconn
        while pgconn.is_busy():
            self.until_readable()
            pgconn.consume_input()
        return pgconn.get_result()

    def _read(self, results: Sequence[tuple[bytes | Query, PGresult]]) -> list[list[Row]]:
        """Return the rows of each statement, or how many it changed. Raises the first error."""
        answers: list[list[Row]] = []
        for what, result in results:
            if result.status == _FAILED:
                raise error_from_result(result)
            if isinstance(what, bytes):
                self.prepared.add(what)
            elif result.status != _ROWS_CAME:
                answers.append([(result.command_tuples or 0,)])
            elif result.nfields:
                self._loader.set_pgresult(result)
                answers.append(rows := self._loader.load_rows(0, result.ntuples, tuple))
                if what.notifies and rows and rows[-1][-1] is not None:
                    self.notified()
        return answers


class Link(psycopg.Connection[Row], Wire):
    """A connection that penstock opened."""

    each: Sequence[Call] = ()  # statements that every transaction begins with

    def __init__(self, pgconn: PGconn) -> None:
        psycopg.Connection.__init__(self, pgconn)
        Wire.__init__(self, pgconn)

    def hung_up(self) -> bool:
        """Return whether the server closed the idle connection. Only polls the socket, where nothing else can
        arrive."""
        return bool(self.until_readable(0))

    def begin(self, *, snapshot: bool) -> None:
        """Begin a transaction. If the client stalls, the server soon ends it and releases its locks."""
        self.run([_BEGIN_SNAPSHOT if snapshot else _BEGIN, _STALLED, *self.each])

    def finish(self) -> None:
        """Commit the transaction."""
        self.run([_COMMIT])

    def undone(self) -> bool:
        """Roll back an open transaction after an error. Returns False if the connection broke."""
        if self.pgconn.transaction_status in (TransactionStatus.INTRANS, TransactionStatus.INERROR):
            with suppress(psycopg.Error):
                self.run([_ROLLBACK])
        return self.pgconn.transaction_status == TransactionStatus.IDLE

    # for the database of a pool

    def rows(self, sql: str, arguments: Sequence[object] = (), *, alone: bool = False) -> list[Row]:
        """Run one statement with values for its `%s`. Returns its rows, or how many rows it changed."""
        return self.run([_vault_call(sql, arguments)])[0]

    def change(self, sql: str, arguments: Sequence[object] = ()) -> int:
        """Run one statement. Returns how many rows it changed."""
        return int(self.rows(sql, arguments)[0][0] or 0)

    def write(self, guard: tuple[str, Sequence[object]], writes: Sequence[Write]) -> None:
        """See `store.pool.vault.Database`. One INSERT inserts all of its rows."""
        calls = [_vault_call(f"WITH c AS ({guard[0]} RETURNING 1) SELECT 1 / count(*) FROM c", guard[1])]
        for sql, rows in writes:
            head, *tail = _VALUES.split(sql)
            if tail:
                types = ", ".join(f"%s::{'bigint' if isinstance(value, int) else 'bytea'}[]" for value in rows[0])
                columns = [list(column) for column in zip(*rows, strict=True)]
                calls.append(_vault_call(f"{head}SELECT * FROM unnest({types}){tail[0]}", columns))
            else:
                calls += [_vault_call(sql, row) for row in rows]
        self.run(calls)


def command(sql: str) -> Call:
    """Return a statement without parameters, which is not prepared."""
    return Query(sql).call({})


_BEGIN, _COMMIT, _ROLLBACK = map(command, ("BEGIN", "COMMIT", "ROLLBACK"))
_BEGIN_SNAPSHOT = command("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
_STALLED = command("SET LOCAL idle_in_transaction_session_timeout = '10s'")
_VALUES = re.compile(r"VALUES \([%s, ]+\)")


def _vault_call(sql: str, arguments: Sequence[object]) -> Call:
    return _vault_query(sql).call({f"a{place}": value for place, value in enumerate(arguments)})


@lru_cache(maxsize=64)
def _vault_query(sql: str) -> Query:
    """Return the query of a statement. It is prepared unless it has no parameters (CREATE TABLE)."""
    first, *others = sql.split("%s")
    text = first + "".join(f":a{place}{part}" for place, part in enumerate(others))
    return Query(text, f"vault_{hash(sql):x}" if others else "")
