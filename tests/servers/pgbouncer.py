"""A private PgBouncer with transaction pooling: transactions share a few server connections."""

from __future__ import annotations

from tests.servers.base import Server, listens
from tests.servers.postgres import Postgres


class PgBouncer(Server):
    """A PgBouncer in front of a PostgreSQL of the tests."""

    package = "pgbouncer"
    program = "pgbouncer"
    folders = ("/usr/sbin",)
    user = "postgres"

    def __init__(self, behind: Postgres) -> None:
        self._behind = behind
        super().__init__()

    def prepare(self) -> None:
        (self.folder / "pgbouncer.ini").write_text(
            f"""[databases]
postgres = host=127.0.0.1 port={self._behind.port} dbname=postgres user=penstock
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {self.port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 3
"""
        )

    def command(self) -> list[str]:
        return [self.binary, str(self.folder / "pgbouncer.ini")]

    def answers(self) -> bool:
        return listens(self.port)

    @property
    def url(self) -> str:
        """The database behind it."""
        return self._behind.url.replace(str(self._behind.port), str(self.port))

    def fresh_url(self) -> str:
        return self.through(self._behind.fresh_url())

    def through(self, url: str) -> str:
        """The URL of that store of the server, by this way."""
        return url.replace(f":{self._behind.port}/", f":{self.port}/") + "&notify=off"


class PooledPostgres(PgBouncer):
    """A PostgreSQL with a PgBouncer in front of it, for the suites of every store."""

    def __init__(self) -> None:
        super().__init__(Postgres())

    def empty_url(self) -> str:
        return self.through(self._behind.empty_url())

    def stop(self) -> None:
        super().stop()
        self._behind.stop()
