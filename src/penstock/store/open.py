"""A URL to the store it names. Each store's driver is imported only when its scheme is asked for."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import SplitResult, parse_qsl, urlencode, urlsplit

from penstock.core.names import shown
from penstock.engine.store import Store
from penstock.errors import BadValue, StoreUnavailable, UnsupportedOption
from penstock.store.sql.migrations import Schema

if TYPE_CHECKING:
    from penstock.store.pool.vault import Database

Clock = Callable[[], int]

_SCHEMES = ("sqlite", "memory", "postgresql", "mysql", "redis", "rediss", "redis+sentinel", "redis+cluster")
# The databases that a pool can use.
_VAULTS = ("sqlite", "postgresql", "mysql")
# The driver of a scheme, and the extra that installs it; of others, redis is both.
_DRIVERS = {"postgresql": ("psycopg", "postgres"), "mysql": ("PyMySQL", "mysql")}
_BAD_ESCAPE = re.compile(r"%(?![0-9a-fA-F]{2})|%00")


class _Kind(NamedTuple):
    """What can be made of a store's URL: the store, the place it names, its schema, and a database behind a pool."""

    open: Callable[[str, Clock | None], Store]
    locate: Callable[[str], object]
    look: Callable[[str], Schema]
    vault: Callable[[str], Database] | None = None


def _kind(scheme: str) -> _Kind:
    """Import a store; StoreUnavailable, which says how to install its driver, if that is missing."""
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
    """Open the store; BadValue for a URL that names none.

    `pool` is the URL of the database behind a Redis; a Redis URL may also say it, as its parameter `pool`.
    """
    scheme = _scheme(url)
    url, pool = _split_pool(url, pool)
    if pool is None:
        return _kind(scheme).open(url, clock)
    database = _vault(url, pool)
    from penstock.store.pool.pool_store import open_pool

    return open_pool(url, database, clock)


def check_url(url: str) -> None:
    """BadValue for a URL that no store understands, StoreUnavailable if its driver is missing. Nothing is opened."""
    scheme = _scheme(url)
    url, pool = _split_pool(url, None)
    if pool is not None:
        _vault(url, pool)
    _kind(scheme).locate(url)


def look_at_schema(url: str) -> Schema:
    """Which schema a store has, and what opening it would change; nothing is changed here."""
    if has_pool(url):
        raise UnsupportedOption(
            "a pool makes what it needs in its database when it is opened: there is nothing to migrate"
        )
    return _kind(_scheme(url)).look(url)


def sqlite_path(url: str) -> str:
    """The file of a sqlite:// URL."""
    from penstock.store.sqlite.file import locate

    return locate(url).path


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
    _kind(scheme)
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
    vault = _kind(scheme).vault
    assert vault is not None
    return vault(pool)
