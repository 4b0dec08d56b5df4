"""The processes of `penstock demo`: producers, workers, pollers, and those that are killed."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event

import penstock

KINDS = ["fifo", "fifottl", "utube", "utubettl", "lifo"]  # a tube of each, named by the prefix and its kind
TASKS = 600  # that each producer puts into each tube
CUSTOMERS = 7  # micro-queues in the utube kinds: one task of each customer at a time
HELD = 3  # tasks of each tube that the killed worker holds
POISON = "poison"  # the name of a job that the first worker buries; it is done after a kick
FEEDS = 30  # elements of the round tube
POLLING = 2.0  # seconds of polling; longer if not every feed has had a turn
POPPED = 300  # messages that the killed consumer has popped from the reliable tube


@dataclass
class Job:
    """The data of a task: a dataclass. JSON values and bytes work, too."""

    name: str
    not_before: float


@dataclass
class Done:
    """A worker's record of one task that it acked; times are seconds since the epoch."""

    tube: str
    job: Job
    customer: str | None
    began: float
    ended: float


def produce(url: str, prefix: str, producer: int) -> None:
    """Put tasks into every tube, in batches: one round trip and one commit each."""
    with penstock.connect(url) as broker:
        tubes = [broker.tube(prefix + kind) for kind in KINDS]
        for first in range(0, TASKS, 20):
            for tube in tubes:
                tube.put_many([new_task(tube.kind, producer, number) for number in range(first, first + 20)])


def new_task(kind: str, producer: int, number: int) -> tuple[Job, dict[str, object]]:
    """A job with the options that its kind accepts: a priority, sometimes a delay, and a customer's micro-queue."""
    options: dict[str, object] = {}
    delay = 1.5 if kind.endswith("ttl") and number % 25 == 0 else 0
    if kind.endswith("ttl"):
        options |= {"pri": number % 3, "delay": delay, "ttr": 300}
    if kind.startswith("utube"):
        options["utube"] = f"customer {number % CUSTOMERS}"
    return Job(f"{producer}-{number}", time.time() + delay), options


def work(url: str, prefix: str, pipe: Connection, stop: Event) -> None:
    """Take from any tube until `stop` is set, then send the records of what was done."""
    notes: list[Done] = []
    with penstock.connect(url) as broker:
        while not stop.is_set():
            # Earlier names come first: a new order each time, so that no tube waits for another.
            task = broker.take([prefix + kind for kind in random.sample(KINDS, len(KINDS))], timeout=0.2)
            if task is not None:
                handle(task, prefix, notes)
    pipe.send(notes)


def handle(task: penstock.Task, prefix: str, notes: list[Done]) -> None:
    """Work for a millisecond. A poisoned task is buried the first time."""
    began, job = time.time(), task.decode(Job)
    if job.name == POISON and task.lease == 1:
        task.bury("nobody can digest this")
        return
    time.sleep(0.001)
    ended = time.time()
    task.ack()
    notes.append(Done(task.tube.removeprefix(prefix), job, task.utube, began, ended))


def work_and_hang(url: str, prefix: str, pipe: Connection) -> None:
    """Work a little, then take some tasks of each tube and never finish them: this worker will be killed."""
    notes: list[Done] = []
    with penstock.connect(url) as broker:
        while len(notes) < 50 and (task := broker.take([prefix + kind for kind in KINDS], timeout=30)):
            handle(task, prefix, notes)
        held = {kind: len(broker.tube(prefix + kind).take_many(HELD, timeout=30)) for kind in KINDS}
        pipe.send((notes, held))
        time.sleep(600)


def poll(url: str, prefix: str, pipe: Connection) -> None:
    """Take feeds for a while, and send which came when, by the store's clock."""
    turns: list[tuple[str, float]] = []
    with penstock.connect(url) as broker:
        tube, ends = broker.tube(prefix + "round"), time.monotonic() + POLLING
        while (left := ends - time.monotonic()) > 0 or tube.stats().calls.take < FEEDS:
            if task := tube.take(timeout=max(left, 0)):
                turns.append((str(task.id), task.taken or 0))
    pipe.send(turns)


def pop_and_hang(url: str, prefix: str, pipe: Connection) -> None:
    """Pop messages and ack none of them: this consumer will be killed."""
    with penstock.connect(url) as broker:
        pipe.send(len(broker.tube(prefix + "reliable").take_many(POPPED)))
        time.sleep(600)
