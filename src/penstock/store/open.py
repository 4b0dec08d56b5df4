"""A URL to the store it names. Each store's driver is imported only when its scheme is asked for."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, parse_qsl, unquote, urlencode, urlsplit

from penstock.core.names import shown
from penstock.engine.store import Store
from penstock.errors import BadValue, StoreUnavailable, UnsupportedOption
from penstock.store.sql.migrations import Schema

if TYPE_CHECKING:
    from penstock.store.pool.vault import Database

Clock = Callable[[], int]

_SCHEMES = ("sqlite", "memory", "postgresql", "mysql", "redis", "rediss", "redis+sentinel", "redis+cluster")
# The databases that can stand behind a pool.
_VAULTS = ("sqlite", "postgresql", "mysql")
_BAD_ESCAPE = re.compile(r"%(?![0-9a-fA-F]{2})|%00")


def open_store(url: str, clock: Clock | None = None, pool: str | None = None) -> Store:
    """Open the store; BadValue for a URL that names none.

    `pool` is the URL of the database behind a Redis; a Redis URL may also say it, as its parameter `pool`.
    """
    _scheme(url)
    url, pool = _split_pool(url, pool)
    if pool is None:
        return _open(url, clock)
    database = _vault(url, pool)
    from penstock.store.pool.pool_store import open_pool

    return open_pool(url, database, clock)


def check_url(url: str) -> None:
    """BadValue for a URL that no store understands, StoreUnavailable if its driver is missing. Nothing is opened."""
    _scheme(url)
    url, pool = _split_pool(url, None)
    if pool is not None:
        _vault(url, pool)
    scheme = url.partition("://")[0]
    with _driver(scheme):
        match scheme:
            case "memory":
                _parameters(url, {})
            case "sqlite":
                _sqlite_file(url)
            case "postgresql":
                from penstock.store.postgres.postgres_connection import locate as locate_postgres

                locate_postgres(url)
            case "mysql":
                import penstock.store.mysql.mysql_store
                from penstock.store.mysql.mysql_connection import parse

                parse(url)
            case _:
                import penstock.store.redis.redis_store  # noqa: F401
                from penstock.store.redis.location import locate as locate_redis

                locate_redis(url)


def sqlite_path(url: str) -> str:
    """The file of a sqlite:// URL."""
    return _sqlite_file(url)[0]


def _scheme(url: object) -> str:
    """The scheme of a URL; BadValue if it is none of ours."""
    if not isinstance(url, str):
        raise BadValue(f"store URL {shown(url)} is not a str: give one such as sqlite:///jobs.db")
    scheme, separator, _ = url.partition("://")
    if not separator or scheme not in _SCHEMES:
        secretive = "@" in url or "?" in url  # what is there may be a password
        named = shown(url) if not secretive else f"{scheme}://…" if separator else "…"
        raise BadValue(f"store URL {named} has no known scheme: use {', '.join(f'{s}://' for s in _SCHEMES)}")
    return scheme


def rebuild_index(url: str, progress: Callable[[int, int], object]) -> None:
    """Build the index of a pool again; `progress` gets the number of tasks that are loaded, and of all."""
    url, pool = _split_pool(url, None)
    if pool is None:
        raise UnsupportedOption("only a pool has an index to rebuild: give a redis:// URL, and its database by --pool")
    database = _vault(url, pool)
    from penstock.store.pool.pool_store import rebuild_pool

    rebuild_pool(url, database, progress)


def with_pool(url: str, pool: str) -> str:
    """One URL for both, as its parameter `pool`."""
    return f"{url}{'&' if '?' in url else '?'}{urlencode({'pool': pool})}"


def has_pool(url: str) -> bool:
    """Whether the URL names a database behind its Redis."""
    return _split_pool(url, None)[1] is not None


def _split_pool(url: str, pool: str | None) -> tuple[str, str | None]:
    """The URL without its parameter `pool`, and what that or the argument says."""
    parts = _parts("store URL", url)
    given = parse_qsl(parts.query, keep_blank_values=True)
    named = [value for name, value in given if name == "pool"]
    if not named:
        return url, pool
    if pool is not None or len(named) > 1:
        raise BadValue("the pool is given twice: name it by pool= or in the URL")
    rest = urlencode([(name, value) for name, value in given if name != "pool"])
    # Not urlunsplit, which makes sqlite:/x.db of sqlite:///x.db.
    return f"{url.partition('?')[0]}{rest and f'?{rest}'}", named[0]


def _parts(what: str, url: str) -> SplitResult:
    """The parts of a URL; BadValue if it has none. It may hold a password, so messages only show its scheme."""
    where = f"{what} {url.partition('://')[0]}://…"
    for char in url:  # urlsplit drops some of these, and others confuse drivers
        if unicodedata.category(char) in ("Cc", "Cs"):
            raise BadValue(f"{where} has an invisible character {char!a}: remove it")
    try:
        parts = urlsplit(url)
    except ValueError:
        raise BadValue(f"{where} is not understood: correct its host") from None
    if parts.scheme not in ("sqlite", "memory"):
        _refuse_unescaped(where, parts)
    return parts


