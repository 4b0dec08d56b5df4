"""The rules and tests of the seed's round queue (a Go library on Redis), as far as our rules allow.

Differences by our rules: nobody has to start its cleaner, times are milliseconds and not seconds, removing an unknown
id is NotFound, and the data of a stored element can be replaced.
"""

from __future__ import annotations

import pytest

import penstock
from penstock.testing import Clock
from tests.support.inspection import calls
from tests.support.verbs import take

THREE = [("somedata", {"id": "123"}), ("somedata2", {"id": "456"}), ("somedata3", {"id": "789"})]


@pytest.fixture
def tube(broker: penstock.Broker) -> penstock.Tube:
    return broker.create_tube("tsrtest", "round", period=1, ttl=10)


def all_due(tube: penstock.Tube) -> list[tuple[str, object]]:
    """Dequeue until the queue is empty."""
    found = []
    while (task := tube.take(0)) is not None:
        found.append((task.id, task.data))
    return found


IN_ORDER = [("123", "somedata"), ("456", "somedata2"), ("789", "somedata3")]


def test_dequeue_of_an_empty_queue(tube: penstock.Tube) -> None:
    assert tube.take(0) is None


def test_enqueue_and_dequeue(tube: penstock.Tube, clock: Clock) -> None:
    tube.put("somedata", id="123")
    assert (take(tube).id, tube.peek("123").data) == ("123", "somedata")
    clock.advance(0.01)
    assert tube.take(0) is None
    clock.advance(1)
    assert take(tube).id == "123"


def test_several_are_dequeued_in_turn_and_again_after_the_period(tube: penstock.Tube, clock: Clock) -> None:
    for data, options in THREE:
        tube.put(data, id=options["id"])
    assert all_due(tube) == IN_ORDER
    clock.advance(1)
    assert all_due(tube) == IN_ORDER


def test_dequeue_gives_the_data_of_its_id(tube: penstock.Tube) -> None:
    tube.put_many(THREE)
    assert {task.id: task.data for task in tube.take_many(3)} == dict(IN_ORDER)


def test_a_dequeued_element_goes_to_the_end(tube: penstock.Tube, clock: Clock) -> None:
    tube.put_many(THREE)
    take(tube)
    clock.advance(1)
    assert [id for id, _ in all_due(tube)] == ["456", "789", "123"]


def test_a_new_element_comes_before_those_handed_out_earlier(tube: penstock.Tube, clock: Clock) -> None:
    tube.put_many(THREE[:2])
    all_due(tube)
    clock.advance(1)
    tube.put("somedata3", id="789")
    assert [id for id, _ in all_due(tube)] == ["789", "123", "456"]


def test_the_first_element_alone_decides_whether_there_is_one(tube: penstock.Tube, clock: Clock) -> None:
    tube.put_many(THREE[:2])
    take(tube)
    clock.advance(0.5)
    take(tube)
    clock.advance(0.499)
    assert tube.take(0) is None
    clock.advance(0.001)
    assert [id for id, _ in all_due(tube)] == ["123"]


def test_the_period_is_over_at_its_very_end(tube: penstock.Tube, clock: Clock) -> None:
    tube.put("somedata", id="123")
    take(tube)
    clock.advance(0.999)
    assert tube.take(0) is None
    clock.advance(0.001)
    assert take(tube).id == "123"


def test_a_dequeue_that_gave_nothing_moves_no_clock(tube: penstock.Tube, clock: Clock) -> None:
    tube.put("somedata", id="123")
    take(tube)
    for _ in range(9):
        clock.advance(0.1)
        assert tube.take(0) is None
    clock.advance(0.1)
    assert take(tube).id == "123"


def test_enqueue_of_an_id_that_is_there_leaves_its_data(tube: penstock.Tube) -> None:
    tube.put("somedata", id="123")
    tube.put("other", id="123")
    assert all_due(tube) == [("123", "somedata")]


def test_enqueue_of_an_id_that_is_there_leaves_its_clock(tube: penstock.Tube, clock: Clock) -> None:
    tube.put("somedata", id="123")
    take(tube)
    tube.put("somedata", id="123")
    assert tube.take(0) is None
    clock.advance(1)
    assert take(tube).id == "123"


def test_enqueue_of_an_id_that_is_there_leaves_its_time_of_creation(tube: penstock.Tube, clock: Clock) -> None:
    tube.put("somedata", id="123")
    clock.advance(9)
    tube.put("somedata", id="123")
    clock.advance(1)
    assert len(tube) == 0


def test_remove(tube: penstock.Tube) -> None:
    tube.put("somedata", id="123")
    tube.delete("123")
    assert tube.take(0) is None


def test_remove_of_one_that_was_dequeued(tube: penstock.Tube, clock: Clock) -> None:
    tube.put_many(THREE)
    all_due(tube)
    tube.delete("456")
    clock.advance(1)
    assert [id for id, _ in all_due(tube)] == ["123", "789"]


def test_remove_of_an_unknown_id(tube: penstock.Tube) -> None:
    with pytest.raises(penstock.NotFound, match="123"):
        tube.delete("123")


def test_exists(tube: penstock.Tube) -> None:
    tube.put("somedata", id="123")
    assert "123" in tube
    assert "456" not in tube
    take(tube)
    assert "123" in tube
    tube.delete("123")
    assert "123" not in tube


def test_count(tube: penstock.Tube) -> None:
    tube.put_many(THREE)
    assert len(tube) == 3
    all_due(tube)
    assert len(tube) == 3
    tube.delete("123")
    assert len(tube) == 2


def test_cleanup(tube: penstock.Tube, clock: Clock) -> None:
    tube.put_many(THREE)
    assert len(tube) == 3
    clock.advance(10)
    assert len(tube) == 0
    assert calls(tube)["ttl"] == 3


def test_cleanup_removes_the_old_ones_only(tube: penstock.Tube, clock: Clock) -> None:
    tube.put_many(THREE[:2])
    clock.advance(5)
    tube.put("somedata3", id="789")
    clock.advance(5)
    assert [id for id, _ in all_due(tube)] == ["789"]
    assert ("123" in tube, "789" in tube) == (False, True)


def test_the_time_to_live_counts_from_the_creation_and_not_from_the_last_dequeue(
    tube: penstock.Tube, clock: Clock
) -> None:
    tube.put("somedata", id="123")
    for _ in range(9):
        clock.advance(1)
        take(tube)
    clock.advance(1)
    assert tube.take(0) is None
    assert len(tube) == 0


def test_an_element_that_was_cleaned_up_can_be_enqueued_again(tube: penstock.Tube, clock: Clock) -> None:
    tube.put("somedata", id="123")
    take(tube)
    clock.advance(10)
    tube.put("again", id="123")
    assert all_due(tube) == [("123", "again")]
