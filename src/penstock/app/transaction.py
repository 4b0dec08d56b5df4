"""Puts, and the ack of the current task, inside the program's own database transaction."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, Unpack

from penstock.app.arguments import CallOptions
from penstock.app.handle import Handle
from penstock.app.put_signature import with_options
from penstock.app.tracing import PutSpan
from penstock.broker.bind import driver_connection, library_of
from penstock.broker.tube import Tube
from penstock.broker.tube_factory import make_handle
from penstock.core.entry import encode_payload
from penstock.core.lifecycle import Move
from penstock.core.names import kind_of
from penstock.core.task import Status, record_of, tube_of
from penstock.errors import NotTaken, UnsupportedOption

if TYPE_CHECKING:
    from penstock.app.current import CurrentTask
    from penstock.app.handler import Given, Handler

P = ParamSpec("P")
R = TypeVar("R")


class BoundHandler(Generic[P, R]):
    """A handler bound to a connection by `send.bind(connection)`: its puts are part of the connection's transaction."""

    def __init__(self, handler: Handler[P, R, object], connection: object, options: CallOptions) -> None:
        self._handler = handler
        self._connection = connection
        self._options = options

    def options(self, **options: Unpack[CallOptions]) -> BoundHandler[P, R]:
        """The same bound handler with more put options."""
        self._handler.must_be_options("options", options)
        return BoundHandler(self._handler, self._connection, {**self._options, **options})

    @with_options
    def put(self, /, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Put a task that calls the function with these arguments; a full tube raises TubeFull at once."""
        return self._put([self._handler.make_call(args, kwargs, self._options).given])[0]

    def put_many(self, items: Iterable[object], **shared: Unpack[CallOptions]) -> list[Handle[R]]:
        """Like the handler's `put_many`, inside the transaction."""
        return self._put(self._handler.calls(items, {**self._options, **shared}))

    def _put(self, calls: list[Given]) -> list[Handle[R]]:
        handler, broker = self._handler, self._handler.connection.broker
        if handler.connection.eager is not None:
            return handler.put_calls(calls)
        bound = broker.bind(self._connection).tube(handler.rules.tube)
        with PutSpan(handler.name, bound.name, len(calls)) as span:
            tasks = bound.put_many([handler.make_call_item(bound.tube, call, span.fields) for call in calls])
        outside = make_handle(broker.runtime, broker.session_handle, bound.tube.stored)
        handles = [Handle(handler, outside, task.id) for task in tasks]
        handler.hooks.was_put(handles)
        return handles


class TaskTransaction:
    """A block whose SQL, bound puts and the ack of the task are committed together.

    It begins and commits a transaction; if one is already open, the caller commits it.
    """

    def __init__(self, task: CurrentTask, connection: Any, result: object) -> None:
        self._task = task
        self._connection = connection
        self._result = result
        self._block: Any = None

    def __enter__(self) -> None:
        self._task.unsure = _is_open(self._connection)
        _tube(self._task)  # a child process connects here, not inside the transaction
        self._block = _block(self._connection, nested=self._task.unsure)
        self._block.__enter__()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            if error is None:
                _ack(self._task, self._connection, self._result)
                self._task.unsure |= _rolls_back(self._connection)
        except BaseException as failed:
            self._undo()
            self._block.__exit__(type(failed), failed, failed.__traceback__)
            raise
        try:
            self._block.__exit__(kind, error, at)
        except BaseException:
            self._undo()
            raise

    async def __aenter__(self) -> None:
        if not _is_async(self._connection):
            self.__enter__()
            return
        self._task.unsure = _is_open(self._connection)
        self._block = _block(self._connection, nested=self._task.unsure)
        await self._block.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        if not _is_async(self._connection):
            self.__exit__(kind, error, at)
            return
        try:
            if error is None:
                await asyncio.to_thread(_ack, self._task, self._connection, self._result)
        except BaseException as failed:
            self._undo()
            await self._block.__aexit__(type(failed), failed, failed.__traceback__)
            raise
        try:
            await self._block.__aexit__(kind, error, at)
        except BaseException:
            self._undo()
            raise

    def _undo(self) -> None:
        """Mark the task as taken again, because the ack is rolled back: the worker releases it."""
        self._task.status = Status.TAKEN


def _ack(task: CurrentTask, connection: object, result: object) -> None:
    """Ack the task inside the connection's transaction. Raises NotTaken if its lease is lost."""
    tube, record = _tube(task), record_of(task)
    if task.eager:
        tube.ack(task, result)
        return
    session = tube.session_handle.number if tube is tube_of(task) else record.owner
    payload = None if result is None else encode_payload(tube.stored, "result", result)
    move = Move("ack", record.id, session, record.lease, result=payload, seen=record)
    if tube.runtime.store.bind(driver_connection(connection)).settle(tube.stored, [move]).records[0] is None:
        raise NotTaken(f"the lease of task {task.id} of tube {task.tube} is lost: the transaction is rolled back")
    task.status = Status.DONE


def _tube(task: CurrentTask) -> Tube:
    """The task's tube, with its store."""
    handle: Any = tube_of(task)
    # In a child process, the task's verbs are sent to the worker; the child's app has its own connection.
    return handle if isinstance(handle, Tube) else handle.connection.tube(task.tube)


def _is_async(connection: object) -> bool:
    return library_of(connection) in ("psycopg", "sqlalchemy") and hasattr(connection, "__aenter__")


def _is_open(connection: Any) -> bool:
    """Whether a transaction is open on the connection; then the caller commits it."""
    match library_of(connection):
        case "psycopg":
            return bool(connection.info.transaction_status)
        case "apsw":
            return bool(connection.in_transaction)
        case "pymysql":
            return bool(connection.server_status & 1)
        case "sqlalchemy" if hasattr(connection, "in_transaction"):
            return bool(connection.in_transaction())
        case "django" if hasattr(connection, "in_atomic_block"):
            return bool(connection.in_atomic_block)
    raise UnsupportedOption(
        f"transaction cannot use {kind_of(connection)}: "
        "give a connection of psycopg, apsw, pymysql, SQLAlchemy or Django"
    )


def _rolls_back(connection: Any) -> bool:
    """Whether the end of the block rolls it back without raising: Django does, after `set_rollback` and after an error
    in a block within it."""
    return library_of(connection) == "django" and bool(connection.needs_rollback)


def _block(connection: Any, *, nested: bool) -> Any:
    """A new transaction on the connection, or a savepoint in the open one."""
    match library_of(connection):
        case "psycopg":
            return connection.transaction()
        case "apsw":
            return _Statements(connection.execute, nested, "BEGIN IMMEDIATE")
        case "sqlalchemy":
            return connection.begin_nested() if nested else connection.begin()
        case "django":
            return sys.modules["django.db.transaction"].atomic(using=connection.alias)  # loaded with every connection
    return _Statements(connection.query, nested, "BEGIN")


class _Statements:
    """A transaction or a savepoint, controlled by SQL statements."""

    def __init__(self, execute: Any, nested: bool, begin: str) -> None:
        self._execute = execute
        self._begin = "SAVEPOINT penstock_task" if nested else begin
        self._commit = ["RELEASE SAVEPOINT penstock_task"] if nested else ["COMMIT"]
        self._rollback = ["ROLLBACK TO SAVEPOINT penstock_task", *self._commit] if nested else ["ROLLBACK"]

    def __enter__(self) -> None:
        self._execute(self._begin)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for statement in self._commit if error is None else self._rollback:
            self._execute(statement)
