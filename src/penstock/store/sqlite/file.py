"""SQLite files: URLs, allowed file systems, opening, waiting for the lock, and translating errors to penstock's."""

from __future__ import annotations

import os
import random
import re
import time
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit
from uuid import uuid4

import apsw

from penstock.core.names import safe_url, shown
from penstock.errors import BadValue, SchemaMismatch, StoreBusy, StoreCorrupt, StoreError, StoreFull, StoreUnavailable
from penstock.store.sql.migrations import ANOTHER_SCHEMA
from penstock.system import mounts

# SQLite 3.7.0 to 3.51.2 can corrupt a WAL database when two connections write and checkpoint at once.
_SAFE_SQLITE = (3, 51, 3)
# SQLite's page cache, in front of the system's. A page that is split has the highest page number for a moment, which
# makes the commit search the whole cache. With a cache of 32 MiB, takes and acks of batches cost a third more with a
# million tasks than with ten thousand; with 4 MiB a tenth more, and nothing else became slower.
_CACHE_KIB = 4 * 1024
# The page size of a new file, half the default. A put writes two pages to the log: smaller ones make a put a tenth
# cheaper, a take and ack a sixth.
_PAGE_BYTES = 2048

# How long a transaction waits before StoreBusy.
BUSY_SECONDS = 10.0
# The shortest and longest pause between two tries, in seconds.
Pause = tuple[float, float]
EAGER = (0.0002, 0.002)
# For steps that process more tasks the later they begin: a process that takes or settles a batch lets others go first,
# so the same tasks need fewer syncs. With four putting processes and four workers, 12,000 tasks needed 1,400 commits
# instead of 2,250, and the throughput doubled (`python -m bench --only crowd`).
PATIENT = (0.002, 0.012)

# SQLite's message for a statement whose tables or columns do not exist.
_FOREIGN = re.compile(r"no such (table|column)|has no column|\d+ columns but")


class Location(NamedTuple):
    """The file that a URL names, and whether a commit waits until it is on disk."""

    path: str
    durable: bool


def locate(url: str) -> Location:
    """Parse a sqlite:// URL. Raises BadValue if it is invalid."""
    parts = urlsplit(url)
    path = unquote(parts.path)[1:]
    if parts.netloc or not path or path.startswith(":"):
        raise BadValue(
            f"store URL {safe_url(url)} names no file: use sqlite:///jobs.db (relative), sqlite:////var/jobs.db "
            "(absolute), or memory:// for a queue that ends with the process"
        )
    if parts.fragment:
        raise BadValue(f"store URL {safe_url(url)} has a # in it, which cannot be part of a file name there: write %23")
    level = parameters(url, "durability").get("durability", "full")
    if level not in ("full", "relaxed"):
        raise BadValue(f"parameter durability={level} of store URL {safe_url(url)}: use full or relaxed")
    return Location(os.path.abspath(path), level == "full")


def parameters(url: str, *known: str) -> dict[str, str]:
    """The parameters of a URL. Raises BadValue for an unknown one."""
    given = dict(parse_qsl(urlsplit(url).query, keep_blank_values=True))
    for name in given:
        if name not in known:
            has = ", ".join(known) or "none"
            raise BadValue(f"parameter {shown(name)} of store URL {safe_url(url)} is unknown: use {has}")
    return given


class BusyHandler:
    """Waits for the file's lock in short pauses of random length.

    SQLite's own pauses grow to 100 ms, so the process that has waited longest tries least often. When six processes put
    at the same time, the longest wait was 229 ms with growing pauses, 119 ms with these.
    """

    def __init__(self) -> None:
        self.pause = EAGER
        self._began = 0.0

    def __call__(self, tries: int) -> bool:
        now = time.monotonic()
        if tries == 0:
            self._began = now
        elif now - self._began > BUSY_SECONDS:
            return False
        time.sleep(random.uniform(*self.pause))
        return True


