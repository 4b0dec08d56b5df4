"""Ids of a sharded tube: each belongs to one task of one shard, also above the ids of an imported tube."""

from __future__ import annotations

import pytest

from penstock.core.shards import home_of, last_up_to, own_id, own_in, public_id, shard_of
from tests.core.test_lifecycle import record


@pytest.mark.parametrize("floor", [0, 1, 7])
@pytest.mark.parametrize("shards", [2, 3, 8])
def test_an_id_above_the_floor_encodes_its_shard(shards: int, floor: int) -> None:
    owns = [(place, own) for own in range(floor + 1, floor + 5) for place in range(shards)]
    ids = [public_id(own, place, shards, floor) for place, own in owns]
    assert ids == list(range(floor + 1, floor + 1 + len(owns)))
    assert [own_id(id, shards, floor) for id in ids] == owns


@pytest.mark.parametrize("floor", [0, 1, 7])
@pytest.mark.parametrize("shards", [2, 3])
def test_the_last_one_up_to_an_id(shards: int, floor: int) -> None:
    for place in range(shards):
        for id in range(30):
            known = [own for own in range(1, 40) if public_id(own, place, shards, floor) <= id]
            assert last_up_to(id, place, shards, floor) == max(known, default=0)


def test_an_id_up_to_the_floor_is_the_same_in_its_shard() -> None:
    assert [own_in(id, 3, 9) for id in range(1, 10)] == list(range(1, 10))
    assert [public_id(id, place, 3, 9) for place in range(3) for id in (1, 9)] == [1, 9] * 3


def test_without_utube_and_address_the_guess_is_right() -> None:
    assert [home_of(record(), False, 3, id - 1) for id in range(1, 9)] == [own_id(id, 3, 8)[0] for id in range(1, 9)]
    assert home_of(record(address="a"), False, 3, 0) == shard_of("a", 3)
    assert home_of(record(utube="u", address="a"), True, 3, 0) == shard_of("u", 3)
