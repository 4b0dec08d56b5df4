"""postgresql:// URLs in the forms that libpq accepts."""

from __future__ import annotations

import pytest

import penstock
from penstock.store.postgres.postgres_connection import locate
from tests.servers.postgres import Postgres


@pytest.mark.parametrize(
    ("url", "conninfo"),
    [
        ("postgresql:///jobs", "postgresql:///jobs"),
        ("postgresql://", "postgresql://"),
        ("postgresql:///jobs?schema=mine&host=/run", "postgresql:///jobs?host=/run"),
        ("postgresql://ada:p%40ss@a:1,b:2/jobs?notify=off", "postgresql://ada:p%40ss@a:1,b:2/jobs"),
    ],
)
def test_the_driver_gets_the_url_without_our_parameters(url: str, conninfo: str) -> None:
    assert locate(url).conninfo == conninfo


def test_the_host_may_be_a_parameter(server: Postgres) -> None:
    url = f"postgresql:///postgres?host=127.0.0.1&port={server.port}&user=penstock&schema=by_parameter"
    with penstock.connect(url) as broker:
        assert broker.tube("t").put("x").data == "x"


def test_a_schema_may_have_the_longest_name(server: Postgres) -> None:
    """The server truncates names of prepared statements to 63 bytes."""
    with penstock.connect(f"{server.url}?schema={'s' * 48}") as broker:
        tube = broker.tube("t")
        tube.put_many(["x", "y"])
        assert tube.ack_many(tube.take_many(2)) == [True, True]
