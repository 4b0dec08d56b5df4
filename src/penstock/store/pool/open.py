"""A pool by its two URLs."""

from __future__ import annotations

from collections.abc import Callable

from penstock.errors import UnsupportedOption
from penstock.store.pool.store import PoolStore
from penstock.store.pool.vault import Database, Vault
from penstock.store.redis.location import locate


def open_pool(url: str, database: Database, clock: Callable[[], int] | None) -> PoolStore:
    """The pool of a Redis URL and a database, which is closed if that fails."""
    try:
        where = locate(url)
        if where.scheme == "redis+cluster":
            raise UnsupportedOption("pool= needs one Redis server in front, not a cluster: give a redis:// URL")
        return PoolStore(where, Vault(database), clock)
    except BaseException:
        database.close()
        raise
