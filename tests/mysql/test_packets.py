"""Calls that are larger than the server's packet size: split where possible, refused otherwise."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import penstock
from tests.mysql.conftest import Connection
from tests.support.verbs import take

MIB = 2**20


@pytest.fixture
def tube(url: str, own: Connection) -> Iterator[penstock.Tube]:
    """A tube whose server accepts packets of 1 MiB."""
    cursor = own.cursor()
    cursor.execute("SELECT @@GLOBAL.max_allowed_packet")
    ((before,),) = cursor.fetchall()
    cursor.execute(f"SET GLOBAL max_allowed_packet = {MIB}")
    with penstock.connect(url) as broker:
        yield broker.tube("t")
        assert broker.check() == []
    cursor.execute(f"SET GLOBAL max_allowed_packet = {before}")


@pytest.mark.parametrize("addressed", [False, True])
def test_a_put_of_several_packets_is_one_step(tube: penstock.Tube, addressed: bool) -> None:
    data = ["x" * (MIB // 3)] * 5
    items = [(text, {"address": str(place)} if addressed else {}) for place, text in enumerate(data)]
    put = tube.put_many(items)
    assert [(task.id, task.data) for task in put] == list(enumerate(data, 1))
    assert tube.stats().tasks.ready == 5


def test_a_duplicate_in_the_last_packet_stores_nothing(tube: penstock.Tube) -> None:
    tube.put("there", address="4")
    items = [("x" * (MIB // 3), {"address": str(place)}) for place in range(5)]
    with pytest.raises(penstock.DuplicateAddress, match="address 4"):
        tube.put_many(items)
    assert tube.stats().calls.put == 1
    assert [task.id for task in tube.put_many(items, on_duplicate="replace")] == [2, 3, 4, 5, 1]


def test_what_cannot_be_sharded_is_refused(tube: penstock.Tube) -> None:
    large = "x" * (MIB - 100)
    for options in ({}, {"address": "a"}):
        with pytest.raises(penstock.PayloadTooLarge, match="max_allowed_packet"):
            tube.put(large, **options)  # type: ignore[arg-type]
    with pytest.raises(penstock.PayloadTooLarge, match="max_allowed_packet"):
        tube.group("g").on_end(large)
    tube.put("x", address="a")
    task = take(tube)
    with pytest.raises(penstock.PayloadTooLarge, match="max_allowed_packet"):
        task.ack(large)
    task.ack("small")
    assert tube.wait("a", 0).result == "small"
