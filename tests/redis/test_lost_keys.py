"""Deleted keys: check reports the tubes whose tasks no call can find any more."""

from __future__ import annotations

import pytest

import penstock
from penstock.store.redis.redis_store import RedisStore
from penstock.store.redis.script_runner import TUBES


@pytest.mark.parametrize("store_url", ["redis", "redis-cluster"], indirect=True)
def test_check_reports_a_lost_meta(store_url: str) -> None:
    with penstock.connect(store_url) as broker:
        tube = broker.tube("t")
        tube.put_many(range(5))
        broker.tube("u").put_many(range(2))
        dropped = broker.tube("v")
        dropped.put("x", reply_to="u")
        dropped.drop()
        assert broker.check() == []
        store = broker.runtime.store
        assert isinstance(store, RedisStore)
        store._runner.command(tube.stored.no, "meta", b"DEL")
        (found,) = broker.check(repair=True)
        assert (found.tube, found.what) == ("t", "its meta is lost, so no call finds its 5 tasks")


@pytest.mark.parametrize("store_url", ["redis", "redis-cluster"], indirect=True)
def test_lost_names_are_restored(store_url: str) -> None:
    with penstock.connect(store_url) as broker:
        broker.tube("t").put_many(range(5))
        broker.tube("u", shards=2).put_many(range(3))
        store = broker.runtime.store
        assert isinstance(store, RedisStore)
        store._runner.command(TUBES, "names", b"DEL")
        with penstock.connect(store_url) as other:
            other.tube("t").put("in a new tube of the name")
        found = broker.check(repair=True)
        remedies = {(each.tube, each.remedy) for each in found}
        assert remedies == {("t", "give it the name t.1"), ("u", "give it the name u")}
        assert broker.check() == []
    with penstock.connect(store_url) as other:
        assert [len(other.tube(name).tasks()) for name in ("t", "t.1", "u")] == [1, 5, 3]


@pytest.mark.parametrize("store_url", ["redis", "redis-cluster"], indirect=True)
def test_no_new_tube_shares_a_number_after_the_count_of_tubes_was_lost(store_url: str) -> None:
    with penstock.connect(store_url) as broker:
        broker.tube("t").put_many(range(5))
        broker.tube("u", shards=2).put_many(range(3))
        store = broker.runtime.store
        assert isinstance(store, RedisStore)
        store._runner.command(TUBES, "store", b"DEL")
        assert broker.tube("v").stats().tasks.total == 0
        assert [len(broker.tube(name).tasks()) for name in ("t", "u")] == [5, 3]
