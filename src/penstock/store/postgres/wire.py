"""Statements as libpq sends them: several in one round trip and one transaction, without a cursor of psycopg's, which
takes more time than the server does."""

from __future__ import annotations

import re
import select
from collections.abc import Callable, Mapping, Sequence
from struct import Struct
from typing import Any

import psycopg
from psycopg.abc import AdaptContext, Buffer
from psycopg.adapt import Loader, Transformer
from psycopg.errors import DuplicatePreparedStatement, InvalidSqlStatementName, error_from_result
from psycopg.pq import ExecStatus, Format
from psycopg.pq.abc import PGconn, PGresult

Row = tuple[Any, ...]

_TEXT_OID, _BYTEA_OID, _LETTER_OID = 25, 17, 18
_PARAMETER = re.compile(r"(?<!:):([a-z]\w*)")
_HEAD = Struct("!iiIii")  # dimensions, whether any is NULL, the type, how many, the number of the first
_length = Struct("!i").pack
_NULL = (_length(-1),)


class Query(str):
    """A statement, its parameters' names in their order, and what a connection that prepared it calls it."""

    sent: bytes
    names: tuple[str, ...]
    called: bytes
    silent: bool  # what it answers is nothing to read

    def __new__(cls, text: str, called: str = "") -> Query:
        names: dict[str, int] = {}

        def place(match: re.Match[str]) -> str:
            return f"${names.setdefault(match[1], len(names) + 1)}"

        made = super().__new__(cls, text)
        made.sent = _PARAMETER.sub(place, text).encode()
        made.names = tuple(names)
        made.called = called.encode()
        made.silent = called.rpartition(".")[2].startswith(("open", "lock_", "relax"))
        return made


class Packed:
    """Values as they are sent, in the order of a statement's parameters, for a call that is made often."""

    __slots__ = ("_places", "formats", "given")

    def __init__(self, query: Query, values: Mapping[str, object]) -> None:
        packed = [dumped(values[name]) for name in query.names]
        self.given = [value for value, _ in packed]
        self.formats = [form for _, form in packed]
        self._places = {name: place for place, name in enumerate(query.names)}

    def but(self, **values: object) -> Packed:
        """The same with some other values."""
        other = object.__new__(Packed)
        other.given, other.formats, other._places = self.given.copy(), self.formats.copy(), self._places
        for name, value in values.items():
            place = self._places[name]
            other.given[place], other.formats[place] = dumped(value)
        return other


Call = tuple[Query, Mapping[str, object] | Packed]


def dumped(value: Any) -> tuple[bytes | None, Format]:
    """A parameter. Numbers go as text, whose type the server infers; texts, bytes and arrays of them in binary."""
    return _DUMPS[type(value)](value)


def _array(items: Sequence[Any]) -> tuple[bytes, Format]:
    """One array; the server knows its type from the cast in the statement."""
    first = next((item for item in items if item is not None), None)
    if isinstance(first, str):
        return _blobs(_TEXT_OID, [None if item is None else item.encode() for item in items]), Format.BINARY
    if isinstance(first, bytes):
        return _blobs(_BYTEA_OID, items), Format.BINARY
    listed = ",".join(["NULL" if item is None else str(+item) for item in items])
    return b"{%b}" % listed.encode(), Format.TEXT


def _blobs(oid: int, items: Sequence[bytes | None]) -> bytes:
    head = _HEAD.pack(1, 1, oid, len(items), 1)
    return b"".join([head, *[p for item in items for p in ((_length(len(item)), item) if item is not None else _NULL)]])


_TEXT, _BINARY = Format.TEXT, Format.BINARY
_FAILED, _ROWS = ExecStatus.FATAL_ERROR, ExecStatus.TUPLES_OK
_DUMPS: dict[type, Callable[[Any], tuple[bytes | None, Format]]] = {
    type(None): lambda value: (None, _TEXT),
    bool: lambda value: (b"1" if value else b"0", _TEXT),
    int: lambda value: (b"%d" % value, _TEXT),
    float: lambda value: (repr(value).encode(), _TEXT),
    str: lambda value: (value.encode(), _BINARY),
    bytes: lambda value: (value, _BINARY),
    list: _array,
}


