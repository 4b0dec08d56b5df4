"""Servers that accept only TLS, with self-signed certificates for 127.0.0.1."""

from __future__ import annotations

from pathlib import Path

from tests.servers.base import Server, listens
from tests.servers.mariadb import Mariadb
from tests.servers.postgres import Postgres
from tests.servers.redis import Redis, cli


def certify(server: Server) -> None:
    """Create its key and certificate, and another, unrelated certificate."""
    for name in ("other", "certificate"):
        _certify(server, server.folder / f"{name}.pem")


def _certify(server: Server, path: Path) -> None:
    server.run(
        "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
        "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1",
        "-keyout", str(server.folder / "key.pem"), "-out", str(path),
    )  # fmt: skip


def certificate(server: Server) -> Path:
    """The certificate with which a client trusts it."""
    return server.folder / "certificate.pem"


def other(server: Server) -> Path:
    """A certificate with which a client does not trust it."""
    return server.folder / "other.pem"


class TlsPostgres(Postgres):
    """Refuses unencrypted connections."""

    def prepare(self) -> None:
        super().prepare()
        certify(self)
        (self.folder / "data" / "pg_hba.conf").write_text("hostssl all all 127.0.0.1/32 trust\n")

    def command(self) -> list[str]:
        files = f"ssl_cert_file={certificate(self)}", f"ssl_key_file={self.folder / 'key.pem'}"
        return [*super().command(), "-c", "ssl=on", "-c", files[0], "-c", files[1]]

    def trusting_urls(self) -> tuple[str, ...]:
        """URLs that trust its certificate and, where a URL can say so, any certificate."""
        return f"{self.url}?sslmode=verify-full&sslrootcert={certificate(self)}", f"{self.url}?sslmode=require"

    def doubting_url(self) -> str:
        """A URL that trusts only another certificate."""
        return f"{self.url}?sslmode=verify-full&sslrootcert={other(self)}"


class TlsMariadb(Mariadb):
    """Refuses unencrypted connections, except on its Unix socket."""

    def prepare(self) -> None:
        super().prepare()
        certify(self)

    def command(self) -> list[str]:
        files = f"--ssl-cert={certificate(self)}", f"--ssl-key={self.folder / 'key.pem'}"
        return [*super().command(), *files, "--require-secure-transport=ON"]

    def _ready(self) -> bool:
        import pymysql

        try:
            with pymysql.connect(unix_socket=str(self.folder / "socket"), user="root") as connection:
                connection.cursor().execute("CREATE DATABASE IF NOT EXISTS penstock")
        except pymysql.err.OperationalError:
            return False
        return True

    def trusting_urls(self) -> tuple[str, ...]:
        return f"{self.url}?ssl_ca={certificate(self)}", self.url

    def doubting_url(self) -> str:
        return f"{self.url}?ssl_ca={other(self)}"


class TlsRedis(Redis):
    """Has no unencrypted port."""

    def prepare(self) -> None:
        certify(self)

    def command(self) -> list[str]:
        return [
            *super().command(), "--port", "0", "--tls-port", str(self.port), "--tls-auth-clients", "no",
            "--tls-cert-file", str(certificate(self)), "--tls-key-file", str(self.folder / "key.pem"),
            "--tls-ca-cert-file", str(certificate(self)),
        ]  # fmt: skip

    def answers(self) -> bool:
        trusted = "--tls", "--cacert", str(certificate(self))
        return listens(self.port) and cli("-h", "127.0.0.1", "-p", str(self.port), *trusted, "PING") == "PONG"

    def trusting_urls(self) -> tuple[str, ...]:
        return (f"rediss://127.0.0.1:{self.port}/0?ssl_ca_certs={certificate(self)}",)

    def doubting_url(self) -> str:
        return f"rediss://127.0.0.1:{self.port}/0?ssl_ca_certs={other(self)}"
