"""Moves messages into a tube, or tasks to a queue, batch by batch, until it is stopped.

Every batch is stored on one side before it is acked on the other. While the store is unavailable, a batch is kept and
retried, not returned: RabbitMQ counts redeliveries, and a quorum queue drops a message after some. If the connection is
lost, RabbitMQ redelivers unacked messages on the next one.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress

from penstock.amqp.connection import ConnectionLost, QueueConnection
from penstock.amqp.message import Message, is_tube_name, make_message, read_data, read_options
from penstock.broker.broker import Broker
from penstock.broker.session import Session
from penstock.broker.tube import Tube
from penstock.core.options import PutOptions
from penstock.core.task import Task
from penstock.errors import (
    BadValue,
    OutcomeUnknown,
    PayloadTooLarge,
    PenstockError,
    StoreBusy,
    StoreFull,
    StoreUnavailable,
    TubeFull,
    UnsupportedOption,
)

log = logging.getLogger("penstock.bridge")

# Seconds that a step waits for messages or tasks; a signal takes effect after at most this time.
IDLE_SECONDS = 0.5
# Seconds before a failed step is retried: the first and the longest pause.
FIRST_PAUSE, LONGEST_PAUSE = 0.25, 5.0
RETRIED = (ConnectionLost, StoreUnavailable, StoreBusy, StoreFull, OutcomeUnknown, TubeFull)
REFUSED = (BadValue, PayloadTooLarge, UnsupportedOption)


class NotConfirmed(PenstockError):
    """RabbitMQ did not confirm the message of a task, so it may not have it."""


class Consume:
    """Moves messages from the queue into the tube.

    A message is acked when its task is stored. Its id is the task's address, so it is stored only once.
    """

    def __init__(self, tube: Tube, batch: int, *, reject: bool = False) -> None:
        self.counts: Counter[str] = Counter(stored=0, duplicates=0, without_id=0, rejected=0)
        self._tube = tube
        # put_many waits for room for all of a batch.
        self._batch = min(batch, tube.stored.capacity or batch)
        self._reject = reject
        self._messages: Sequence[Message] = ()
        self._warned: set[str] = set()

    def begin(self, link: QueueConnection) -> None:
        """Start consuming, with the next batch prefetched while one is being stored."""
        self._messages = ()
        link.consume(2 * self._batch)

    def step(self, link: QueueConnection) -> int:
        """Store and ack the messages that have arrived. Returns how many."""
        messages = self._messages = self._messages or link.receive(self._batch, IDLE_SECONDS)
        if messages:
            link.check()
            self._store(link, messages)
            link.ack(messages[-1])
        self._messages = ()
        return len(messages)

    def _store(self, link: QueueConnection, messages: Sequence[Message]) -> None:
        items = [(read_data(message), read_options(message, self._tube.stored)) for message in messages]
        addresses = [address for _, options in items if (address := options.get("address"))]
        # Ids of tasks that are in the tube, or ended within its retention.
        found = self._tube.runtime.store.outcomes(self._tube.stored, addresses) if addresses else []
        known = {each for each, outcome in zip(addresses, found, strict=True) if outcome.id or outcome.ending}
        fresh = []
        for message, item in zip(messages, items, strict=True):
            self._warn_lost_property(message)
            if item[1].get("address") in known:
                self.counts["duplicates"] += 1
            else:
                fresh.append((message, item))
        try:
            self._put([item for _, item in fresh])
        except REFUSED:  # one of them: the others are stored
            for message, item in fresh:
                self._put_alone(link, message, item)

    def _put(self, items: Sequence[tuple[object, PutOptions]]) -> None:
        tasks = self._tube.put_many(items, timeout=IDLE_SECONDS)
        stored = len({task.id for task in tasks})  # an id may be twice in a batch
        self.counts.update(stored=stored, duplicates=len(tasks) - stored)

    def _put_alone(self, link: QueueConnection, message: Message, item: tuple[object, PutOptions]) -> None:
        try:
            self._put([item])
        except REFUSED as error:
            if not self._reject:
                shown = f"message {message.message_id or 'without id'} of queue {link.name}"
                raise BadValue(f"{shown} is refused ({error}): give --reject to dead-letter such messages") from error
            link.reject(message)
            self.counts["rejected"] += 1

    def _warn_lost_property(self, message: Message) -> None:
        """Warn once about each property that the task cannot keep."""
        stored = self._tube.stored
        if not message.message_id:
            self.counts["without_id"] += 1
            self._warn("id", "some messages have no message_id; a redelivered one is stored twice")
        if message.priority and not (stored.pri and stored.kind.has("pri")):
            self._warn("pri", f"tube {stored.name} cannot keep priorities: run penstock alter {stored.name} --pri 255")
        if message.reply_to and not is_tube_name(message.reply_to):
            self._warn("reply", f"reply_to {message.reply_to!r} is not a tube name; such messages get no reply")

    def _warn(self, what: str, message: str) -> None:
        if what not in self._warned:
            self._warned.add(what)
            log.warning("%s", message)


class Publish:
    """Moves tasks from the tube to the queue. A task is acked if RabbitMQ confirms its message, otherwise released."""

    def __init__(self, broker: Broker, tube: str, batch: int) -> None:
        self.counts: Counter[str] = Counter(published=0, released=0, repeated=0)
        self._broker = broker
        self._name = tube
        self._batch = batch
        self._session: Session | None = None
        self._confirmed: Sequence[Task] = ()

    def begin(self, link: QueueConnection) -> None:
        """Enable publisher confirms, and begin a new session: tasks of the old session become ready again."""
        link.confirm()
        self._ack()
        if self._session is not None:
            self._session.close()
        self._session = self._broker.session()
        self.tube = self._session.tube(self._name)

    def step(self, link: QueueConnection) -> int:
        """Publish and settle the tasks that are ready. Returns how many."""
        self._ack()
        link.check()
        tasks = self.tube.take_many(self._batch, IDLE_SECONDS)
        if not tasks:
            return 0
        reasons = link.publish([make_message(task, self.tube.stored.pri) for task in tasks])
        self._confirmed = [task for task, reason in zip(tasks, reasons, strict=True) if reason is None]
        refused = [(task, reason) for task, reason in zip(tasks, reasons, strict=True) if reason is not None]
        for task, reason in refused:
            with suppress(NotConfirmed), task:  # released with the reason, after the tube's back-off
                raise NotConfirmed(reason)
        self.counts["released"] += len(refused)
        self._ack()
        link.check()
        if len(refused) == len(tasks):  # the next tasks would be refused, too
            raise ConnectionLost(f"nothing was confirmed ({refused[0][1]})")
        return len(tasks)

    def _ack(self) -> None:
        """Ack the tasks that RabbitMQ has confirmed; retried in the next step if the store is unavailable."""
        if self._confirmed:
            acked = self.tube.ack_many(self._confirmed)
            self.counts["published"] += len(acked)
            self.counts["repeated"] += sum(
                not each for each in acked
            )  # their lease had ended: they will be published again
            self._confirmed = ()


Direction = Consume | Publish


class Bridge:
    """Runs one direction and reconnects after a lost connection. An error of the first connection is raised."""

    def __init__(self, direction: Direction, connect: Callable[[], QueueConnection]) -> None:
        self._direction = direction
        self._connect = connect
        self._link: QueueConnection | None = self._begin()

    def run(self, stop: threading.Event, on_progress: Callable[[int], object], *, drain: bool = False) -> None:
        """Move batches until `stop` is set or, with `drain`, until none comes.

        `on_progress` is called with the size of each batch.
        """
        pause = 0.0
        try:
            while not stop.is_set():
                try:
                    moved = self._step()
                except RETRIED as error:
                    pause = min(pause * 2, LONGEST_PAUSE) or FIRST_PAUSE
                    log.warning("%s; retrying in %g s", error, pause)
                    if isinstance(error, ConnectionLost):
                        self._close()
                    stop.wait(pause)
                    continue
                pause = 0.0 if moved else pause
                on_progress(moved)
                if drain and not moved:
                    return
        finally:
            self._close()

    def _step(self) -> int:
        if self._link is None:
            self._link = self._begin()
            log.info("reconnected to RabbitMQ; continuing")
        return self._direction.step(self._link)

    def _begin(self) -> QueueConnection:
        link = self._connect()
        try:
            self._direction.begin(link)
        except BaseException:
            link.close()
            raise
        return link

    def _close(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None
