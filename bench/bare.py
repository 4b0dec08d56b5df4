"""The limit: a realistic task table driven by apsw alone, with the settings that penstock gives its own.

No leases, counters, sessions, deadlines or checks: what SQLite and the driver cost, and nothing else.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import apsw

# The columns of penstock_task. The indexes end with the key, so ready is in id order; due and owner hold only
# rows that have one, as a careful author would write them.
_SCHEMA = """
CREATE TABLE task (
    key INTEGER PRIMARY KEY, tube INTEGER NOT NULL, state TEXT NOT NULL, rank1 ANY NOT NULL, rank2 ANY NOT NULL,
    pri INTEGER NOT NULL, utube TEXT, attempts INTEGER NOT NULL, lease INTEGER NOT NULL, created INTEGER NOT NULL,
    taken INTEGER, expires INTEGER, at INTEGER, ttr INTEGER, max_attempts INTEGER, owner INTEGER, reason TEXT,
    callback TEXT, data BLOB NOT NULL
) STRICT;
CREATE INDEX ready ON task (state, pri);
CREATE INDEX due ON task (at) WHERE at IS NOT NULL;
CREATE INDEX owner ON task (owner) WHERE owner IS NOT NULL;
"""
_INSERT = """INSERT INTO task (tube, state, rank1, rank2, pri, attempts, lease, created, data)
VALUES (1, 'r', 0, 0, 0, 0, 0, ?, ?)"""
_READY = "SELECT key, attempts, lease, created, data FROM task WHERE state = 'r' ORDER BY pri, key LIMIT ?"
_TAKE = """UPDATE task SET state = 't', attempts = attempts + 1, lease = lease + 1, taken = ?, owner = 1
WHERE key = ?"""
_DELETE = "DELETE FROM task WHERE key = ?"


class BareTable:
    """put and claim as fast as apsw does them, one transaction each."""

    def __init__(self, path: Path, synchronous: str) -> None:
        self._db = apsw.Connection(str(path))
        self._db.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
        self._db.set_busy_timeout(10_000)
        self._db.pragma("journal_mode", "wal")
        self._db.execute("PRAGMA temp_store = MEMORY; PRAGMA cache_size = -4096")
        self._db.execute(f"PRAGMA synchronous = {synchronous}")
        self._db.execute(_SCHEMA)

    def put(self, data: bytes) -> None:
        execute = self._db.execute
        execute("BEGIN IMMEDIATE")
        execute(_INSERT, (_now(), data))
        execute("COMMIT")

    def put_many(self, items: Sequence[bytes]) -> None:
        self._db.execute("BEGIN IMMEDIATE")
        now = _now()
        self._db.executemany(_INSERT, [(now, data) for data in items])
        self._db.execute("COMMIT")

    def take(self) -> int | None:
        execute = self._db.execute
        execute("BEGIN IMMEDIATE")
        row = execute(_READY, (1,)).fetchone()
        if row is not None:
            execute(_TAKE, (_now(), row[0]))
        execute("COMMIT")
        return None if row is None else int(row[0])

    def ack(self, key: int) -> None:
        execute = self._db.execute
        execute("BEGIN IMMEDIATE")
        execute(_DELETE, (key,))
        execute("COMMIT")

    def take_many(self, count: int) -> list[int]:
        self._db.execute("BEGIN IMMEDIATE")
        keys: list[int] = [row[0] for row in self._db.execute(_READY, (count,))]
        now = _now()
        self._db.executemany(_TAKE, [(now, key) for key in keys])
        self._db.execute("COMMIT")
        return keys

    def ack_many(self, keys: Sequence[int]) -> None:
        self._db.execute("BEGIN IMMEDIATE")
        self._db.executemany(_DELETE, [(key,) for key in keys])
        self._db.execute("COMMIT")

    def close(self) -> None:
        self._db.close()


def _now() -> int:
    return time.time_ns() // 1_000_000
