"""A database of an older schema is brought up to date when it is opened."""

from __future__ import annotations

import penstock
from tests.behaviour.verbs import drain, take
from tests.mysql.conftest import Connection


def test_tubes_of_an_older_schema_get_what_they_lack(url: str, own: Connection) -> None:
    with penstock.connect(url) as broker:
        broker.tube("t", pri=3, retention=60).put("old")
        broker.tube("replies", kind="utubettl", ttl=50)
    cursor = own.cursor()
    cursor.execute("UPDATE penstock_meta SET value = '5' WHERE name = 'schema'")
    cursor.execute("UPDATE penstock_tube SET plain = NULL, retention = 0")
    cursor.execute("DROP PROCEDURE penstock_put")
    for name in ("take", "take_one", "ack_one", "ack_all"):
        cursor.execute(f"DROP PROCEDURE penstock_{name}")
    with penstock.connect(url) as broker:
        tube = broker.tube("t")
        group = tube.group("g")
        group.put("x", address="a", reply_to="replies", pri=1)
        group.on_end("end")
        group.start()
        take(tube).ack("result")
        assert tube.wait("a", 0) == penstock.Outcome("done", "result")
        assert [(task.data, task.pri) for task in tube.take_many(5)] == [("old", 3), ("end", 3)]
        reply = take(broker.tube("replies"))
        assert (reply.data, reply.expires) == (
            {"id": 2, "address": "a", "status": "done", "result": "result"},
            reply.created + 50,
        )
        assert drain(broker.tube("replies")) == []
        assert broker.check() == []