class _LetterLoader(Loader):
    format = Format.BINARY

    def load(self, data: Buffer) -> str:
        return bytes(data).decode()


def adapt(context: AdaptContext) -> None:
    """Let states, which are single letters, come back as text."""
    assert context.adapters is not None
    context.adapters.register_loader(_LETTER_OID, _LetterLoader)


class Link(psycopg.Connection[Row]):
    """A connection that knows which statements were prepared on it, and hears when its server says something."""

    def __init__(self, pgconn: PGconn) -> None:
        super().__init__(pgconn)
        adapt(self)
        self.prepared: set[bytes] = set()
        self.ready = False  # whether it has its settings
        self.ear = select.poll()
        self.ear.register(pgconn.socket, select.POLLIN)
        self._rows = Transformer(self)

    def hung_up(self) -> bool:
        """Whether the server ended the connection while it was idle; a look at the socket, no query.

        To an idle connection that listens to nothing a server says only good-bye.
        """
        return bool(self.ear.poll(0))

    def run(self, calls: Sequence[Call], *, prepare: bool) -> list[list[Row]]:
        """Send these statements at once; what each answers. Outside of a transaction they are one."""
        try:
            return self._run(calls, prepare)
        except (InvalidSqlStatementName, DuplicatePreparedStatement):
            # psycopg lets the server forget them all where it rolls back; nothing was done.
            self.prepared.clear()
            self._run([(Query("DEALLOCATE ALL"), {})], False)
            return self._run(calls, prepare)

    def _run(self, calls: Sequence[Call], prepare: bool) -> list[list[Row]]:
        pgconn, prepared = self.pgconn, self.prepared
        expected: list[bytes | Query] = []  # the name of a statement to prepare, or one to run
        pgconn.enter_pipeline_mode()
        for query, values in calls:
            if type(values) is not Packed:
                values = Packed(query, values)  # type: ignore[arg-type]
            called = query.called
            if not (prepare and called):
                pgconn.send_query_params(query.sent, values.given, None, values.formats, _BINARY)
            else:
                if called not in prepared and called not in expected:
                    pgconn.send_prepare(called, query.sent)
                    expected.append(called)
                pgconn.send_query_prepared(called, values.given, values.formats, _BINARY)
            expected.append(query)
        pgconn.pipeline_sync()
        found = self._answers(expected)
        pgconn.exit_pipeline_mode()
        return found

    def _answers(self, expected: Sequence[bytes | Query]) -> list[list[Row]]:
        pgconn, answers, failure = self.pgconn, list[list[Row]](), None
        for what in expected:
            result = self._next()
            if failure is not None:
                pass
            elif result.status == _FAILED:
                failure = error_from_result(result)
            elif isinstance(what, bytes):
                self.prepared.add(what)
            else:
                answers.append([] if what.silent else self._loaded(result))
            pgconn.get_result()  # the mark between two statements
        synced = self._next()
        assert synced.status == ExecStatus.PIPELINE_SYNC
        if failure is not None:
            pgconn.exit_pipeline_mode()
            raise failure
        return answers

    def _next(self) -> PGresult:
        pgconn = self.pgconn
        while True:
            if not pgconn.is_busy():
                result = pgconn.get_result()
                if result is not None:
                    return result
            elif pgconn.flush():  # more than the socket takes at once
                both = select.poll()
                both.register(pgconn.socket, select.POLLIN | select.POLLOUT)
                both.poll()
                pgconn.consume_input()
            else:
                self.ear.poll()
                pgconn.consume_input()

    def _loaded(self, result: PGresult) -> list[Row]:
        if result.status != _ROWS:
            return [(result.command_tuples or 0,)]
        self._rows.set_pgresult(result)
        return self._rows.load_rows(0, result.ntuples, tuple)
