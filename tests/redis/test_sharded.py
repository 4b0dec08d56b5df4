"""How sharded tubes are spread over servers, and what a step on several shards can leave behind."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from redis.crc import REDIS_CLUSTER_HASH_SLOTS as SLOTS
from redis.crc import key_slot

import penstock
from penstock.core.shards import shard_of
from penstock.store.redis.sharded import ShardedStore
from tests.servers.redis import Redis

SHARDS = 4


@pytest.fixture
def tube(broker: penstock.Broker) -> Iterator[penstock.Tube]:
    """A tube with tasks in each shard."""
    tube = broker.tube("t", shards=SHARDS)
    for n in range(SHARDS):
        tube.put(n)
    yield tube
    assert broker.check() == []


def store_of(broker: penstock.Broker) -> ShardedStore:
    store = broker.runtime.store
    assert isinstance(store, ShardedStore)
    return store


def address_in(shard: int, *, but: str = "") -> str:
    return next(text for n in range(100) if shard_of(text := f"a{n}", SHARDS) == shard and text != but)


def test_shards_are_on_every_node(broker: penstock.Broker) -> None:
    """Whatever its number, a tube with more shards than nodes uses all three nodes, and each node has slots."""
    store = store_of(broker)
    for n in range(4):
        tube = broker.tube(f"t{n}", shards=8)
        keys = [store._keys.name(shard.no, "meta") for shard in store._tubes.shards(tube.stored)]
        assert {key_slot(key) * 3 // SLOTS for key in keys} == {0, 1, 2}


def test_a_tube_without_the_option_is_one_stored_tube(broker: penstock.Broker) -> None:
    numbers = [broker.tube(name, shards=shards).stored.no for name, shards in (("a", None), ("b", 2), ("c", None))]
    assert numbers == [1, 2, 5]


def test_opening_a_tube_completes_an_unfinished_drop(broker: penstock.Broker, server: Redis) -> None:
    tube, store = broker.tube("t", shards=SHARDS), store_of(broker)
    for n in range(2 * SHARDS):
        tube.put(n)
    shards = store._tubes.shards(tube.stored)
    store._drop(shards[0])
    with pytest.raises(penstock.NoSuchTube):
        tube.drop()
    assert broker.tubes() == []
    assert len(broker.tube("t")) == 0
    left = server.ask("KEYS", f"{{{store._keys.prefix}:*}}:*").split()
    assert not [key for key in left if any(f":{shard.no}}}" in key for shard in shards)]


def test_a_refused_part_is_put_first(tube: penstock.Tube) -> None:
    taken = address_in(0)
    tube.put("x", address=taken)
    with pytest.raises(penstock.DuplicateAddress):
        tube.put_many([*range(50), ("y", {"address": taken})])
    assert len(tube) == SHARDS + 1


def test_the_error_of_a_partly_refused_call_says_what_is_stored(tube: penstock.Tube) -> None:
    taken = address_in(1)
    tube.put("x", address=taken)
    fresh = [("y", {"address": address_in(shard, but=taken)}) for shard in (0, 1, 2)]
    with pytest.raises(penstock.DuplicateAddress, match=r"1 of 4 tasks are stored, in other shards"):
        tube.put_many([*fresh, ("z", {"address": taken})])
    assert len(tube) == SHARDS + 2


def test_puts_that_share_a_call_are_stored_once(url: str) -> None:
    """One of them is refused in its shard after those of others were stored in theirs."""

    async def put_all() -> list[object]:
        async with penstock.aio.connect(url) as broker:
            tube = await broker.tube("t", shards=SHARDS)
            puts = [tube.put(n, address=f"a{n % 20}") for n in range(40)]
            return await asyncio.gather(*puts, *[tube.put(n) for n in range(40)], return_exceptions=True)

    answers = asyncio.run(put_all())
    assert sum(isinstance(answer, penstock.DuplicateAddress) for answer in answers) == 20
    with penstock.connect(url) as broker:
        assert len(broker.tube("t")) == 60


def test_findings_have_the_ids_of_the_tube(broker: penstock.Broker, tube: penstock.Tube) -> None:
    task = tube.put("lost")
    store = store_of(broker)
    shard = store._tubes.shards(tube.stored)[(task.id - 1) % SHARDS]
    store._servers.command(ready := store._keys.name(shard.no, "ready"), "DEL", ready)
    assert task.id in [finding.id for finding in broker.check(repair=True)]
    assert len(tube.take_many(9)) == SHARDS + 1
