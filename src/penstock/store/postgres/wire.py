"""Sends statements through libpq, several in one round trip and one transaction. psycopg's cursors would take more time
than the server does."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from struct import Struct
from typing import Any

import psycopg
from psycopg.adapt import Transformer
from psycopg.errors import (
    DuplicatePreparedStatement,
    InvalidSqlStatementName,
    SerializationFailure,
    error_from_result,
)
from psycopg.generators import execute, fetch_many, send
from psycopg.pq import ExecStatus, Format, TransactionStatus
from psycopg.pq.abc import PGconn, PGresult
from psycopg.waiting import wait

from penstock.store.wake import READABLE, Selector

Row = tuple[Any, ...]
Encoded = tuple[bytes | None, Format]  # a parameter as it is sent

_length = Struct("!i").pack


def _blob(item: bytes) -> bytes:
    return _length(len(item)) + item


# Element types of arrays: the type's OID, and a function that packs the length and the value.
_ELEMENTS: dict[str, tuple[int, Callable[[Any], bytes]]] = {
    "integer": (23, partial(Struct("!ii").pack, 4)), "bigint": (20, partial(Struct("!iq").pack, 8)),
    "double precision": (701, partial(Struct("!id").pack, 8)), "boolean": (16, partial(Struct("!i?").pack, 1)),
    "text": (25, lambda item: _blob(item.encode())), "bytea": (17, _blob),
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
_INTERVAL = 0.1  # seconds after which a wait for the server notices Ctrl-C


class Query(str):
    """A statement, the names of its parameters in order, and its name as a prepared statement.

    `ROWS u(key bigint | state text, at bigint)` becomes a table made of the lists that a call passes under these names.
    If all columns of a part between bars have the same value in every row, another form of the statement passes single
    values instead. If only the key varies, `k.pk MATCHES u.key` needs no table at all, which is a tenth faster.
    `IF queues {...}` is left out of a call without a value for `queues`: a CTE costs 20 µs even if it does nothing.
    """

    sent: bytes
    names: tuple[str, ...]
    arrays: dict[str, str]  # the types of parameters that are arrays
    called: bytes
    silent: bool  # whether its answer is left out
    notifies: bool  # whether its last column may be a notification
    columns: list[dict[str, str]]  # the columns of ROWS by part, with their types
    optional: list[str]  # the conditions of parts that may be left out
    forms: dict[int, Query]

    def __new__(cls, text: str, called: str = "") -> Query:
        names: dict[str, int] = {}
        made = super().__new__(cls, text)
        made.sent = _PARAMETER.sub(lambda match: f"${names.setdefault(match[1], len(names) + 1)}", text).encode()
        made.names = tuple(names)
        made.arrays = dict(_ARRAY.findall(text))
        made.called = called.encode()
        made.silent = called.rpartition(".")[2].startswith(("open", "lock_handle", "relax"))
        made.notifies = "pg_notify(" in text
        rows = _ROWS.search(text)
        parts = rows[2].split("|") if rows else []
        made.columns = [dict(column.strip().split(maxsplit=1) for column in part.split(",")) for part in parts]
        made.optional = sorted(set(_CONDITION.findall(text)))
        made.forms = {}
        return made

    def form(self, values: dict[str, Any]) -> Query:
        """Return the form of the statement for these values, and replace columns that have one value by that value. An
        empty list means NULL in all rows; a list of one item applies to all rows."""
        varied = sum(1 << place for place, name in enumerate(self.optional) if values[name])
        for place, part in enumerate(self.columns[1:], len(self.optional)):
            lists = {name: values[name] or [None] for name in part}
            if all(items.count(items[0]) == len(items) for items in lists.values()):
                values.update((name, items[0]) for name, items in lists.items())
            else:
                varied |= 1 << place
                rows = len(values[next(iter(self.columns[0]))])
                values.update((name, items * rows) for name, items in lists.items() if len(items) < rows)
        if varied not in self.forms:
            self.forms[varied] = Query(self._formed(varied), f"{varied}.{self.called.decode()}")
        return self.forms[varied]

    def _formed(self, varied: int) -> str:
        chosen = {name for place, name in enumerate(self.optional) if varied >> place & 1}
        text = str(self)
        while _PART.search(text):  # parts of parts first
            text = _PART.sub(lambda match: match[2] if match[1] in chosen else "", text)
        if not self.columns:
            return text
        varied >>= len(self.optional)
        parts = [part for place, part in enumerate(self.columns) if place == 0 or varied >> place - 1 & 1]
        arrays = {name: type for part in parts for name, type in part.items()}
        values = [f":{n}::{t} AS {n}" for part in self.columns for n, t in part.items() if n not in arrays]
        if not varied and _MATCHES.search(text):
            text = _MATCHES.sub(rf"= ANY (:\2::{next(iter(arrays.values()))}[])", text)
            return _ROWS.sub(rf"(SELECT {', '.join(values)}) \1", text)
        listed = ", ".join(f":{name}::{type}[]" for name, type in arrays.items())
        shown = ", ".join([*(f"v.{name}" for name in arrays), *values])
        text = _MATCHES.sub(r"BETWEEN \1 AND \1", text)
        return _ROWS.sub(rf"(SELECT {shown} FROM unnest({listed}) v({', '.join(arrays)})) \1", text)


Call = tuple[Query, Mapping[str, Any]]


def pack(query: Query, values: Mapping[str, Any]) -> tuple[Query, list[bytes | None], list[Format]]:
    """Prepare a call for sending. Returns the form of the statement, its encoded parameters, and their formats."""
    if query.columns or query.optional:
        values = dict(values)
        query = query.form(values)
    arrays = query.arrays
    packed = [
        _array(values[name], arrays[name]) if name in arrays else _DUMPS[type(value := values[name])](value)
        for name in query.names
    ]
    return query, [value for value, _ in packed], [form for _, form in packed]


def _array(items: Sequence[Any], kind: str) -> Encoded:
    """Encode an array in binary, because the server reads that faster."""
    oid, element = _ELEMENTS[kind]
    packed = [_NULL if item is None else element(item) for item in items] if None in items else map(element, items)
    return _HEAD.pack(1, 0, oid, len(items), 1) + b"".join(packed), _BINARY


# Single numbers are sent as text, so that the server infers their type.
_DUMPS: dict[type, Callable[[Any], Encoded]] = {
    type(None): lambda value: (None, _TEXT),
    bool: lambda value: (b"1" if value else b"0", _TEXT),
    int: lambda value: (b"%d" % value, _TEXT),
    float: lambda value: (repr(value).encode(), _TEXT),
    str: lambda value: (value.encode(), _BINARY),
    bytes: lambda value: (value, _BINARY),
}


class Wire:
    """Sends statements through a connection of psycopg, and tracks which of them are prepared there."""

    prepares = False

    def __init__(self, pgconn: PGconn) -> None:
        self.pgconn = pgconn
        self.prepared: set[bytes] = set()
        self._results = Transformer()

    def run(self, calls: Sequence[Call]) -> list[list[Row]]:
        """Send statements together. Returns the rows of each but the silent ones. Outside of a transaction they form
        one."""
        try:
            return self._run(calls)
        except (InvalidSqlStatementName, DuplicatePreparedStatement) as error:  # somebody has deallocated them
            self.prepared.clear()
            if self.pgconn.transaction_status == TransactionStatus.INERROR:  # `undone` deallocates them
                raise SerializationFailure("prepared statements were lost in a transaction") from error
            self._run([_DEALLOCATE])
            return self._run(calls)

    def _run(self, calls: Sequence[Call]) -> list[list[Row]]:
        pgconn, prepared = self.pgconn, self.prepared
        if len(calls) == 1 and calls[0][0].called in prepared:  # a put is a tenth faster without a pipeline
            query, values, formats = pack(*calls[0])
            pgconn.send_query_prepared(query.called, values, formats, _BINARY)
            result = wait(execute(pgconn), pgconn.socket, _INTERVAL)[-1]
            if result.status == _FAILED:
                raise error_from_result(result)
            return [self._loaded(result)]
        expected: list[bytes | Query] = []  # the name of a statement to prepare, or a query to run
        pgconn.enter_pipeline_mode()
        for call in calls:
            query, values, formats = pack(*call)
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
        wait(send(pgconn), pgconn.socket, _INTERVAL)
        answers, failure = list[list[Row]](), None
        for what in expected:
            result = wait(fetch_many(pgconn), pgconn.socket, _INTERVAL)[-1]
            if failure is not None:
                pass
            elif result.status == _FAILED:
                failure = error_from_result(result)
            elif isinstance(what, bytes):
                prepared.add(what)
            elif not what.silent:
                answers.append(self._loaded(result))
        wait(fetch_many(pgconn), pgconn.socket, _INTERVAL)  # the end of the pipeline
        pgconn.exit_pipeline_mode()
        if failure is not None:
            raise failure
        return answers

    def _loaded(self, result: PGresult) -> list[Row]:
        if result.status != _ROWS_CAME:
            return [(result.command_tuples or 0,)]
        self._results.set_pgresult(result)
        return self._results.load_rows(0, result.ntuples, tuple)


class Link(psycopg.Connection[Row], Wire):
    """A connection that penstock opened."""

    def __init__(self, pgconn: PGconn) -> None:
        psycopg.Connection.__init__(self, pgconn)
        Wire.__init__(self, pgconn)
        self._readable = Selector()
        self._readable.register(pgconn.socket, READABLE)
        self.each: Sequence[Call] = ()  # statements sent before those of every call
        self.returned = 0.0  # when it became idle

    def hung_up(self) -> bool:
        """Return whether the server closed the idle connection. Only polls the socket, where nothing else can
        arrive."""
        return bool(self._readable.select(0))

    def run(self, calls: Sequence[Call]) -> list[list[Row]]:
        return super().run([*self.each, *calls])[len(self.each) :]

    def begin(self, *, snapshot: bool) -> None:
        """Begin a transaction. If the client stalls, the server soon ends it and releases its locks."""
        begin = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY" if snapshot else "BEGIN"
        idle = "SET LOCAL idle_in_transaction_session_timeout = '10s'"
        self._run([(Query(begin), {}), (Query(idle), {})])

    def finish(self) -> None:
        """Commit the transaction."""
        self._run([_COMMIT])

    def undone(self) -> bool:
        """Roll back an open transaction after an error. Returns False if the connection broke."""
        if self.pgconn.transaction_status in (TransactionStatus.INTRANS, TransactionStatus.INERROR):
            with suppress(psycopg.Error):
                self._run([(Query("ROLLBACK"), {}), *([] if self.prepared else [_DEALLOCATE])])
        return self.pgconn.transaction_status == TransactionStatus.IDLE

    # for the database of a pool

    def vault_rows(self, sql: str, arguments: Sequence[object] = (), *, alone: bool = False) -> list[Row]:
        """Run one statement with values for its `%s`. Returns its rows, or how many rows it changed. With `alone`, the
        statement is its own transaction; otherwise it begins one."""
        begun = alone or self.pgconn.transaction_status == TransactionStatus.INTRANS
        calls: list[Call] = [_vault_call(sql, arguments)]
        return self.run(calls if begun else [_BEGIN, *calls])[-1]

    def change(self, sql: str, arguments: Sequence[object] = ()) -> int:
        """Run one statement. Returns how many rows it changed."""
        rows = self.vault_rows(sql, arguments)
        return int(rows[0][0] or 0) if rows else 0

    def finish_with(
        self, writes: Sequence[tuple[str, Sequence[Sequence[object]]]], guard: tuple[str, Sequence[object]] | None
    ) -> None:
        """Run each statement for each of its rows and commit, in one round trip. One INSERT inserts all of its rows.
        The statement `guard` must change a row."""
        calls: list[Call] = []
        if guard:
            sql, arguments = guard
            calls += [_BEGIN, _vault_call(f"WITH c AS ({sql} RETURNING 1) SELECT 1 / count(*) FROM c", arguments)]
        for sql, rows in writes:
            head, *tail = _VALUES.split(sql)
            if tail:
                types = ", ".join(f"%s::{'bigint' if isinstance(value, int) else 'bytea'}[]" for value in rows[0])
                columns = [list(column) for column in zip(*rows, strict=True)]
                calls.append(_vault_call(f"{head}SELECT * FROM unnest({types}){tail[0]}", columns))
            else:
                calls += [_vault_call(sql, row) for row in rows]
        self.run([*calls, _COMMIT])


_BEGIN: Call = Query("BEGIN"), {}
_COMMIT: Call = Query("COMMIT"), {}
_DEALLOCATE: Call = Query("DEALLOCATE ALL"), {}
_VALUES = re.compile(r"VALUES \([%s, ]+\)")


def _vault_call(sql: str, arguments: Sequence[object]) -> Call:
    return _vault_query(sql), {f"a{place}": value for place, value in enumerate(arguments)}


@lru_cache(maxsize=64)
def _vault_query(sql: str) -> Query:
    """Return the query of a statement. It is prepared unless it has a list of ids or no parameters (CREATE TABLE)."""
    first, *others = sql.split("%s")
    text = first + "".join(f":a{place}{part}" for place, part in enumerate(others))
    return Query(text, "" if " IN (" in sql or not others else f"vault_{hash(sql):x}")