def _refuse_unescaped(where: str, parts: SplitResult) -> None:
    """BadValue if a user or password is not escaped: later messages would show a part of it as path or port."""
    credentials, _, hosts = parts.netloc.rpartition("@")
    if _BAD_ESCAPE.search(credentials + parts.query):
        raise BadValue(f"{where} has a % in its password or parameters that escapes nothing: write %25")
    names = [name for name, _ in parse_qsl(parts.query, keep_blank_values=True)]
    ports = [host.rpartition("]")[2].partition(":") for host in hosts.split(",")]
    outside = any("@" in text for text in (parts.path, *names)) or parts.fragment
    if outside or any(colon and not port.isdecimal() for _, colon, port in ports):
        raise BadValue(f"{where} is cut by a character of its password: write %2F, %3F, %23 and %40 for / ? # and @")


def _vault(url: str, pool: object) -> Database:
    """The database that a pool names, for the Redis of a URL, whose driver is there."""
    scheme = url.partition("://")[0]
    if not scheme.startswith("redis"):
        raise UnsupportedOption(f"pool= needs a Redis in front, and {scheme}:// is none: give a redis:// URL")
    with _driver(scheme):
        import penstock.store.redis.redis_store  # noqa: F401
    return open_vault(pool)


def open_vault(pool: object) -> Database:
    """The database that a pool names, by itself."""
    if not isinstance(pool, str):
        raise BadValue(f"pool {shown(pool)} is not a str: give the URL of a database")
    scheme = pool.partition("://")[0]
    if scheme not in _VAULTS:
        known = ", ".join(f"{name}://" for name in _VAULTS)
        raise BadValue(f"pool {shown(scheme)} is not a database for a pool: use {known}")
    _parts("pool", pool)
    if scheme == "sqlite":
        from penstock.store.sqlite.sqlite_vault import SqliteVault

        path, durable = _sqlite_file(pool)
        return SqliteVault(path, durable=durable)
    with _driver(scheme):
        if scheme == "postgresql":
            from penstock.store.postgres.postgres_store import PostgresVault

            return PostgresVault(pool)
        from penstock.store.mysql.mysql_store import MysqlVault

        return MysqlVault(pool)


@contextmanager
def _driver(scheme: str) -> Iterator[None]:
    """Say how to install the driver of a scheme if it is missing."""
    driver, extra = {"postgresql": ("psycopg", "postgres"), "mysql": ("PyMySQL", "mysql")}.get(scheme, ("redis",) * 2)
    try:
        yield
    except ImportError as error:
        raise StoreUnavailable(
            f"store URL {scheme}:// needs the {driver} driver ({error}): pip install 'penstock[{extra}]'"
        ) from error


def look_at_schema(url: str) -> Schema:
    """Which schema a store has, and what opening it would change; nothing is changed here."""
    if has_pool(url):
        raise UnsupportedOption(
            "a pool makes what it needs in its database when it is opened: there is nothing to migrate"
        )
    scheme = url.partition("://")[0]
    if scheme == "sqlite":
        from penstock.store.sqlite.sqlite_store import look_at_sqlite

        return look_at_sqlite(_sqlite_file(url)[0])
    if scheme == "postgresql":
        from penstock.store.postgres.schema import look
    elif scheme == "mysql":
        from penstock.store.mysql.mysql_store import look_at_mysql as look
    elif scheme.startswith("redis"):
        from penstock.store.redis.redis_store import look_at_redis as look
    else:
        return Schema(0, 0, [])
    return look(url)


def _open(url: str, clock: Clock | None) -> Store:
    scheme = url.partition("://")[0]
    if scheme == "memory":
        from penstock.store.sqlite.memory import open_memory

        _parameters(url, {})
        return open_memory(url, clock)
    if scheme == "sqlite":
        from penstock.store.sqlite.sqlite_store import open_sqlite

        path, durable = _sqlite_file(url)
        return open_sqlite(path, durable=durable, clock=clock)
    with _driver(scheme):
        if scheme == "postgresql":
            from penstock.store.postgres.postgres_store import open_postgres

            return open_postgres(url, clock)
        if scheme == "mysql":
            from penstock.store.mysql.mysql_store import open_mysql

            return open_mysql(url, clock)
        from penstock.store.redis.sharded import open_redis

        return open_redis(url, clock)


def _sqlite_file(url: str) -> tuple[str, bool]:
    """The file that a URL names, and whether a commit is on disk."""
    parts = urlsplit(url)
    path = unquote(parts.path)[1:]
    if parts.netloc or not path or path.startswith(":"):
        raise BadValue(
            f"store URL {shown(url)} names no file: use sqlite:///jobs.db (relative), sqlite:////var/jobs.db "
            "(absolute), or memory:// for a queue that ends with the process"
        )
    if parts.fragment:
        raise BadValue(f"store URL {shown(url)} has a # in it, which is no part of a file's name there: write %23")
    given = _parameters(url, {"durability": ("full", "relaxed")})
    return path, given.get("durability", "full") == "full"


def _parameters(url: str, known: dict[str, tuple[str, ...]]) -> dict[str, str]:
    given = dict(parse_qsl(urlsplit(url).query, keep_blank_values=True))
    for name, value in given.items():
        if name not in known:
            has = f"it has {', '.join(known)}" if known else "it has none"
            raise BadValue(f"parameter {shown(name)} of store URL {shown(url)} is unknown: {has}")
        if value not in known[name]:
            raise BadValue(f"parameter {name}={value} of store URL {shown(url)}: use {' or '.join(known[name])}")
    return given
