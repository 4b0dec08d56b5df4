"""Private servers, as the tests start them, and fresh stores on them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4

from tests.mysql.databases import bare
from tests.servers import SERVERS
from tests.servers.base import Server
from tests.servers.mariadb import SyncedMariadb
from tests.servers.postgres import DurablePostgres

NAMES = {"postgres": "PostgreSQL", "mariadb": "MariaDB", "redis": "Redis", "redis-cluster": "Redis Cluster"}
_ON_DISK: dict[str, type[Server]] = {"postgres": DurablePostgres, "mariadb": SyncedMariadb}


@contextmanager
def running(name: str) -> Iterator[Server]:
    """The server of that name. PostgreSQL and MariaDB wait for the disk at each commit, which the tests' do not."""
    server = _ON_DISK.get(name, SERVERS[name])()
    try:
        yield server
    finally:
        server.stop()


def store_url(name: str, server: Server) -> str:
    """The URL of a new store at each call; the tests reuse one database of MariaDB and empty it."""
    if name != "mariadb":
        return server.fresh_url()
    database = f"bench_{uuid4().hex[:8]}"
    with bare(server.url) as db:
        db.cursor().execute(f"CREATE DATABASE {database}")
    return urlunsplit(urlsplit(server.url)._replace(path=f"/{database}"))


@contextmanager
def fresh_store(name: str) -> Iterator[tuple[str, str]]:
    """The URL of an empty store, which is `sqlite` or on a server that is started for it, and a temporary folder."""
    with ExitStack() as opened:
        folder = opened.enter_context(TemporaryDirectory(prefix="penstock-bench-"))
        if name not in SERVERS:
            yield f"sqlite:///{folder}/queue.db", folder
            return
        server = SERVERS[name]()
        opened.callback(server.stop)
        yield server.fresh_url(), folder
