"""Databases behind pools: one on each server per test process, created once and emptied for each test.

The pool's name is one of the rows and is removed with them, so that brokers of an earlier test that still run do not
match the next one.
"""

from __future__ import annotations

import atexit
import os
from functools import cache

from penstock.store.open import find_vault
from penstock.store.pool.vault import Database, Session, Vault
from tests.servers import running
from tests.servers.base import Server
from tests.servers.connection_cache import keep_connections
from tests.servers.mariadb import Mariadb

_TABLES = ("link", "task", "tube", "store")


def bare_url(server: Server) -> str:
    """The URL of a new database on that server."""
    return server.bare_url() if isinstance(server, Mariadb) else server.fresh_url()


def empty_vault(name: str) -> str:
    """The URL of an empty database, which may be an earlier test's, emptied."""
    url, database = _kept(name, os.getpid())
    database.run(lambda session: _empty(database, session))
    return url


@cache
def _kept(name: str, pid: int) -> tuple[str, Database]:
    url = bare_url(running(name))
    keep_connections(url)
    database = find_vault("redis", url)(url)
    atexit.register(_close, database, pid)
    Vault(database)
    return url, database


def _close(database: Database, pid: int) -> None:
    if os.getpid() == pid:  # not in a forked child
        database.close()


def _empty(database: Database, session: Session) -> None:
    for table in _TABLES:
        created = str(getattr(database.queries, f"create_{table}"))
        session.change(created.partition(" (")[0].replace("CREATE TABLE IF NOT EXISTS", "DELETE FROM"))
