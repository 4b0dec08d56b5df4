"""The database behind a pool: every task with its data, and everything else that an index is built from. No Redis here.

The row of a tube has the version up to which the tube is written. A write of an older version fails, so a writer never
overwrites newer changes with older ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, Protocol, TypeVar
from uuid import uuid4

import msgspec

from penstock.engine.port import Conflict
from penstock.errors import StoreBusy
from penstock.store.sql.migrations import Migration, must_fit
from penstock.store.sql.sql_queries import Write

T = TypeVar("T")
Rows = list[tuple[Any, ...]]
# The layout of the tables and records. A pool with another layout is refused, because it would be misread.
FORMAT = 6
LAYOUTS = [Migration(FORMAT, "layout", "")]
# How often a write is tried that other transactions interfere with.
_TRIES = 6
# A version in the vault: the epoch, and below it this many bits of the version in Redis.
_VERSION_BITS = 44


class Session(Protocol):
    """One open transaction."""

    def rows(self, sql: str, arguments: Sequence[object] = ()) -> Rows:
        """The rows of one statement."""

    def change(self, sql: str, arguments: Sequence[object] = ()) -> int:
        """Run one statement. Returns how many rows it changed."""


class Database(Protocol):
    """What a vault needs from PostgreSQL, MySQL or SQLite."""

    #: The database's name in messages, without a password.
    label: str
    #: The largest data that a row can hold.
    most_bytes: int
    #: The queries of this folder's queries.sql, in the dialect of this database.
    queries: SimpleNamespace

    def read(self, sql: str, arguments: Sequence[object]) -> Rows:
        """Run one query without waiting for locks. Returns its rows."""

    def run(self, work: Callable[[Session], T]) -> T:
        """Call `work` in one transaction, again if the transaction is retried."""

    def write(self, guard: tuple[str, Sequence[object]], writes: Sequence[Write]) -> None:
        """Run a statement and these writes as one transaction, in one round trip. Raises Conflict if the statement
        changes no row, or if another transaction interfered."""

    def promise(self) -> str:
        """Describe what a commit survives with the database's current settings."""

    def close(self) -> None:
        """Close the database."""


class Shelf(msgspec.Struct, frozen=True):
    """A tube in the vault. `beside`: what the tube stores besides its tasks; None until the first write. `written`: the
    version up to which it is written."""

    no: int
    declared: bytes
    beside: bytes | None
    written: int


class Changes(msgspec.Struct):
    """What changed in a tube since the last write to the vault. A task's data is None if the vault has it already."""

    tasks: list[tuple[int, bytes, bytes | None]] = []
    gone: list[int] = []
    links: list[tuple[bytes, bytes]] = []
    unlinked: list[bytes] = []


