"""A pool by its two URLs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

from penstock.errors import UnsupportedOption
from penstock.store.pool.index import Progress
from penstock.store.pool.store import PoolStore
from penstock.store.pool.vault import Database, Vault
from penstock.store.redis.location import locate


def open_pool(
    url: str, database: Database, clock: Callable[[], int] | None = None, progress: Progress | None = None
) -> PoolStore:
    """The pool of a Redis URL and a database, which is closed if that fails."""
    try:
        where = locate(url)
        if where.scheme == "redis+cluster":
            raise UnsupportedOption("pool= needs one Redis server in front, not a cluster: give a redis:// URL")
        return PoolStore(where, Vault(database), clock, progress)
    except BaseException:
        database.close()
        raise


def rebuild_pool(url: str, database: Database, progress: Progress) -> None:
    """Build the index anew, once: when it is lost by opening it, else by asking for it."""
    built: list[int] = []

    def told(done: int, total: int) -> None:
        built.append(done)
        progress(done, total)

    with closing(open_pool(url, database, progress=told)) as store:
        if not built:
            store.rebuild(progress)
