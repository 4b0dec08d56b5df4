"""Pools from two URLs: what is accepted, and what is refused before anything is stored."""

from __future__ import annotations

import pytest

import penstock
from penstock.core.store_url import with_pool
from tests.pool.conftest import DATABASES
from tests.servers.redis import Redis
from tests.support.verbs import take


def test_one_url_may_name_both(front: str, database: str) -> None:
    with penstock.connect(front, pool=database) as broker:
        broker.tube("t").put("a")
    with penstock.connect(with_pool(front, database)) as broker:
        assert take(broker.tube("t")).data == "a"


@pytest.mark.parametrize("url", ["memory://x", "sqlite:///x.db", "postgresql://h/d", "mysql://h/d"])
def test_only_a_redis_can_be_in_front_of_a_pool(url: str, database: str) -> None:
    with pytest.raises(penstock.UnsupportedOption, match="give a redis:// URL"):
        penstock.connect(url, pool=database)


def test_a_cluster_cannot_be_the_front_of_a_pool(database: str) -> None:
    with pytest.raises(penstock.UnsupportedOption, match="not a cluster"):
        penstock.connect("redis+cluster://localhost", pool=database)


@pytest.mark.parametrize("pool", ["memory://x", "redis://localhost", "x.db", "", 7, "sqlite://", "mysql://h"])
def test_only_a_database_can_be_behind_a_pool(front: str, pool: object) -> None:
    with pytest.raises(penstock.BadValue):
        penstock.connect(front, pool=pool)  # type: ignore[arg-type]


def test_a_pool_is_named_once(front: str, database: str) -> None:
    with pytest.raises(penstock.BadValue, match="twice"):
        penstock.connect(with_pool(front, database), pool=database)


def test_the_prefix_of_another_store_is_refused(front: str, database: str) -> None:
    with penstock.connect(front) as broker:
        broker.tube("t").put("a")
    with pytest.raises(penstock.BadValue, match="belongs to another store"):
        penstock.connect(front, pool=database)
    with penstock.connect(front) as broker:
        assert take(broker.tube("t")).data == "a"


def test_an_index_is_not_opened_without_its_database(front: str, database: str) -> None:
    with penstock.connect(front, pool=database) as broker:
        broker.tube("t").put("a")
        with pytest.raises(penstock.SchemaMismatch, match="connect with pool="):
            penstock.connect(front)


@pytest.mark.parametrize(("format", "remedy"), [(9, "upgrade penstock"), (2, "export its tubes")])
def test_a_database_of_another_format_is_refused(
    server: Redis, front: str, database: str, format: int, remedy: str
) -> None:
    with penstock.connect(front, pool=database) as broker:
        broker.runtime.store._vault._db.run(  # type: ignore[attr-defined]
            lambda session: session.change(f"UPDATE penstock_pool_store SET format = {format}")
        )
    with pytest.raises(penstock.SchemaMismatch, match=f"schema {format}.*{remedy}"):
        penstock.connect(server.fresh_url(), pool=database)


@pytest.mark.parametrize("databases", DATABASES, indirect=True)
def test_its_promise_is_reported(front: str, database: str) -> None:
    """It depends on the database's settings only: Redis may lose everything."""
    with penstock.connect(front, pool=database) as broker:
        described = broker.runtime.store.describe()
    with penstock.connect(database) as behind:
        its_own = behind.runtime.store.describe()
    assert described.store == "pool behind Redis"
    assert described.durability == f"{its_own.durability}; all of Redis may be lost"
