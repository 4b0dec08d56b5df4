"""The limit on the SQL servers: a realistic task table, driven by the same driver alone.

What a careful author would write by hand: few statements, no leases, counters, sessions, deadlines or checks.
"""

from __future__ import annotations

from collections.abc import Sequence

import psycopg

from tests.mysql.databases import bare

_COLUMNS = """state CHAR(1) NOT NULL, pri INTEGER NOT NULL, attempts INTEGER NOT NULL DEFAULT 0,
lease INTEGER NOT NULL DEFAULT 0, created BIGINT NOT NULL, taken BIGINT, at BIGINT, owner BIGINT"""
_INSERT = "INSERT INTO bare (state, pri, created, data) VALUES ('r', 0, 1, %s)"
_READY = "SELECT id FROM bare WHERE state = 'r' ORDER BY pri, id LIMIT {} FOR UPDATE SKIP LOCKED"
_TAKE = "UPDATE bare SET state = 't', attempts = attempts + 1, lease = lease + 1, taken = 1, owner = 1 WHERE id "


class PostgresTable:
    """One prepared statement per transaction."""

    def __init__(self, url: str) -> None:
        self._db = psycopg.connect(url, autocommit=True, prepare_threshold=0)
        self._db.execute(f"CREATE TABLE bare (id bigserial PRIMARY KEY, {_COLUMNS}, data bytea NOT NULL)")
        self._db.execute("CREATE INDEX ON bare (pri, id) WHERE state = 'r'")
        self._db.execute("CREATE INDEX ON bare (at) WHERE at IS NOT NULL")

    def put(self, data: bytes) -> None:
        self._db.execute(_INSERT, (data,), binary=True)

    def put_many(self, items: Sequence[bytes]) -> None:
        query = "INSERT INTO bare (state, pri, created, data) SELECT 'r', 0, 1, data FROM unnest(%s::bytea[]) data"
        self._db.execute(query, (list(items),), binary=True)

    def take(self) -> int | None:
        return next(iter(self.take_many(1)), None)

    def ack(self, key: int) -> None:
        self._db.execute("DELETE FROM bare WHERE id = %s", (key,))

    def take_many(self, count: int) -> list[int]:
        # Materialized by the array: as a plain IN it may be run once a row.
        query = f"{_TAKE} = ANY (ARRAY({_READY.format('%s')})) RETURNING id, data"
        return [row[0] for row in self._db.execute(query, (count,), binary=True)]

    def ack_many(self, keys: Sequence[int]) -> None:
        self._db.execute("DELETE FROM bare WHERE id = ANY (%s)", (list(keys),))


class MariadbTable:
    """Several statements in a transaction where one is not enough."""

    def __init__(self, url: str) -> None:
        self._db = bare(url)
        self._cursor = self._db.cursor()
        self._cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
        self._cursor.execute(
            f"CREATE TABLE bare (id BIGINT AUTO_INCREMENT PRIMARY KEY, {_COLUMNS}, data LONGBLOB NOT NULL, "
            "KEY ready (state, pri, id), KEY due (at)) ENGINE = InnoDB"
        )

    def put(self, data: bytes) -> None:
        self._cursor.execute(_INSERT, (data,))

    def put_many(self, items: Sequence[bytes]) -> None:
        # Placeholders only: others PyMySQL sends row by row.
        query = "INSERT INTO bare (state, pri, created, data) VALUES (%s, %s, %s, %s)"
        self._cursor.executemany(query, [("r", 0, 1, data) for data in items])

    def take(self) -> int | None:
        return next(iter(self.take_many(1)), None)

    def ack(self, key: int) -> None:
        self._cursor.execute(f"DELETE FROM bare WHERE id = {key}")

    def take_many(self, count: int) -> list[int]:
        self._db.begin()
        self._cursor.execute(_READY.format(count).replace("SELECT id", "SELECT id, data"))
        keys = [int(row[0]) for row in self._cursor.fetchall()]
        if keys:
            self._cursor.execute(f"{_TAKE} IN ({','.join(map(str, keys))})")
        self._db.commit()
        return keys

    def ack_many(self, keys: Sequence[int]) -> None:
        self._cursor.execute(f"DELETE FROM bare WHERE id IN ({','.join(map(str, keys))})")
