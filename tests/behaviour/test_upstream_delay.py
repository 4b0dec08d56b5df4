"""The rules of the seed's delay queue (Redis in front of MySQL): jobs, timer, ready queue and response queue.

A topic is a tube, a job's id its address, a bucket the delayed tasks, the dispatcher any process that uses the tube.
"""

from __future__ import annotations

import pytest

import penstock
from penstock.testing import Clock
from tests.conftest import Connect
from tests.support.inspection import calls, tasks, waiters
from tests.support.threads import begin, until
from tests.support.verbs import drain, take

CALLBACK = "http://shop.example/orders/close"


@pytest.fixture
def orders(broker: penstock.Broker) -> penstock.Tube:
    return broker.create_tube("orders")


# the job


def test_a_job_has_a_topic_an_id_a_delay_a_ttr_a_body_and_a_callback(orders: penstock.Tube, clock: Clock) -> None:
    job = orders.put({"order": 7}, address="order-7", delay=1.5, ttr=2, callback=CALLBACK)
    assert (job.tube, job.address, job.status, job.due) == ("orders", "order-7", "~", clock.seconds + 1.5)
    clock.advance(1.5)
    taken = take(orders)
    assert (taken.data, taken.address, taken.due) == ({"order": 7}, "order-7", clock.seconds + 2)


def test_a_job_id_is_unique_in_its_topic(broker: penstock.Broker, orders: penstock.Tube) -> None:
    orders.put("close", address="7", delay=5)
    broker.create_tube("mails").put("remind", address="7", delay=5)
    with pytest.raises(penstock.DuplicateAddress):
        orders.put("again", address="7", delay=5)
    assert tasks(orders) == {"delayed": 1, "total": 1}


def test_a_job_can_be_taken_back_before_it_is_due(orders: penstock.Tube, clock: Clock) -> None:
    job = orders.put("close", address="7", delay=5)
    orders.delete(job.id)
    clock.advance(5)
    assert orders.take(0) is None
    assert orders.wait("7", 0).status == "deleted"


@pytest.mark.parametrize(("delay", "due"), [(1, 1), (9, 9), (0, 0)])
def test_a_job_can_be_moved_before_it_is_due(orders: penstock.Tube, clock: Clock, delay: float, due: float) -> None:
    orders.put("close", address="7", delay=5)
    moved = orders.put("close later", address="7", delay=delay, on_duplicate="replace")
    clock.advance(due)
    assert (take(orders).data, moved.id, calls(orders)["put"]) == ("close later", 1, 1)


# the timer


def test_jobs_become_ready_in_the_order_of_their_times(orders: penstock.Tube, clock: Clock) -> None:
    for delay in (3, 1, 2):
        orders.put(delay, delay=delay)
    found: list[object] = []
    for _ in range(3):
        clock.advance(1)
        found += drain(orders)
    assert found == [1, 2, 3]


def test_nothing_is_ready_a_moment_too_early(orders: penstock.Tube, clock: Clock) -> None:
    orders.put("close", delay=1)
    clock.advance(0.999)
    assert orders.take(0) is None
    clock.advance(0.001)
    assert take(orders).data == "close"


def test_due_jobs_are_moved_once_by_any_reader(orders: penstock.Tube, connect: Connect, clock: Clock) -> None:
    orders.put_many(range(5), delay=1)
    others = [connect().tube("orders") for _ in range(3)]
    clock.advance(1)
    found = [[task.data for task in tube.take_many(2)] for tube in others]
    assert found == [[0, 1], [2, 3], [4]]
    assert calls(orders) == {"put": 5, "delay": 5, "take": 5}


def test_the_next_waiter_takes_over_the_next_due_time(broker: penstock.Broker, clock: Clock) -> None:
    """The waiter that knew the next deadline leaves; another one is still woken at it."""
    tube = broker.tube("orders")
    one, two = broker.session(), broker.session()
    first = begin(lambda: one.tube("orders").take(60))
    second = begin(lambda: two.tube("orders").take(60))
    until(lambda: waiters(broker, "orders") == 2)
    tube.put("close", delay=0.2)
    one.close()
    assert first.result(30) is None
    clock.advance(0.2)
    task = second.result(30)
    assert task is not None
    assert task.data == "close"
    two.close()


def test_a_nearer_job_that_is_put_later_shortens_the_wait(live: penstock.Broker) -> None:
    tube = live.tube("orders")
    tube.put("in an hour", delay=3600)
    got = begin(lambda: tube.take(30))
    until(lambda: waiters(live, "orders") == 1)
    tube.put("in a moment", delay=0.05)
    task = got.result(30)
    assert task is not None
    assert task.data == "in a moment"


# the ready queue


def test_topics_are_independent(broker: penstock.Broker, orders: penstock.Tube) -> None:
    broker.create_tube("mails").put("remind")
    orders.put("close")
    assert drain(orders) == ["close"]
    assert tasks(broker.tube("mails")) == {"ready": 1, "total": 1}


def test_a_job_without_an_answer_within_its_ttr_is_ready_again(orders: penstock.Tube, clock: Clock) -> None:
    orders.put("close", ttr=5)
    late = take(orders)
    clock.advance(5)
    again = take(orders)
    assert (again.id, again.attempts) == (late.id, 2)
    with pytest.raises(penstock.NotTaken):
        late.ack()
    again.ack()


def test_a_job_that_was_answered_is_not_ready_again(orders: penstock.Tube, clock: Clock) -> None:
    orders.put("close", ttr=5)
    take(orders).ack()
    clock.advance(5)
    assert (orders.take(0), tasks(orders)) == (None, {"done": 1})


def test_a_job_is_buried_after_its_attempts(orders: penstock.Tube, clock: Clock) -> None:
    orders.put("close", ttr=1, max_attempts=3)
    for _ in range(3):
        take(orders)
        clock.advance(1)
    assert orders.take(0) is None
    aside = orders.peek(1)
    assert (aside.status, aside.attempts) == ("!", 3)
    assert "3" in (aside.reason or "")


def test_a_job_goes_back_into_the_delay_queue(orders: penstock.Tube, clock: Clock) -> None:
    orders.put("close", ttr=5)
    take(orders).release(delay=2)
    assert tasks(orders) == {"delayed": 1, "total": 1}
    clock.advance(2)
    assert take(orders).attempts == 2


def test_a_consumer_that_shuts_down_leaves_no_job_behind(orders: penstock.Tube, connect: Connect) -> None:
    orders.put_many(["a", "b"])
    consumer = connect()
    consumer.tube("orders").take_many(2)
    consumer.close()
    assert drain(orders) == ["a", "b"]


# the response queue


def test_the_response_goes_into_the_response_queue(broker: penstock.Broker, orders: penstock.Tube) -> None:
    orders.put("close", address="7", reply_to="responses")
    take(orders).ack({"closed": True})
    (response,) = broker.tube("responses").take_many(5)
    assert response.data == {"id": 1, "address": "7", "status": "done", "result": {"closed": True}}


def test_a_job_in_the_delay_queue_has_no_response_yet(broker: penstock.Broker, orders: penstock.Tube) -> None:
    orders.put("close", delay=5, reply_to="responses")
    assert [info.name for info in broker.tubes() if info.name == "responses" and broker.tube(info.name).tasks()] == []


def test_a_retried_job_responds_once(broker: penstock.Broker, orders: penstock.Tube, clock: Clock) -> None:
    orders.put("close", ttr=1, reply_to="responses")
    take(orders)
    clock.advance(1)
    take(orders).ack("second")
    assert [task.data["result"] for task in broker.tube("responses").tasks()] == ["second"]
