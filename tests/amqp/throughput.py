"""Messages per second through the bridge, compared with RabbitMQ without a store: `python -m tests.amqp.throughput`.

Messages are persistent, have 200 bytes of JSON and an id; both directions move them in batches of 500.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from uuid import uuid4

import pika

import penstock
from penstock.amqp.bridge import Bridge, Consume, Publish
from penstock.amqp.connection import QueueConnection, parse_url
from penstock.amqp.message import MAX_PRIORITY, Message
from tests.servers import SERVERS, started
from tests.servers.rabbitmq import RabbitMQ

BATCH = 500
BODY = b'{"pad": "%s"}' % (b"x" * 188)


def measured(what: str, count: int, move: Callable[[], object]) -> None:
    """Print a line: messages per second, and processor time of this process for each."""
    began, used = time.perf_counter(), time.process_time()
    move()
    seconds, cpu = time.perf_counter() - began, time.process_time() - used
    print(f"{what:<32} {count / seconds:>9,.0f}/s  {1e6 * cpu / count:>6.0f} µs", flush=True)  # noqa: T201


def bare_consumer(server: RabbitMQ, name: str, count: int) -> None:
    """pika alone: prefetch, and an ack for every batch."""
    connection = pika.BlockingConnection(pika.URLParameters(server.url))
    channel = connection.channel()
    channel.basic_qos(prefetch_count=2 * BATCH)
    for number, (method, _, _) in enumerate(channel.consume(name), 1):
        if number % BATCH == 0 or number == count:
            channel.basic_ack(method.delivery_tag, multiple=True)
        if number == count:
            break
    connection.close()


def bare_publisher(link: QueueConnection, count: int) -> None:
    """Publish and wait for the confirms of every batch, without a store."""
    for first in range(0, count, BATCH):
        some = [Message(BODY, f"m{first + place}", "application/json") for place in range(min(BATCH, count - first))]
        assert not any(link.publish(some))


def through_a_store(server: RabbitMQ, store: str, url: str, name: str, count: int) -> None:
    """Into a tube and out of it again."""

    def connect() -> QueueConnection:
        return QueueConnection(parse_url(server.url), name, declare=True)

    with penstock.connect(url) as broker:
        tube = broker.create_tube("bridge", "fifottl", pri=MAX_PRIORITY)
        for what, direction in (("in", Consume(tube, BATCH)), ("out", Publish(broker, "bridge", BATCH))):
            bridge, stop, moved = Bridge(direction, connect), threading.Event(), [0]

            def on_progress(number: int, stop: threading.Event = stop, moved: list[int] = moved) -> None:
                moved[0] += number
                if moved[0] == count:
                    stop.set()

            measured(f"{what}, {store}", count, partial(bridge.run, stop, on_progress))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.amqp.throughput", allow_abbrev=False)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--only", action="append", choices=["sqlite", *SERVERS], help="a store; default: all")
    options = parser.parse_args()
    with started(RabbitMQ) as server, tempfile.TemporaryDirectory() as folder:
        name = f"q{uuid4().hex[:8]}"
        link = QueueConnection(parse_url(server.url), name, declare=True)
        link.confirm()
        measured("publish, no store", options.count, lambda: bare_publisher(link, options.count))
        measured("consume, no store (pika)", options.count, lambda: bare_consumer(server, name, options.count))
        bare_publisher(link, options.count)
        link.close()
        for store in options.only or ["sqlite", *SERVERS]:
            if store == "sqlite":
                through_a_store(server, store, f"sqlite:///{folder}/queue.db", name, options.count)
                continue
            with started(SERVERS[store]) as database:
                through_a_store(server, store, database.fresh_url(), name, options.count)
