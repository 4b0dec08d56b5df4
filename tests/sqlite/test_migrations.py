"""A file of an older schema is brought up to date when it is opened, with everything in it."""

from __future__ import annotations

from pathlib import Path

import apsw

import penstock
from penstock.core.kind import find_kind
from penstock.store.sqlite import tubes
from penstock.store.sqlite.schema import MIGRATIONS


def test_tasks_of_the_first_schema_are_taken_by_this_one(tmp_path: Path) -> None:
    path = tmp_path / "queue.db"
    db = apsw.Connection(str(path))
    db.execute(MIGRATIONS[0].sql)
    db.execute("INSERT INTO penstock_meta (name, value) VALUES ('schema', '1'), ('id', 'old')")
    tube = tubes.add(db, "t", find_kind("fifo"), {})
    row = (tube.no << 40 | 1, tube.no, b'"old"')
    db.execute(
        "INSERT INTO penstock_task (key, tube, state, rank1, rank2, pri, attempts, lease, created, data) "
        "VALUES (?, ?, 'r', 0, 0, 0, 0, 0, 0, ?)",
        row,
    )
    db.close()
    with penstock.connect(f"sqlite:///{path}") as broker:
        reopened = broker.tube("t")
        task = reopened.take(0)
        assert task is not None
        assert (task.data, task.address, task.group) == ("old", None, None)
        task.ack()
        reopened.put("new", address="a", group="g")
        broker.tube("queue", kind="reliable").put("first")
        assert broker.check() == []
