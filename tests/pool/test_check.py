"""Changes that someone else made to Redis or the database are found, and repaired from the database."""

from __future__ import annotations

import pytest

import penstock
from penstock.core.options import Tube
from penstock.store.pool.epoch_runner import EpochRunner
from penstock.store.pool.index import Mirror, differences
from penstock.store.pool.pool_store import PoolStore
from penstock.store.pool.vault import Vault
from tests.pool.conftest import Connect
from tests.servers.redis import Redis
from tests.support.verbs import take


def pool_of(broker: penstock.Broker) -> PoolStore:
    store = broker.runtime.store
    assert isinstance(store, PoolStore)
    return store


def forget_row(broker: penstock.Broker, id: int) -> None:
    pool_of(broker)._vault._db.run(
        lambda session: session.change("DELETE FROM penstock_pool_task WHERE id = %s", (id,))
    )


def test_a_task_without_a_row_is_found_and_removed(broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    tube.put_many(["a", "b"])
    forget_row(broker, 1)
    [finding] = broker.check()
    assert (finding.tube, finding.id) == ("t", 1)
    assert finding.what == "is in Redis, but not in the database of the pool"
    assert broker.check(repair=True) == [finding]
    assert [task.data for task in tube.tasks()] == ["b"]


def test_a_take_buries_a_task_without_a_row(broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    tube.put_many(["a", "b"])
    forget_row(broker, 1)
    assert [task.data for task in tube.take_many(2)] == ["b"]
    buried = tube.peek(1)
    assert (buried.status, buried.reason) == ("!", "its data is not in the database of the pool")


@pytest.mark.parametrize("repair", [False, True])
def test_a_task_in_transit_to_the_database_is_not_a_finding(
    broker: penstock.Broker, connect: Connect, monkeypatch: pytest.MonkeyPatch, repair: bool
) -> None:
    tube, other = broker.tube("t"), connect()
    tube.put("gone")
    busy = other.tube("t")

    def halfway(runner: EpochRunner, vault: Vault, stored: Tube) -> tuple[list[int], list[int]]:
        with monkeypatch.context() as patch:
            patch.setattr(Mirror, "write_all", lambda mirror, dirty: None)
            busy.put("new")
            busy.delete(1)
        return differences(runner, vault, stored)

    monkeypatch.setattr("penstock.store.pool.pool_store.differences", halfway)
    assert broker.check(repair=repair) == []
    assert [task.data for task in tube.tasks()] == ["new"]


def test_a_row_without_a_task_is_found_and_loaded(broker: penstock.Broker, server: Redis) -> None:
    tube = broker.tube("t")
    tube.put_many(["a", "b"])
    tasks = pool_of(broker)._keys.name(tube.stored.no, "tasks").decode()
    assert server.ask("DEL", tasks) == "1"
    found = broker.check()
    assert {finding.id for finding in found if "not in Redis" in finding.what} == {1, 2}
    broker.check(repair=True)
    assert [take(tube).data, take(tube).data] == ["a", "b"]


def test_a_partly_lost_index_is_rebuilt(broker: penstock.Broker, server: Redis) -> None:
    tube, other = broker.tube("t"), broker.tube("other")
    tube.put("a")
    other.put("b")
    old = take(other)
    assert server.ask("DEL", pool_of(broker)._keys.name(tube.stored.no, "meta").decode()) == "1"
    assert take(tube).data == "a"
    with pytest.raises(penstock.NotTaken):
        old.ack()
