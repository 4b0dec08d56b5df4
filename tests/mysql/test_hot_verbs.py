"""The fast paths: a put into a dropped tube, and what no hot verb may cost."""

from __future__ import annotations

import pytest

import penstock
from tests.mysql.conftest import Connection
from tests.support.quiet_broker import quiet
from tests.support.verbs import take


@pytest.mark.parametrize("bound", [False, True])
def test_a_plain_put_into_a_tube_that_is_gone_stores_nothing(
    broker: penstock.Broker, own: Connection, bound: bool
) -> None:
    gone, other = broker.tube("gone"), broker.tube("other")
    own.autocommit(False)
    puts = broker.bind(own).tube("gone") if bound else gone
    other.put("a number that this connection has been given before")
    gone.drop()
    with pytest.raises(penstock.NoSuchTube, match="gone"):
        puts.put("x")
    own.commit()
    cursor = own.cursor()
    cursor.execute(f"SELECT COUNT(*) FROM penstock_task WHERE tube = {gone.stored.no}")
    assert cursor.fetchall() == ((0,),)
    assert other.put("next").id == 2
    assert broker.check() == []


def test_no_hot_verb_makes_a_table_on_disk(broker: penstock.Broker) -> None:
    quiet(broker)  # during a heartbeat, the next call may use another connection
    tube = broker.tube("t", ttl=60, ttr=30)
    server = broker.runtime.store.server  # type: ignore[attr-defined]

    def made() -> int:
        ((_, tables),) = server.send(["SHOW SESSION STATUS LIKE 'Created_tmp_disk_tables'"]).results[0]
        return int(tables)

    before = made()
    tube.put("one")
    tube.put_many(range(200))
    take(tube).ack()
    tasks = tube.take_many(100)
    assert tube.ack_many(tasks) == [True] * 100
    assert made() == before
