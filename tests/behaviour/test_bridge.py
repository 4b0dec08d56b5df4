"""What the RabbitMQ bridge stores and settles, with an in-memory queue. tests/amqp/rabbitmq.py has the real server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import pytest

import penstock
from penstock.amqp.bridge import Consume, Publish
from penstock.amqp.connection import ConnectionLost, QueueConnection
from penstock.amqp.message import Message


class Queue:
    """Delivers these messages at once, and confirms each publish unless its body is listed."""

    name = "q"

    def __init__(self, *messages: Message, refuses: Sequence[bytes] = ()) -> None:
        self.received = 0
        self.acked: list[Message] = []
        self.rejected: list[Message] = []
        self.published: list[Message] = []
        self._messages, self._refuses = messages, refuses

    def receive(self, most: int, timeout: float) -> Sequence[Message]:
        self.received += 1
        return self._messages

    def ack(self, message: Message) -> None:
        self.acked.append(message)

    def reject(self, message: Message) -> None:
        self.rejected.append(message)

    def publish(self, messages: Sequence[Message]) -> list[str | None]:
        self.published += messages
        return ["it is full" if message.body in self._refuses else None for message in messages]

    def confirm(self) -> None: ...
    def check(self) -> None: ...


def link(queue: Queue) -> QueueConnection:
    return cast(QueueConnection, queue)


def message(id: str | None, body: bytes = b"x") -> Message:
    return Message(body, id)


def test_an_id_is_stored_once_while_its_task_is_there_and_after_it_has_ended(broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    consume = Consume(tube, 10)
    for _ in range(2):
        queue = Queue(message("a"), message("b"), message("a"))
        assert consume.step(link(queue)) == 3
        assert queue.acked == [message("a")]  # the last, and with it all before
    tube.ack_many(tube.take_many(1))
    consume.step(link(Queue(message("a"), message("b"), message("c"))))
    assert [task.address for task in tube.take_many(10)] == ["b", "c"]
    assert (consume.counts["stored"], consume.counts["duplicates"]) == (3, 6)


def test_messages_without_an_id_are_all_stored(broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    consume = Consume(tube, 10)
    consume.step(link(Queue(message(None, b"1"), message(None, b"1"))))
    assert [task.data for task in tube.take_many(10)] == [b"1", b"1"]
    assert consume.counts["without_id"] == 2


def test_a_message_that_the_tube_refuses_stops_the_bridge_or_is_rejected(broker: penstock.Broker) -> None:
    tube = broker.tube("t", max_payload=100)
    large = message("large", b"x" * 200)
    queue = Queue(message("a"), large, message("b"))
    with pytest.raises(penstock.BadValue, match="message large of queue q is refused .* give --reject"):
        Consume(tube, 10).step(link(queue))
    assert queue.acked == []
    consume = Consume(tube, 10, reject=True)
    consume.step(link(queue))
    assert queue.rejected == [large]
    assert sorted(str(task.address) for task in tube.take_many(10)) == ["a", "b"]
    assert consume.counts["rejected"] == 1


def test_a_batch_that_finds_the_tube_full_is_kept_and_tried_again(broker: penstock.Broker) -> None:
    tube = broker.tube("t", capacity=2)
    tube.put_many([1, 2])
    queue, consume = Queue(message("a"), message("b")), Consume(tube, 10)
    with pytest.raises(penstock.TubeFull):
        consume.step(link(queue))
    assert queue.acked == []
    tube.ack_many(tube.take_many(2))
    assert consume.step(link(queue)) == 2
    assert queue.received == 1
    assert [task.address for task in tube.take_many(10)] == ["a", "b"]


def test_confirmed_tasks_are_acked_and_the_others_released_with_the_reason(broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    tube.put_many([b"1", b"2", b"3"])
    queue = Queue(refuses=[b"2"])
    publish = Publish(broker, "t", 10)
    publish.begin(link(queue))
    assert publish.step(link(queue)) == 3
    assert [message.body for message in queue.published] == [b"1", b"2", b"3"]
    [left] = tube.tasks()
    assert (left.data, left.status, left.reason) == (b"2", penstock.Status.READY, "NotConfirmed: it is full")
    with pytest.raises(ConnectionLost, match="nothing was confirmed .it is full."):
        publish.step(link(queue))
    assert (publish.counts["published"], publish.counts["released"]) == (2, 2)


def test_a_new_connection_releases_what_the_old_one_held(broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    tube.put(b"1")
    publish = Publish(broker, "t", 10)
    publish.begin(link(Queue()))
    assert len(publish.tube.take_many(10)) == 1
    publish.begin(link(Queue()))
    assert tube.stats().tasks.ready == 1
