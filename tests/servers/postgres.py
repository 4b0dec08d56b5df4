"""A private PostgreSQL. It refuses to run as root, so root runs it as the package's user."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

from tests.servers.base import Server, listens


class Postgres(Server):
    """Stores are schemas of one database."""

    package = "postgresql"
    program = "postgres"
    folders = ("/usr/lib/postgresql/*/bin",)
    user = "postgres"
    # Durability is tested elsewhere, and no test cuts the power; here it only costs time.
    settings: tuple[tuple[str, str], ...] = (
        ("synchronous_commit", "off"), ("fsync", "off"), ("full_page_writes", "off"),
    )  # fmt: skip

    def prepare(self) -> None:
        initdb = str(Path(self.binary).with_name("initdb"))
        data = str(self.folder / "data")
        self.run(initdb, "-D", data, "-U", "penstock", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")

    def command(self) -> list[str]:
        settings = {
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": str(self.folder),
            "max_connections": "200",
            "shared_buffers": "64MB",
            "max_wal_size": "256MB",
            "shared_preload_libraries": "plpgsql",  # otherwise every connection of every test loads it
            **dict(self.settings),
        }
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        return [self.binary, "-D", str(self.folder / "data"), "-p", str(self.port), *options]

    def answers(self) -> bool:
        return listens(self.port) and self._ready()

    def _ready(self) -> bool:
        import psycopg

        try:
            psycopg.connect(self.url, connect_timeout=5).close()
        except psycopg.OperationalError:
            return False
        return True

    @property
    def url(self) -> str:
        """The database."""
        return f"postgresql://penstock@127.0.0.1:{self.port}/postgres"

    def fresh_url(self) -> str:
        return f"{self.url}?schema=t{uuid4().hex[:16]}"

    def empty_url(self) -> str:
        from tests.postgres.schemas import emptied_url

        return emptied_url(self.url)


class DurablePostgres(Postgres):
    """A commit that returned survives a kill of the server."""

    settings = (("synchronous_commit", "on"),)

    def command(self) -> list[str]:
        # A start after a crash syncs all files: by one call, not file by file, which took a second.
        by_one_call = int((self.folder / "data/PG_VERSION").read_text()) >= 14
        return [*super().command(), *(["-c", "recovery_init_sync_method=syncfs"] if by_one_call else [])]
