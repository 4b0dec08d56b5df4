"""A broker's verbs inside the caller's own transaction: the commit stores their changes, a rollback undoes them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Unpack, cast

from penstock.broker.group_handle import Group
from penstock.broker.tube import TaskOrId, Tube
from penstock.broker.tube_factory import open_tube
from penstock.core.names import kind_of
from penstock.core.options import TimedOptions, TubeOptions
from penstock.core.options import Tube as StoredTube
from penstock.core.results import Effects
from penstock.core.task import Entry, Record, Task
from penstock.engine.store import Store
from penstock.errors import UnsupportedOption
from penstock.operations.operation import Operation, StoreOp
from penstock.runtime.wait_queue import Topic

if TYPE_CHECKING:
    from penstock.broker.session import SessionHandle
    from penstock.runtime.runtime import BrokerRuntime


class BoundBroker:
    """The result of `broker.bind(connection)`: tubes whose puts and acks are part of that connection's transaction.

    Blocked takes see them after the commit, as they see those of another process. on_change is not called.
    """

    def __init__(self, store: Store, session_handle: SessionHandle) -> None:
        self._runtime = cast("BrokerRuntime", _TransactionRuntime(store))
        self._session_handle = session_handle

    def tube(self, name: str, kind: str | None = None, **options: Unpack[TubeOptions]) -> BoundTube:
        """Open a tube, as broker.tube does. A rollback undoes its creation."""
        return BoundTube(open_tube(self._runtime, self._session_handle, name, kind, options))


class BoundTube:
    """A tube inside a transaction."""

    def __init__(self, tube: Tube) -> None:
        #: Internal: the tube itself.
        self.tube = tube

    @property
    def name(self) -> str:
        """The tube's name."""
        return self.tube.name

    def put(self, data: object, **options: Unpack[TimedOptions]) -> Task:
        """Put one task, as Tube.put does; a full tube raises TubeFull at once, because a transaction must not wait."""
        return self.tube.put_many([(data, {})], **options)[0]

    def put_many(self, items: Iterable[object], **shared: Unpack[TimedOptions]) -> list[Task]:
        """Put many tasks, as Tube.put_many does."""
        return self.tube.put_many(items, **shared)

    def ack(self, task_or_id: TaskOrId, result: object = None) -> None:
        """Ack a task that this broker's session holds."""
        self.tube.ack(task_or_id, result)

    def ack_many(self, tasks: Iterable[TaskOrId]) -> list[bool] | list[str]:
        """Ack each task that this broker's session holds, as Tube.ack_many does."""
        return self.tube.ack_many(tasks)

    def group(self, name: str) -> Group:
        """Open a group inside the transaction, with all its verbs except `wait`, which must be called outside."""
        return self.tube.group(name)


def library_of(connection: object) -> str:
    """The name of the package that a connection comes from."""
    return type(connection).__module__.partition(".")[0]


def driver_connection(connection: Any) -> Any:
    """The driver's own connection behind one of SQLAlchemy (also a session) or Django; any other is returned as it is.

    SQLAlchemy begins a transaction here if it has none, as it does at a statement: otherwise its commit does nothing.
    """
    match library_of(connection):
        case "sqlalchemy":
            sync = getattr(connection, "sync_connection", connection)  # that of an AsyncConnection
            if hasattr(sync, "sync_session") or not hasattr(sync, "in_transaction"):
                raise UnsupportedOption(
                    f"bind was given {kind_of(connection)}: give a Connection, a Session or an AsyncConnection, "
                    "such as that of `await session.connection()`"
                )
            if callable(sync.connection):  # a session
                sync = sync.connection()
            if not sync.in_transaction():
                sync.begin()
            return sync.connection.driver_connection
        case "django" if hasattr(connection, "ensure_connection"):
            connection.ensure_connection()
            return connection.connection
    return connection


class _TransactionRuntime:
    """The runtime of a bound Tube: wakes and calls nobody, because the caller has not committed yet."""

    is_stale = False

    def __init__(self, store: Store) -> None:
        self.store = store

    def add_tube(self, handle: object) -> None:
        """Do nothing: the handle lives no longer than the transaction."""

    def plain_put(self, tube: StoredTube, entry: Entry) -> None:
        """Return no fast path: bound puts go through put_many."""

    def has_listener(self, tube: StoredTube) -> bool:
        return False

    def publish(self, effects: Effects, tube: StoredTube | None = None, records: Sequence[Record | None] = ()) -> None:
        pass

    def note_deadline(self, topics: Sequence[Topic], wait_ms: int | None) -> None:
        pass

    def reap_if_due(self) -> bool:
        return False

    def apply_due(self, tube: StoredTube) -> None:
        while self.store.advance(tube).more:
            pass

    def wait_for(self, topic: Topic, tube: StoredTube, look: object, timeout: float | None) -> Operation[None]:
        raise UnsupportedOption("a transaction must not wait: commit it, and wait with the broker's own tube")

    def put_when_not_full(self, tube: StoredTube, put: StoreOp, timeout: float | None) -> Operation[list[Record]]:
        self.apply_due(tube)
        records: list[Record] = yield put
        return records
