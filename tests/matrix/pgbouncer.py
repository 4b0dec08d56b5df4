"""PgBouncer with transaction pooling, without `notify=off`. Run separately: `pytest tests/matrix/pgbouncer.py`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import penstock
from tests.servers import started
from tests.servers.pgbouncer import PgBouncer
from tests.servers.postgres import Postgres
from tests.support.threads import begin


@pytest.fixture
def bouncer() -> Iterator[PgBouncer]:
    with started(Postgres) as server, started(lambda: PgBouncer(server)) as bouncer:
        yield bouncer


def test_without_notify_off_it_works_or_the_error_says_what_to_do(bouncer: PgBouncer) -> None:
    """From 1.22 on PgBouncer keeps the prepared statements of its clients; older ones lose them."""
    with penstock.connect(bouncer.fresh_url().removesuffix("&notify=off")) as broker:
        tube = broker.tube("work")

        def work() -> str:
            try:
                for number in range(20):
                    tube.put(number)
                    while (task := tube.take(0)) is not None:
                        task.ack()
            except penstock.StoreError as error:
                return str(error)
            return ""

        errors = {done.result(60) for done in [begin(work) for _ in range(8)]} - {""}
        assert all(error.endswith("use notify=off") for error in errors), errors
