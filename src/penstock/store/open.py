"""A URL to the store it names. Each store's driver is imported only when its scheme is asked for."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import parse_qsl, unquote, urlsplit

from penstock.core.names import shown
from penstock.errors import BadValue, StoreUnavailable
from penstock.store.base import Store
from penstock.store.sql.migrations import Schema

Clock = Callable[[], int]


def open_store(url: str, clock: Clock | None = None) -> Store:
    """Open the store; BadValue for a URL that names none."""
    if not isinstance(url, str):
        raise BadValue(f"store URL {shown(url)} is not a str: give one such as sqlite:///jobs.db")
    scheme, separator, _ = url.partition("://")
    opener = _OPENERS.get(scheme) if separator else None
    if opener is None:
        raise BadValue(f"store URL {shown(url)} has no known scheme: use {', '.join(f'{s}://' for s in _OPENERS)}")
    return opener(url, clock)


def look_at_schema(url: str) -> Schema:
    """Which schema a store has, and what opening it would change; nothing is changed here."""
    scheme = url.partition("://")[0]
    if scheme == "sqlite":
        from penstock.store.sqlite.schema import look as look_at_sqlite

        return look_at_sqlite(_sqlite_path(url))
    if scheme == "postgresql":
        from penstock.store.postgres.schema import look as look_at_postgres

        return look_at_postgres(url)
    if scheme == "mysql":
        from penstock.store.mysql.schema import look as look_at_mysql

        return look_at_mysql(url)
    if scheme.startswith("redis"):
        from penstock.store.redis.store import look_at_redis

        return look_at_redis(url)
    return Schema(0, 0, [])


def _open_memory(url: str, clock: Clock | None) -> Store:
    from penstock.store.memory import open_memory

    _parameters(url, {})
    return open_memory(url, clock)


def _open_sqlite(url: str, clock: Clock | None) -> Store:
    path = _sqlite_path(url)
    given = _parameters(url, {"durability": ("full", "relaxed")})
    from penstock.store.sqlite.store import SqliteStore

    return SqliteStore(path, durable=given.get("durability", "full") == "full", clock=clock)


def _sqlite_path(url: str) -> str:
    parts = urlsplit(url)
    path = unquote(parts.path)[1:]
    if parts.netloc or not path or path.startswith(":"):
        raise BadValue(
            f"store URL {shown(url)} names no file: use sqlite:///jobs.db (relative), sqlite:////var/jobs.db "
            "(absolute), or memory:// for a queue that ends with the process"
        )
    return path


def _open_redis(url: str, clock: Clock | None) -> Store:
    try:
        from penstock.store.redis.sharded import open_redis
    except ImportError as error:
        raise StoreUnavailable(
            f"store URL {url.partition('://')[0]}:// needs the redis driver ({error}): pip install 'penstock[redis]'"
        ) from error
    return open_redis(url, clock)


def _open_mysql(url: str, clock: Clock | None) -> Store:
    try:
        from penstock.store.mysql.store import open_mysql
    except ImportError as error:
        raise StoreUnavailable(
            f"store URL mysql:// needs the PyMySQL driver ({error}): pip install 'penstock[mysql]'"
        ) from error
    return open_mysql(url, clock)


def _open_postgres(url: str, clock: Clock | None) -> Store:
    try:
        from penstock.store.postgres.store import PostgresStore
    except ImportError as error:
        raise StoreUnavailable(
            f"store URL postgresql:// needs the psycopg driver ({error}): pip install 'penstock[postgres]'"
        ) from error
    return PostgresStore(url, clock=clock)


def _parameters(url: str, known: dict[str, tuple[str, ...]]) -> dict[str, str]:
    given = dict(parse_qsl(urlsplit(url).query, keep_blank_values=True))
    for name, value in given.items():
        if name not in known:
            has = f"it has {', '.join(known)}" if known else "it has none"
            raise BadValue(f"parameter {shown(name)} of store URL {shown(url)} is unknown: {has}")
        if value not in known[name]:
            raise BadValue(f"parameter {name}={value} of store URL {shown(url)}: use {' or '.join(known[name])}")
    return given


_OPENERS: dict[str, Callable[[str, Clock | None], Store]] = {
    "sqlite": _open_sqlite,
    "memory": _open_memory,
    "postgresql": _open_postgres,
    "mysql": _open_mysql,
    **dict.fromkeys(("redis", "rediss", "redis+sentinel", "redis+cluster"), _open_redis),
}
