"""A PostgreSQL of these tests' own, because they restart it, and brokers on it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.servers import started
from tests.servers.fixtures import broker as broker
from tests.servers.fixtures import url as url
from tests.servers.postgres import Postgres


class Unattended(Postgres):
    """Vacuums and analyses when a test does: else dead rows, plans and what connections remember of tables differ."""

    settings = (*Postgres.settings, ("autovacuum", "off"))


@pytest.fixture(scope="package")
def server() -> Iterator[Postgres]:
    """One for all these tests, each with a schema of its own."""
    with started(Unattended) as server:
        yield server