def create_private(path: str) -> None:
    """Create a missing file that only its owner can read; SQLite gives its log the same mode.

    Never opens an existing file: closing it would release the locks that other connections of this process hold on it.
    """
    if os.path.exists(path):
        return
    draft = f"{path}.{uuid4().hex}"
    try:
        os.close(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    except OSError:  # SQLite reports the reason when it opens the file
        return
    try:
        os.link(draft, path)  # unlike rename, does not replace a file that another process has just created
    except OSError:
        pass
    finally:
        os.unlink(draft)


def open_file(path: str, busy: BusyHandler) -> apsw.Connection:
    """Connect to the file; creates it if it is missing."""
    if tuple(int(part) for part in apsw.sqlite_lib_version().split(".")) < _SAFE_SQLITE:
        raise StoreUnavailable(
            f"SQLite {apsw.sqlite_lib_version()} can corrupt WAL databases: "
            "install apsw 3.51.3 or later from its wheel, which includes its own SQLite"
        )
    refuse_network(Path(os.path.realpath(path)).parent)  # follow links: the log is next to the real file
    try:
        create_private(path)
        db = apsw.Connection(path)
        # Query plans must not depend on bound values, else SQLite prepares hot queries again at every call.
        db.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
        db.set_busy_handler(busy)
        db.pragma("page_size", _PAGE_BYTES)
        if _log_ahead(db, busy) != "wal":
            raise StoreUnavailable(
                f"{path} cannot use write-ahead logging: use a local disk that supports shared memory"
            )
        # With NORMAL, SQLite syncs only in a checkpoint: `Connection` syncs the log after a commit.
        db.execute(f"PRAGMA synchronous = NORMAL; PRAGMA temp_store = MEMORY; PRAGMA cache_size = -{_CACHE_KIB}")
        db.pragma("data_version")  # reads, which creates the log
    except apsw.Error as error:
        raise translated(error, path) from error
    return db


def _log_ahead(db: apsw.Connection, busy: BusyHandler, tries: int = 0) -> object:
    """Use a write-ahead log. Two processes may be opening a new file at once: SQLite does not call the handler then."""
    try:
        return db.pragma("journal_mode", "wal")
    except apsw.BusyError:
        if not busy(tries):
            raise
    return _log_ahead(db, busy, tries + 1)


def refuse_network(path: Path) -> None:
    """Raise StoreUnavailable if the path is on a network file system: WAL needs memory that all processes share."""
    if (kind := mounts.network(path)) is not None:
        raise StoreUnavailable(
            f"{path} is on a network file system ({kind}), where SQLite loses data: "
            "use a local disk, or a server store (postgresql://, mysql://, redis://)"
        )


def translated(error: apsw.Error, path: str) -> StoreError:
    """The penstock error for an error of SQLite; its message says what to do next."""
    if isinstance(error, (apsw.BusyError, apsw.LockedError)):
        return StoreBusy(f"{path} was locked by another process for too long: try again, or end what holds it")
    if isinstance(error, apsw.FullError):
        return StoreFull(f"no space left for {path}: free some and try again; nothing was changed")
    if isinstance(error, (apsw.CorruptError, apsw.NotADBError)):
        return StoreCorrupt(
            f"{path} is damaged or not a SQLite file ({error}): it was left unchanged; restore a backup"
        )
    if isinstance(error, apsw.ReadOnlyError):
        return StoreUnavailable(f"{path} or its folder is read-only: make both writable for this user")
    if isinstance(error, apsw.CantOpenError):
        return StoreUnavailable(f"{path} cannot be opened ({error}): check that its folder exists and is writable")
    if isinstance(error, apsw.IOError):
        return StoreUnavailable(f"reading or writing {path} failed ({error}): check the disk")
    if isinstance(error, apsw.SQLError) and _FOREIGN.search(str(error)):
        return SchemaMismatch(f"{path} has a different schema than this penstock expects ({error}): {ANOTHER_SCHEMA}")
    return StoreError(f"{path}: {error}")
