"""`penstock bridge`: moves messages of a RabbitMQ queue into a tube, or tasks to a queue."""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import partial

import click

import penstock
from penstock.amqp.message import MAX_PRIORITY
from penstock.broker.tube import Tube
from penstock.broker.tube_factory import find_tube
from penstock.cli import completion, output
from penstock.cli.existing_store import connect_existing
from penstock.core.kind import must_have
from penstock.core.values import whole
from penstock.errors import BadValue, NoSuchTube
from penstock.worker.console import LOGGED, configure_logging, log_handler

log = logging.getLogger("penstock.bridge")

DEFAULT_BATCH = 500
# put_many is atomic up to 10,000 tasks; two batches are prefetched, and RabbitMQ's prefetch is at most 65,535.
MAX_BATCH = 10_000


@click.command()
@click.argument("amqp_url", metavar="AMQP_URL", envvar="PENSTOCK_AMQP_URL")
@click.option("--queue", required=True, metavar="Q", help="The RabbitMQ queue.")
@click.option("--tube", required=True, metavar="T", help="The tube.", shell_complete=completion.tubes)
@click.option("--publish", is_flag=True, help="Instead, take tasks from the tube and publish them to the queue.")
@click.option("--batch", type=int, default=DEFAULT_BATCH, show_default=True, metavar="N", help="Tasks per store call.")
@click.option("--declare", is_flag=True, help="Declare the queue, durable, if it is missing.")
@click.option("--reject", is_flag=True, help="Dead-letter messages that the tube refuses, instead of stopping.")
@click.option("--drain", is_flag=True, help="Stop when nothing is left to move.")
@click.option("--json-logs", is_flag=True, help="Log one JSON object per line.")
@output.json_option
@click.pass_obj
def bridge(
    url: str, amqp_url: str, queue: str, tube: str, publish: bool, batch: int, declare: bool, reject: bool, drain: bool,
    json_logs: bool, as_json: bool,
) -> None:  # fmt: skip
    """Move messages from a RabbitMQ queue to a tube, or back.

    \b
    penstock bridge amqp://me:secret@mq.example/shop --queue orders --tube orders
    penstock bridge amqp://me:secret@mq.example/shop --queue mail --tube mail --publish

    A message is acked when its task is stored; a task is acked when RabbitMQ has confirmed its message.
    PENSTOCK_AMQP_URL keeps the password out of the process list. It reconnects by itself; SIGTERM or Ctrl-C finishes
    the batch and stops. --json prints one line when it is ready and one with its counts when it has stopped.
    """
    whole("batch", batch, 1, MAX_BATCH)
    if reject and publish:
        raise BadValue("--reject applies to messages that are consumed: leave it out with --publish")
    try:
        from penstock.amqp.bridge import Bridge, Consume, Direction, Publish
        from penstock.amqp.connection import QueueConnection, parse_url
    except ImportError as error:
        raise BadValue(f"bridge needs an extra package ({error}): pip install 'penstock[amqp]'") from error
    server, stop = parse_url(amqp_url), threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    connect = partial(QueueConnection, server, queue, declare=declare)
    if not publish:
        connect().close()  # fails for a missing queue before a store or a tube is created
    with (
        connect_existing(url) if publish else penstock.connect(url) as broker,
        output.counting(f"tube {tube} to queue {queue}" if publish else f"queue {queue} to tube {tube}") as on_progress,
    ):
        configure_logging(log_handler(json=json_logs))
        opened = _opened(broker, tube, create=not publish)
        direction: Direction = Publish(broker, tube, batch) if publish else Consume(opened, batch, reject=reject)
        moving = Bridge(direction, connect)
        log.info("%s: queue %s at %s, tube %s", "publishing" if publish else "consuming", queue, server.shown, tube)
        if as_json:
            output.as_json({"event": "working", "amqp": server.shown, "queue": queue, "tube": tube, "publish": publish})
        moving.run(stop, _Progress(direction.counts, on_progress), drain=drain)
    log.info("stopped: %s", _listed(direction.counts), extra={"counts": direction.counts})
    if as_json:
        output.as_json({"event": "stopped", "counts": direction.counts})


def _opened(broker: penstock.Broker, name: str, *, create: bool) -> Tube:
    """Open the tube. Its kind must support addresses; a missing tube is created with a kind that has priorities."""
    try:
        tube = find_tube(broker.runtime, broker.session_handle, name)
    except NoSuchTube:
        if not create:
            raise
        tube = broker.create_tube(name, "fifottl", pri=MAX_PRIORITY)
    must_have(tube.stored.kind, "address")
    return tube


class _Progress:
    """Called after every batch: shows the count on a terminal, and logs counts and rate every ten seconds."""

    def __init__(self, counts: Counter[str], on_progress: Callable[[int], object]) -> None:
        self._counts = counts
        self._on_progress = on_progress
        self._since, self._moved = time.monotonic(), 0

    def __call__(self, moved: int) -> None:
        self._on_progress(moved)
        self._moved += moved
        seconds = time.monotonic() - self._since
        if seconds >= LOGGED and self._moved:
            rate = f"{self._moved / seconds:,.0f}/s"
            log.info("%s (%s)", _listed(self._counts), rate, extra={"counts": self._counts})
            self._since, self._moved = time.monotonic(), 0


def _listed(counts: Counter[str]) -> str:
    parts = (f"{name.replace('_', ' ')} {count:,}" for name, count in counts.items() if count)
    return ", ".join(parts) or "nothing moved"
