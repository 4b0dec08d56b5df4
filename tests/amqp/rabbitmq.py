"""The bridge and a real RabbitMQ, both killed at many points. Run separately: `pytest tests/amqp/rabbitmq.py`."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import pika
import pytest

import penstock
from penstock.amqp.bridge import Bridge, Consume, Publish
from penstock.amqp.connection import UNCONFIRMED, QueueConnection, parse_url
from penstock.amqp.message import Message
from tests.servers import started
from tests.servers.rabbitmq import RabbitMQ
from tests.support.peer import environment
from tests.support.threads import begin, until

MESSAGES = 4_000
BATCH = 10


class Queue:
    """A durable queue, as another program uses it."""

    def __init__(self, server: RabbitMQ, **arguments: object) -> None:
        self.name = f"q{uuid4().hex[:12]}"
        self._server = server
        with self._channel() as channel:
            channel.queue_declare(self.name, durable=True, arguments=arguments)

    @contextmanager
    def _channel(self) -> Iterator[pika.adapters.blocking_connection.BlockingChannel]:
        connection = pika.BlockingConnection(pika.URLParameters(self._server.url))
        try:
            yield connection.channel()
        finally:
            connection.close()

    def put(self, bodies: Sequence[bytes], **properties: object) -> None:
        """Publish persistent messages and wait for the confirms. A message's id is its body, unless given."""
        with self._channel() as channel:
            channel.confirm_delivery()
            for body in bodies:
                given = {"message_id": body.decode(), **properties}
                channel.basic_publish("", self.name, body, pika.BasicProperties(delivery_mode=2, **given))

    def get_all(self) -> list[tuple[pika.BasicProperties, bytes]]:
        """Return all messages of the queue and leave it empty."""
        found: list[tuple[pika.BasicProperties, bytes]] = []
        with self._channel() as channel:
            while True:
                method, properties, body = channel.basic_get(self.name, auto_ack=True)
                if method is None:
                    return found
                found.append((properties, body))

    def delete(self) -> None:
        """Delete the queue."""
        with self._channel() as channel:
            channel.queue_delete(self.name)


@pytest.fixture(scope="module")
def server() -> Iterator[RabbitMQ]:
    with started(RabbitMQ) as server:
        yield server


@pytest.fixture
def queue(server: RabbitMQ) -> Queue:
    return Queue(server)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/queue.db"


@pytest.fixture
def broker(url: str) -> Iterator[penstock.Broker]:
    with penstock.connect(url) as broker:
        yield broker


