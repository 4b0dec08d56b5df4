"""A private PostgreSQL, because these tests restart it, and brokers on it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.servers import started
from tests.servers.fixtures import broker as broker
from tests.servers.fixtures import url as url
from tests.servers.postgres import Postgres


class Unattended(Postgres):
    """Vacuums and analyses only when a test does; otherwise dead rows, plans and cached statistics would differ."""

    settings = (*Postgres.settings, ("autovacuum", "off"))


@pytest.fixture(scope="package")
def server() -> Iterator[Postgres]:
    """One server for all these tests, each with its own schema."""
    with started(Unattended) as server:
        yield server
