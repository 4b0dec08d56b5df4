"""Opens the store that a URL names. A driver is imported only when a URL has its scheme."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from penstock.core.names import safe_url, shown
from penstock.core.store_url import split_url, url_parts
from penstock.engine.store import Store
from penstock.errors import BadValue, StoreUnavailable, UnsupportedOption
from penstock.store.sql.migrations import Schema

if TYPE_CHECKING:
    from penstock.store.pool.vault import Database

Clock = Callable[[], int]

# The databases that a pool can use.
_VAULTS = ("sqlite", "postgresql", "mysql")
# The driver of a scheme, and the extra that installs it. All other schemes need redis, by the extra redis.
_DRIVERS = {"postgresql": ("psycopg", "postgres"), "mysql": ("PyMySQL", "mysql")}


class _Kind(NamedTuple):
    """What a kind of store offers: open a URL, parse it, inspect its schema, and open it as the database of a pool."""

    open: Callable[[str, Clock | None], Store]
    locate: Callable[[str], object]
    look: Callable[[str], Schema]
    vault: Callable[[str], Database] | None = None


def _kind(scheme: str) -> _Kind:
    """Import the store of a scheme. If its driver is missing, raises StoreUnavailable with how to install it."""
    try:
        if scheme == "memory":
            from penstock.store.sqlite import file, memory

            return _Kind(memory.open_memory, file.parameters, lambda url: Schema(0, 0, []))
        if scheme == "sqlite":
            from penstock.store.sqlite import file, sqlite_store

            return _Kind(sqlite_store.open_sqlite, file.locate, sqlite_store.look_at_sqlite, sqlite_store.SqliteVault)
        if scheme == "postgresql":
            from penstock.store.postgres import postgres_connection, postgres_store

            postgres = postgres_store.open_postgres, postgres_connection.locate, postgres_store.look_at_postgres
            return _Kind(*postgres, postgres_store.PostgresVault)
        if scheme == "mysql":
            from penstock.store.mysql import mysql_connection, mysql_store

            mysql = mysql_store.open_mysql, mysql_connection.parse, mysql_store.look_at_mysql
            return _Kind(*mysql, mysql_store.MysqlVault)
        from penstock.store.redis import location, redis_store, sharded

        return _Kind(sharded.open_redis, location.locate, redis_store.look_at_redis)
    except ImportError as error:
        driver, extra = _DRIVERS.get(scheme, ("redis", "redis"))
        raise StoreUnavailable(
            f"store URL {scheme}:// needs the {driver} driver ({error}): pip install 'penstock[{extra}]'"
        ) from error


def open_store(url: str, clock: Clock | None = None, pool: str | None = None) -> Store:
    """Open the store that a URL names. Raises BadValue if the URL is invalid.

    `pool` is the URL of the database behind a Redis. A Redis URL may instead have it as its parameter `pool`.
    """
    scheme, url, pool = split_url(url, pool)
    if pool is None:
        return _kind(scheme).open(url, clock)
    database = find_vault(scheme, pool)(pool)
    from penstock.store.pool.pool_store import open_pool

    return open_pool(url, database, clock)


def check_url(url: str) -> None:
    """Raise BadValue if the URL is invalid, StoreUnavailable if its driver is missing. Opens nothing."""
    scheme, url, pool = split_url(url)
    if pool is not None:
        find_vault(scheme, pool)
    _kind(scheme).locate(url)


def look_at_schema(url: str) -> Schema:
    """Return which schema a store has, and which migrations opening it would apply. Changes nothing."""
    scheme, url, pool = split_url(url)
    if pool is not None:
        raise UnsupportedOption(
            "a pool creates what it needs in its database when it is opened: there is nothing to migrate"
        )
    return _kind(scheme).look(url)


def rebuild_index(url: str, progress: Callable[[int, int], object]) -> None:
    """Rebuild the index of a pool. Calls `progress` with the number of tasks loaded and the total."""
    scheme, url, pool = split_url(url)
    if pool is None:
        raise UnsupportedOption("only a pool has an index to rebuild: give a redis:// URL and --pool")
    database = find_vault(scheme, pool)(pool)
    from penstock.store.pool.pool_store import rebuild_pool

    rebuild_pool(url, database, progress)


def find_vault(scheme: str, pool: object) -> Callable[[str], Database]:
    """Return what opens the database of a pool. Checks the URLs, and that both drivers are installed."""
    if not scheme.startswith("redis"):
        raise UnsupportedOption(f"pool= needs a Redis in front, and {scheme}:// is none: give a redis:// URL")
    _kind(scheme)
    if not isinstance(pool, str):
        raise BadValue(f"pool {shown(pool)} is not a str: give the URL of a database")
    scheme = pool.partition("://")[0]
    vault = _kind(scheme).vault if scheme in _VAULTS else None
    if vault is None:
        known = ", ".join(f"{name}://" for name in _VAULTS)
        raise BadValue(f"pool {safe_url(pool)} is not a database for a pool: use {known}")
    url_parts(f"pool {scheme}://…", pool)
    return vault