class Program:
    """A bridge in a separate process."""

    def __init__(self, server: RabbitMQ, url: str, queue: Queue, *words: str, point: int | None = None) -> None:
        module = ["penstock", "bridge"] if point is None else ["tests.amqp.killed_bridge", str(point)]
        command = [sys.executable, "-m", *module, "--queue", queue.name, "--tube", "t", "--json", *words]
        own = {"PENSTOCK_URL": url, "PENSTOCK_AMQP_URL": server.url}
        self.process = subprocess.Popen(
            command, env={**environment(), **own}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def await_ready(self) -> None:
        """Wait for its first line."""
        assert self.process.stdout is not None
        assert json.loads(self.process.stdout.readline())["event"] == "working"

    def stop(self, how: int = signal.SIGTERM) -> dict[str, int]:
        """Stop it by a signal. Returns its counts, none if it was killed."""
        self.process.send_signal(how)
        return self.end()

    def end(self) -> dict[str, int]:
        """Wait until the process ends. Returns its counts, none if it was killed."""
        output, log = self.process.communicate(timeout=120)
        assert self.process.returncode in (0, -signal.SIGKILL), log
        assert "guest:guest" not in output + log
        lines = [json.loads(line) for line in output.splitlines()]
        return next((line["counts"] for line in lines if line["event"] == "stopped"), {})


class Consumer:
    """Takes and acks everything in the tube at once, so that a task has left before its message is redelivered."""

    def __init__(self, url: str) -> None:
        self.seen: Counter[str] = Counter()
        self._stop = threading.Event()
        self._done = begin(lambda: self._run(url))

    def _run(self, url: str) -> None:
        with penstock.connect(url) as broker:
            tube = broker.tube("t", pri=255)
            while not self._stop.is_set():
                tasks = tube.take_many(50, 0.2)
                tube.ack_many(tasks)
                self.seen.update(bytes(task.data).decode() for task in tasks)

    def stop(self) -> None:
        self._stop.set()
        self._done.result(60)


def names(number: int) -> list[bytes]:
    return [f"m{place}".encode() for place in range(number)]


def exactly_once(seen: Counter[str], number: int) -> bool:
    return set(seen) == {name.decode() for name in names(number)} and set(seen.values()) == {1}


# In: from the queue to the tube.


def test_properties_and_bodies_become_tasks(server: RabbitMQ, queue: Queue, url: str, broker: penstock.Broker) -> None:
    queue.put([b'{"n": 1}'], message_id="a", content_type="application/json", priority=9, reply_to="answers")
    queue.put([b"\0"], message_id=None)
    queue.put([b"late"], message_id="c", content_type="text/plain", headers={"x-delay": 60_000})
    assert Program(server, url, queue, "--drain").end() == {
        "stored": 3, "duplicates": 0, "without_id": 1, "rejected": 0,
    }  # fmt: skip
    tube = broker.tube("t")
    first, second, third = tube.tasks()
    assert (first.data, first.address, first.pri) == ({"n": 1}, "a", 246)
    assert (second.data, second.address, second.pri) == (b"\0", None, 255)
    assert (third.data, third.status) == ("late", penstock.Status.DELAYED)
    [task] = tube.take_many(1)
    task.ack("done")
    [reply] = broker.tube("answers").take_many(1)
    assert reply.data == {"id": 1, "address": "a", "status": "done", "result": "done"}
    assert queue.get_all() == []


def test_a_repeated_id_is_stored_once_also_after_its_task_has_ended(
    server: RabbitMQ, queue: Queue, url: str, broker: penstock.Broker
) -> None:
    for _ in range(2):
        queue.put(names(3))
        Program(server, url, queue, "--drain").end()
    tube = broker.tube("t")
    tube.ack_many(tube.take_many(10))
    queue.put(names(4))
    assert Program(server, url, queue, "--drain").end()["duplicates"] == 3
    assert [task.data for task in tube.take_many(10)] == [b"m3"]


@pytest.mark.parametrize("point", range(1, 13))
def test_in_the_bridge_dies_before_and_after_each_store_and_ack(
    server: RabbitMQ, queue: Queue, url: str, point: int
) -> None:
    queue.put(names(100))
    consumer = Consumer(url)
    Program(server, url, queue, "--batch", "25", "--drain", point=point).end()
    until(lambda: not consumer._done.done() and penstock_is_idle(url))  # the stored task has left before the redelivery
    Program(server, url, queue, "--drain").end()
    until(lambda: sum(consumer.seen.values()) >= 100)
    consumer.stop()
    assert exactly_once(consumer.seen, 100)
    assert queue.get_all() == []


def penstock_is_idle(url: str) -> bool:
    with penstock.connect(url) as broker:
        return broker.tube("t", pri=255).stats().tasks.total == 0


def test_in_the_bridge_is_killed_again_and_again(server: RabbitMQ, queue: Queue, url: str) -> None:
    queue.put(names(MESSAGES))
    consumer, kills = Consumer(url), 0
    while len(consumer.seen) < MESSAGES and kills < 60:
        bridge = Program(server, url, queue, "--batch", str(BATCH))
        bridge.await_ready()
        time.sleep(0.02 * (kills % 10))  # at another time in every run
        bridge.stop(signal.SIGKILL)
        kills += 1
    Program(server, url, queue, "--drain").end()
    until(lambda: sum(consumer.seen.values()) >= MESSAGES)
    consumer.stop()
    assert exactly_once(consumer.seen, MESSAGES)
    print(f"\n{kills} kills")  # noqa: T201


def test_in_rabbitmq_is_killed_and_restarted(server: RabbitMQ, queue: Queue, url: str) -> None:
    queue.put(names(MESSAGES))
    consumer = Consumer(url)
    bridge = Program(server, url, queue, "--batch", str(BATCH))
    for share in (4, 2):
        until(lambda share=share: len(consumer.seen) >= MESSAGES // share, 120)  # type: ignore[misc]
        server.restart()
    until(lambda: sum(consumer.seen.values()) >= MESSAGES, 120)
    counts = bridge.stop()
    consumer.stop()
    print(f"\n{counts}")  # noqa: T201
    assert exactly_once(consumer.seen, MESSAGES)
    assert queue.get_all() == []


def test_a_refused_message_stops_it_or_is_dead_lettered(server: RabbitMQ, url: str, broker: penstock.Broker) -> None:
    dead = Queue(server)
    arguments = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead.name}
    queue = Queue(server, **arguments)
    broker.create_tube("t", "fifottl", max_payload=100)
    queue.put([b"fits", b"fits too"])
    queue.put([b"x" * 200], message_id="large")
    stopped = Program(server, url, queue, "--drain")
    _, log = stopped.process.communicate(timeout=60)
    assert stopped.process.returncode == 1
    assert f"message large of queue {queue.name} is refused" in log.splitlines()[-1]
    assert Program(server, url, queue, "--drain", "--reject").end()["rejected"] == 1
    assert [body for _, body in dead.get_all()] == [b"x" * 200]
    assert {task.data for task in broker.tube("t").tasks()} == {b"fits", b"fits too"}


def test_a_full_tube_makes_it_wait(server: RabbitMQ, queue: Queue, url: str, broker: penstock.Broker) -> None:
    tube = broker.create_tube("t", "fifottl", capacity=5)
    queue.put(names(20))
    bridge = Program(server, url, queue)
    got: list[object] = []
    until(lambda: len(tube) == 5)
    while len(got) < 20:
        tasks = tube.take_many(5, 20)
        tube.ack_many(tasks)
        got += [task.data for task in tasks]
    assert got == names(20)
    assert bridge.stop()["stored"] == 20


# Out: from the tube to the queue.


def test_tasks_become_messages(server: RabbitMQ, queue: Queue, url: str, broker: penstock.Broker) -> None:
    tube = broker.tube("t", pri=10)
    tube.put({"n": 1}, address="a", pri=7, ttl=600)
    tube.put(b"\0")
    counts = Program(server, url, queue, "--publish", "--drain").end()
    assert counts == {"published": 2, "released": 0, "repeated": 0}
    (first, json_body), (second, bytes_body) = queue.get_all()
    assert (json_body, first.content_type, first.message_id, first.priority) == (b'{"n":1}', "application/json", "a", 3)
    assert 0 < int(first.expiration) <= 600_000
    assert (bytes_body, second.content_type, second.priority) == (b"\0", "application/octet-stream", None)
    assert (first.delivery_mode, len(tube)) == (2, 0)


def published(queue: Queue, number: int) -> Counter[bytes]:
    """Returns how often each message arrived; fails if one is missing."""
    found = queue.get_all()
    assert {properties.message_id for properties, _ in found} == {body.decode() for _, body in found}
    arrived = Counter(body for _, body in found)
    assert set(arrived) == set(names(number))
    return arrived


def put_named(broker: penstock.Broker, number: int) -> None:
    broker.tube("t").put_many([(name, {"address": name.decode()}) for name in names(number)])


@pytest.mark.parametrize("point", range(1, 13))
def test_out_the_bridge_dies_before_and_after_each_publish_and_ack(
    server: RabbitMQ, queue: Queue, url: str, broker: penstock.Broker, point: int
) -> None:
    put_named(broker, 100)
    Program(server, url, queue, "--publish", "--batch", "25", "--drain", point=point).end()
    tube = broker.tube("t")
    until(lambda: tube.stats().tasks.taken == 0)  # those of the dead session are ready again
    Program(server, url, queue, "--publish", "--drain").end()
    repeats = sum(published(queue, 100).values()) - 100
    # In each batch: take_many, publish, ack_many. Only a death between publish and ack repeats the batch.
    assert repeats == (25 if (point - 1) % 6 in (3, 4) else 0), repeats


def test_out_the_bridge_is_killed_again_and_again(
    server: RabbitMQ, queue: Queue, url: str, broker: penstock.Broker
) -> None:
    put_named(broker, MESSAGES)
    tube, kills = broker.tube("t"), 0
    while len(tube) and kills < 60:
        bridge = Program(server, url, queue, "--publish", "--batch", str(BATCH))
        bridge.await_ready()
        time.sleep(0.02 * (kills % 10))
        bridge.stop(signal.SIGKILL)
        kills += 1
    until(lambda: tube.stats().tasks.taken == 0)
    Program(server, url, queue, "--publish", "--drain").end()
    repeats = sum(published(queue, MESSAGES).values()) - MESSAGES
    print(f"\n{kills} kills, {repeats} published again")  # noqa: T201
    assert repeats <= kills * BATCH


def test_out_rabbitmq_is_killed_and_restarted(
    server: RabbitMQ, queue: Queue, url: str, broker: penstock.Broker
) -> None:
    put_named(broker, MESSAGES)
    tube = broker.tube("t")
    bridge = Program(server, url, queue, "--publish", "--batch", str(BATCH))
    for share in (4, 2):
        until(lambda share=share: len(tube) <= MESSAGES - MESSAGES // share, 120)  # type: ignore[misc]
        server.restart()
    until(lambda: len(tube) == 0, 120)
    counts = bridge.stop()
    repeats = sum(published(queue, MESSAGES).values()) - MESSAGES
    print(f"\n{counts}, {repeats} published again")  # noqa: T201
    assert repeats <= counts["released"]  # only those without a confirm


def test_what_rabbitmq_refuses_is_released_with_the_reason(server: RabbitMQ, url: str, broker: penstock.Broker) -> None:
    full = Queue(server, **{"x-max-length": 2, "x-overflow": "reject-publish"})
    tube = broker.create_tube("t", "fifottl", max_attempts=1)
    tube.put_many(names(5))
    bridge = Program(server, url, full, "--publish")
    until(lambda: tube.stats().tasks.buried >= 3)
    bridge.stop()
    assert all("RabbitMQ refused it" in str(task.reason) for task in tube.tasks("!"))
    assert len(full.get_all()) + tube.stats().tasks.buried == 5


def test_out_a_queue_that_is_deleted_meanwhile_loses_nothing(
    server: RabbitMQ, queue: Queue, url: str, broker: penstock.Broker
) -> None:
    tube = broker.tube("t")
    tube.put(b"m0", address="m0")
    connection = QueueConnection(parse_url(server.url), queue.name)
    publish = Publish(broker, "t", 10)
    publish.begin(connection)
    queue.delete()
    with pytest.raises(penstock.PenstockError, match="NO_ROUTE"):
        publish.step(connection)
    connection.close()
    [task] = tube.tasks()
    assert (task.status, publish.counts["released"]) == (penstock.Status.READY, 1)
    assert task.reason == "NotConfirmed: RabbitMQ returned it: NO_ROUTE"
    with pytest.raises(penstock.PenstockError, match="queue .* does not exist .* give --declare"):
        Bridge(publish, lambda: QueueConnection(parse_url(server.url), queue.name))


def test_a_lost_connection_confirms_nothing(server: RabbitMQ, queue: Queue) -> None:
    connection = QueueConnection(parse_url(server.url), queue.name)
    connection.confirm()
    connection.close()
    assert connection.publish([Message(b"1", "a"), Message(b"2", "b")]) == [UNCONFIRMED, UNCONFIRMED]
    assert queue.get_all() == []


def test_in_a_queue_that_is_deleted_meanwhile_is_waited_for(
    server: RabbitMQ, queue: Queue, broker: penstock.Broker
) -> None:
    tube, stop = broker.tube("t"), threading.Event()
    bridge = Bridge(Consume(tube, 10), lambda: QueueConnection(parse_url(server.url), queue.name))
    running = begin(lambda: bridge.run(stop, lambda moved: None))
    queue.delete()
    with queue._channel() as channel:
        channel.queue_declare(queue.name, durable=True)
    queue.put(names(1))
    assert tube.take(60) is not None
    stop.set()
    running.result(60)


def test_a_wrong_password_names_the_remedy(server: RabbitMQ, queue: Queue) -> None:
    with pytest.raises(penstock.PenstockError, match="refused the login of guest: check user and password") as refused:
        QueueConnection(parse_url(server.url.replace("guest:guest", "guest:wrong")), queue.name)
    assert "wrong" not in str(refused.value)


def test_declare_makes_a_durable_queue(server: RabbitMQ, queue: Queue) -> None:
    queue.delete()
    QueueConnection(parse_url(server.url), queue.name, declare=True).close()
    queue.put([b"kept"])
    server.restart()
    assert [body for _, body in queue.get_all()] == [b"kept"]
