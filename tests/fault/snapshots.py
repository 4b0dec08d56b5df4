"""Copies of a store, restored later as a backup or a replica without the last writes would be."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import apsw
import psycopg
import redis

from penstock.store.postgres.postgres_connection import locate
from tests.mysql.databases import bare
from tests.servers import running

Restore = Callable[[], None]
TABLES = [
    f"penstock_{name}" for name in ("task", "group", "session", "handle", "counter", "utube", "outcome", "waiter")
]


def snapshot(url: str) -> Restore:
    """Copy the store. Returns a function that restores the copy, with no broker open. Of a pool: its Redis."""
    kinds = {"sqlite": _sqlite, "postgresql": _postgres, "mysql": _mysql, "redis": _redis, "redis+cluster": _redis}
    return kinds[urlsplit(url).scheme](url)


def _sqlite(url: str) -> Restore:
    path = Path(urlsplit(url).path[1:])
    copy = path.with_suffix(".copy")
    source, target = apsw.Connection(str(path)), apsw.Connection(str(copy))
    with target.backup("main", source, "main") as backup:
        backup.step()
    source.close()
    target.close()

    def restore() -> None:
        for left in path.parent.glob(f"{path.name}-*"):
            left.unlink()
        copy.replace(path)

    return restore


def _postgres(url: str) -> Restore:
    where = locate(url)
    tables = [f"{where.quoted}.{table}" for table in (*TABLES, "penstock_delta")]
    saved: dict[str, bytes] = {}
    with psycopg.connect(where.conninfo) as db:
        for table in tables:
            with db.cursor().copy(f"COPY (TABLE {table}) TO STDOUT".encode()) as copy:
                saved[table] = b"".join(copy)

    def restore() -> None:
        with psycopg.connect(where.conninfo) as db:
            for table, rows in saved.items():
                db.execute(f"DELETE FROM {table}".encode())
                with db.cursor().copy(f"COPY {table} FROM STDIN".encode()) as copy:
                    copy.write(rows)

    return restore


def _mysql(url: str) -> Restore:
    saved: dict[str, tuple[str, tuple[tuple[Any, ...], ...]]] = {}
    with bare(url) as db, db.cursor() as cursor:
        for table in (*TABLES, "penstock_id"):
            cursor.execute(f"SHOW COLUMNS FROM {table} WHERE Extra NOT LIKE '%GENERATED%'")
            columns = ",".join(f"`{row[0]}`" for row in cursor.fetchall())
            cursor.execute(f"SELECT {columns} FROM {table}")
            saved[table] = columns, tuple(cursor.fetchall())

    def restore() -> None:
        with bare(url) as db, db.cursor() as cursor:
            for table, (columns, rows) in saved.items():
                cursor.execute(f"DELETE FROM {table}")
                values = ",".join(["%s"] * (columns.count(",") + 1))
                cursor.executemany(f"INSERT INTO {table} ({columns}) VALUES ({values})", rows)

    return restore


def _redis(url: str) -> Restore:
    parts = urlsplit(url)
    server = running("redis-cluster") if parts.scheme == "redis+cluster" else running("redis")
    nodes = [redis.Redis(port=node.port) for node in server.nodes]
    pattern = f"{{{parse_qs(parts.query)['prefix'][0]}:*"
    saved = [{key: node.dump(key) or b"" for key in node.scan_iter(pattern)} for node in nodes]

    def restore() -> None:
        for node, keys in zip(nodes, saved, strict=True):
            for key in set(node.scan_iter(pattern)) - keys.keys():
                node.delete(key)
            for key, value in keys.items():
                node.restore(key, 0, value, replace=True)
            node.close()

    return restore