class Vault:
    """The tables of one pool."""

    def __init__(self, database: Database) -> None:
        self._db = database
        self._ask = database.queries
        self.label = database.label
        self.most_bytes = database.most_bytes
        #: The queries, in the dialect of the database.
        self.promise, self.close = database.promise, database.close
        self.name = self._open()

    def _open(self) -> str:
        def create(session: Session) -> Rows:
            for name, sql in vars(self._ask).items():
                if name.startswith("create_"):
                    session.change(sql)
            session.change(self._ask.add_store, (uuid4().hex.encode(), FORMAT))
            return session.rows(self._ask.get_store)

        [(name, written)] = self._db.run(create)
        must_fit(f"the pool in {self.label}", written, LAYOUTS, new="database")
        return bytes(name).decode()

    # epochs

    def epoch(self) -> int:
        """The current epoch: how often the index was built."""
        return int(self._db.read(self._ask.get_epoch, ())[0][0])

    def raise_epoch(self, known: int) -> bool:
        """Begin the epoch after `known`. Returns False if another process has begun it."""
        return self._db.run(lambda session: session.change(self._ask.raise_epoch, (known,))) == 1

    # tubes

    def add_tube(self, name: str, declared: bytes) -> tuple[Shelf, bool]:
        """Create the tube if there is none of that name. Returns the tube, and whether this call created it."""

        def add(session: Session) -> tuple[Shelf, bool]:
            made = session.change(self._ask.add_tube, (name.encode(), declared)) == 1
            return _shelves(session.rows(self._ask.find_tube, (name.encode(),)))[0], made

        return self._db.run(add)

    def tube(self, key: int | str) -> Shelf | None:
        """The tube of that number or name."""
        query, value = (self._ask.get_tube, key) if isinstance(key, int) else (self._ask.find_tube, key.encode())
        return next(iter(_shelves(self._db.read(query, (value,)))), None)

    def tubes(self) -> list[Shelf]:
        """All tubes."""
        return _shelves(self._db.read(self._ask.all_tubes, ()))

    def locked(self, no: int, work: Callable[[Session, Shelf], T]) -> T | None:
        """Call `work`, perhaps twice, while the tube's row is locked. Returns None if there is no such tube."""

        def run(session: Session) -> T | None:
            found = _shelves(session.rows(self._ask.lock_tube, (no,)))
            return work(session, found[0]) if found else None

        return self._db.run(run)

    def drop_tube(self, no: int, drop: Callable[[], T]) -> T | None:
        """Remove a tube with everything in it, after `drop` has removed its index, unless `drop` raises."""
        dropped: list[T] = []

        def remove(session: Session, _: Shelf) -> T:
            if not dropped:  # else the transaction is a retry
                dropped.append(drop())
            for query in (self._ask.drop_tasks, self._ask.drop_links, self._ask.drop_tube):
                session.change(query, (no,))
            return dropped[0]

        return self.locked(no, remove)

    def erase_tube(self, no: int, version: int) -> None:
        """Remove the contents of a tube, and refuse writes up to that version from now on."""

        def erase(session: Session, shelf: Shelf) -> None:
            for query in (self._ask.drop_tasks, self._ask.drop_links):
                session.change(query, (no,))
            session.change(self._ask.set_written, (max(version, shelf.written), no))

        self.locked(no, erase)

    def begin_epoch(self, no: int, epoch: int) -> Shelf | None:
        """Refuse writes of earlier epochs to the tube from now on. Returns the tube; None if there is none."""

        def begin(session: Session, shelf: Shelf) -> Shelf:
            written = vault_version(epoch, shelf.written % 2**_VERSION_BITS)
            session.change(self._ask.set_written, (max(written, shelf.written), no))
            return shelf

        return self.locked(no, begin)

    def rename(self, no: int, declare: Callable[[Shelf], tuple[str, bytes]]) -> bool:
        """Give a tube the name and the declaration that `declare` makes from its row. Returns False if the tube is
        gone, or if another tube has the name."""

        def write(session: Session, shelf: Shelf) -> bool:
            name, declared = declare(shelf)
            if any(row[0] != no for row in session.rows(self._ask.find_tube, (name.encode(),))):
                return False
            session.change(self._ask.rename_tube, (name.encode(), declared, no))
            return True

        return bool(self.locked(no, write))

    # tasks

    def write(self, no: int, beside: bytes, pages: Sequence[Changes], *, known: int, version: int) -> int | None:
        """Write what changed after the version `known` up to `version`, in one round trip.

        Returns `version`. If the vault has another one that is not between the two, writes nothing and returns that;
        None if there is no such tube.
        """
        guard = self._ask.set_beside, (beside, version, no, known, version)
        writes = [write for changes in pages for write in self._writes(no, changes)]
        for _ in range(_TRIES):
            try:
                self._db.write(guard, writes)
                return version
            except Conflict:
                shelf = self.tube(no)
                if shelf is None or not known <= shelf.written < version:
                    return None if shelf is None else shelf.written
        raise StoreBusy(f"{self.label} has rows that other transactions kept locked: try again")

    def _writes(self, no: int, changes: Changes) -> Iterator[Write]:
        if changes.tasks:
            yield self._ask.save_tasks, [(no, *task) for task in changes.tasks]
        if changes.links:
            yield self._ask.save_links, [(no, *link) for link in changes.links]
        if changes.gone:
            yield self._ask.remove_tasks, [(no, changes.gone)]
        if changes.unlinked:
            yield self._ask.remove_links, [(no, changes.unlinked)]

    def data(self, no: int, ids: Sequence[int]) -> dict[int, bytes]:
        """The data of these tasks by id, without those that are not stored."""
        rows = self._db.read(self._ask.read_data, (no, list(ids)))
        return {id: bytes(data) for id, data in rows if data is not None}

    def count(self) -> int:
        """The number of tasks in all tubes."""
        return int(self._db.read(self._ask.count_tasks, ())[0][0])

    def tasks(self, no: int, page: int) -> Iterator[list[tuple[int, bytes]]]:
        """The records of a tube in pages, in id order."""
        pages = self._pages(self._ask.scan_tasks, no, 0, page)
        return ([(id, bytes(record)) for id, record in rows] for rows in pages)

    def links(self, no: int, page: int) -> Iterator[list[tuple[bytes, bytes]]]:
        """The outcomes, errors and groups of a tube in pages, in name order."""
        pages = self._pages(self._ask.scan_links, no, b"", page)
        return ([(bytes(name), bytes(value)) for name, value in rows] for rows in pages)

    def _pages(self, query: str, no: int, after: object, page: int) -> Iterator[Rows]:
        while rows := self._db.read(query, (no, after, page)):
            yield rows
            after = rows[-1][0]


def _shelves(rows: Rows) -> list[Shelf]:
    return [
        Shelf(no, bytes(declared), None if beside is None else bytes(beside), written)
        for no, declared, beside, written in rows
    ]


def vault_version(epoch: int, version: int) -> int:
    """Combine an epoch and a version in Redis into a version of the vault, above all versions of earlier epochs."""
    return (epoch << _VERSION_BITS) + version


def epoch_of(version: int) -> int:
    """The epoch of a version of the vault."""
    return version >> _VERSION_BITS
