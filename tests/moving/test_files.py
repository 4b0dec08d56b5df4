"""A tube goes into a file and comes back the same, on every store."""

from __future__ import annotations

import pytest

import penstock
from penstock.testing import Clock
from tests.moving.tubes import FILLED, exported, imported, opened, order, seen


@pytest.mark.parametrize("sort", FILLED)
def test_a_tube_comes_back_from_its_file_as_it_was(store_url: str, clock: Clock, sort: str) -> None:
    with opened(store_url, clock) as broker, opened(f"memory://{sort}", clock) as other:
        FILLED[sort](broker, clock)
        before = seen(broker, sort)
        content = exported(broker, sort)
        assert imported(other, content) == len(broker.tube(sort).tasks())
        assert seen(other, sort) == before
        assert imported(broker, exported(other, sort), "copy") == len(other.tube(sort).tasks())
        assert seen(broker, "copy") == before
        first, second = order(broker, "copy"), order(broker, sort)
        assert first == second


@pytest.mark.parametrize("sort", ["plain", "tied"])
def test_what_is_put_after_an_import_gets_an_id_that_never_was(store_url: str, clock: Clock, sort: str) -> None:
    with opened(store_url, clock) as broker:
        FILLED[sort](broker, clock)
        last = broker.tube(sort).put("last").id
        broker.tube(sort).delete(last)
        imported(broker, exported(broker, sort), "copy")
        assert broker.tube("copy").put("next").id == last + 1


def test_taken_tasks_come_in_as_at_the_end_of_their_session(store_url: str, clock: Clock) -> None:
    with opened(store_url, clock) as broker:
        tube = broker.tube("jobs", max_attempts=1)
        tube.put_many(["once", ("twice", {"max_attempts": 2})])
        assert len(tube.take_many(2)) == 2
        imported(broker, exported(broker, "jobs"), "copy")
        copy = broker.tube("copy")
        assert [(task.status, task.attempts) for task in copy.tasks()] == [("!", 1), ("r", 1)]
        assert copy.peek(1).reason == "handed out 1 times without an ack"


def test_end_work_follows_in_the_copy_too(store_url: str, clock: Clock) -> None:
    with opened(store_url, clock) as broker:
        FILLED["tied"](broker, clock)
        imported(broker, exported(broker, "tied"), "copy")
        copy = broker.tube("copy")
        assert copy.group("started").progress() == penstock.Progress(1, 3)
        for task in copy.tasks():
            if task.group == "started":
                copy.delete(task.id)
        assert [task.data for task in copy.tasks() if task.data == "all done"] == ["all done"]
        copy.group("waiting").cancel()
        assert [task.data for task in copy.tasks() if task.data == "cancelled"] == ["cancelled"]
