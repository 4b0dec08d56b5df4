"""A private MariaDB, or the MySQL that `python -m tests.matrix` provides."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from uuid import uuid4

from tests.servers.base import Server, given, listens


class Mariadb(Server):
    """Stores use one database, emptied for each test, because a schema is slow to create."""

    package = "mariadb-server"
    program = "mariadbd"
    folders = ("/usr/sbin", "/usr/local/sbin")
    # No test cuts the power.
    settings: tuple[str, ...] = ("--innodb-flush-log-at-trx-commit=2", "--innodb-flush-method=nosync")

    def find(self) -> str:
        self._mysql = given("mysqld")  # only if given: on many systems this name is MariaDB's
        return self._mysql or super().find()

    def prepare(self) -> None:
        if self._mysql:
            return self.run(*self._program(), "--initialize-insecure")
        sibling = Path(self.binary).with_name("mariadb-install-db")
        installer = str(sibling) if sibling.exists() else shutil.which(sibling.name) or str(sibling)
        return self.run(
            installer, f"--datadir={self.folder / 'data'}", "--auth-root-authentication-method=normal",
            "--skip-test-db", f"--tmpdir={self.folder}", *self._as_root(),
        )  # fmt: skip

    def command(self) -> list[str]:
        return [
            *self._program(), f"--port={self.port}",
            "--bind-address=127.0.0.1", f"--socket={self.folder / 'socket'}", "--skip-log-bin",
            f"--pid-file={self.folder / 'pid'}", "--max-connections=300", *self.settings,
            "--innodb-buffer-pool-size=128M",
        ]  # fmt: skip

    def _program(self) -> list[str]:
        """The server program on its data folder."""
        # A private tmpdir: a server that starts removes all temporary tables that it finds, even those of others.
        places = f"--datadir={self.folder / 'data'}", f"--tmpdir={self.folder}"
        return [self.binary, "--no-defaults", *places, *self._as_root()]

    def _as_root(self) -> list[str]:
        return ["--user=root"] if os.getuid() == 0 else []

    def answers(self) -> bool:
        return listens(self.port) and self._ready()

    def _ready(self) -> bool:
        import pymysql

        try:
            with pymysql.connect(host="127.0.0.1", port=self.port, user="root", ssl_disabled=True) as connection:
                connection.cursor().execute("CREATE DATABASE IF NOT EXISTS penstock")
        except pymysql.err.OperationalError:
            return False
        return True

    @property
    def url(self) -> str:
        """The database."""
        return f"mysql://root@127.0.0.1:{self.port}/penstock"

    def fresh_url(self) -> str:
        from tests.mysql.databases import fresh_url

        return fresh_url(self.url)

    def empty_url(self) -> str:
        from tests.servers.connection_cache import keep_connections

        return keep_connections(self.fresh_url())

    def bare_url(self) -> str:
        """The URL of a new database without a schema."""
        import pymysql

        name = f"t{uuid4().hex[:12]}"
        with pymysql.connect(host="127.0.0.1", port=self.port, user="root", ssl_disabled=True) as connection:
            connection.cursor().execute(f"CREATE DATABASE {name}")
        return f"{self.url.removesuffix('penstock')}{name}"


class SyncedMariadb(Mariadb):
    """A commit that returned is on disk."""

    settings = ("--innodb-flush-log-at-trx-commit=1",)
