"""The processes of a campaign: `python -m tests.fault.actors ROLE NAME URL FOLDER SEED [DEFECT]`.

Each works until SIGTERM and records its calls. A defect breaks this build of penstock in one place, to show that the
checker finds it.
"""

from __future__ import annotations

import asyncio
import random
import signal
import sys
import threading
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import penstock
import penstock.aio
from penstock.core import lifecycle
from penstock.core.lifecycle import Move
from penstock.core.micro_queue import MicroQueueState
from penstock.core.options import Tube
from penstock.core.results import Stored
from penstock.core.task import Entry, Record
from penstock.engine import port
from penstock.engine.store import Store
from penstock.store.redis import redis_store
from penstock.store.sql.sql_step import first_pk
from penstock.store.sqlite.sqlite_store import SqliteStep
from tests.fault.history import Recorder

TTR = 0.3
TOUCH = 0.2
LIMIT = 1
PERIOD = 0.5
TUBES = {"plain": "fifottl", "per_utube": "utubettl", "grouped": "fifottl"}
ROUND, RELIABLE = "turns", "messages"
#: The tubes that producers and takers use; one that is listed twice is used twice as often.
PUTS, TAKES = [*TUBES, RELIABLE], [*TUBES, *TUBES, ROUND, RELIABLE]
ELEMENTS = [f"e{number}" for number in range(8)]
ADDRESSES = [f"a{number}" for number in range(12)]
UTUBES = [f"u{number}" for number in range(6)]
# Errors that a call may raise while a server is down or a connection breaks.
AWAY = (penstock.StoreUnavailable, penstock.StoreBusy, penstock.OutcomeUnknown)
# Producers pause if more than this many tasks wait: deep queues would only hide races.
DEEP = 60


class Actor:
    """What all roles share."""

    def __init__(self, name: str, url: str, folder: Path, seed: int) -> None:
        self.name = name
        self.random = random.Random(f"{seed} {name}")
        self.recorder = Recorder(folder, name)
        self.over = threading.Event()
        self._held: dict[tuple[str, int | str], tuple[dict[str, Any], penstock.Task]] = {}
        self.broker, self.tubes = self._connect(url)
        signal.signal(signal.SIGTERM, lambda *_: self.over.set())

    def _connect(self, url: str) -> tuple[penstock.Broker, dict[str, penstock.Tube]]:
        while True:
            try:
                broker = penstock.connect(url)
                return broker, open_tubes(broker)
            except AWAY:
                self.pause(0.02, 0.1)

    def run(self, role: Callable[[Actor], None]) -> None:
        while not self.over.is_set():
            try:
                role(self)
            except AWAY:  # in a call that is not recorded
                self.pause(0.01, 0.05)
        self.recorder.call("close", self.broker.close, process=self.name)

    def ack_older(self, about: dict[str, Any], task: penstock.Task) -> None:
        """Try to ack an earlier attempt of a task that this process held before: it must be refused.

        After a lost tail the task may have the same id, lease number and session.
        """
        key = task.tube, task.id
        older = self._held.get(key)
        self._held[key] = about, task
        if older is not None:
            self.recorder.call("ack", older[1].ack, **older[0])

    def pause(self, low: float, high: float) -> None:
        """Sleep for as long as the work takes."""
        self.over.wait(self.random.uniform(low, high))


def open_tubes(broker: penstock.Broker) -> dict[str, penstock.Tube]:
    """Open all tubes of a campaign; create those that are missing."""
    tubes = {name: broker.tube(name, kind=kind, ttr=TTR) for name, kind in TUBES.items()}
    tubes[ROUND] = broker.tube(ROUND, kind="round", period=PERIOD)
    tubes[RELIABLE] = broker.tube(RELIABLE, kind="reliable")
    return tubes


_numbers = count()


def produce(actor: Actor) -> None:
    name = actor.random.choice(PUTS)
    tube = actor.tubes[name]
    if tube.stats().tasks.ready > DEEP:
        return actor.pause(0.01, 0.05)
    data = f"{actor.name}-{next(_numbers)}"
    if name == RELIABLE:
        pushed = [f"{data}-{number}" for number in range(3)]
        actor.recorder.call("push", lambda: tube.put_many(pushed), tube=name, pushed=pushed)
    elif name == "grouped":
        _group(actor, tube, data)
    else:
        utube = actor.random.choice(UTUBES) if name == "per_utube" else None
        address = actor.random.choice(ADDRESSES) if name == "plain" and actor.random.random() < 0.4 else None
        facts = {"tube": name, "data": data, "utube": utube, "address": address}
        actor.recorder.call("put", lambda: tube.put(data, utube=utube, address=address), **facts)
    return actor.pause(0, 0.01)


def _group(actor: Actor, tube: penstock.Tube, name: str) -> None:
    """Put a few tasks that start together, with end work; cancel some groups."""
    call, group = actor.recorder.call, tube.group(name)
    about = {"tube": tube.name, "group": name}
    call("on_end", lambda: group.on_end(f"end-{name}"), data=f"end-{name}", **about)
    call("on_cancel", lambda: group.on_cancel(f"cancel-{name}"), data=f"cancel-{name}", **about)
    for number in range(3):
        data = f"{name}-{number}"
        call("put", partial(group.put, data), data=data, utube=None, **about)
    call("start_group", group.start, **about)
    if actor.random.random() < 0.3:
        actor.pause(0, 0.2)
        call("cancel_group", group.cancel, **about)


def consume(actor: Actor) -> None:
    name = actor.random.choice(TAKES)
    tube = actor.tubes[name]
    if name == ROUND:
        actor.recorder.call("turn", lambda: tube.take(0), tube=name)
        return
    if name == RELIABLE:
        _read_messages(actor, tube)
        return
    hand = next(_numbers)
    task = actor.recorder.call("take", lambda: tube.take(0.2), tube=name, hand=hand)
    if task is None:
        return
    about = {"tube": name, "id": task.id, "lease": task.lease, "hand": hand}
    call, ack = actor.recorder.call, partial(task.ack, task.data)
    actor.ack_older(about, task)
    match actor.random.choices(["ack", "slow", "release", "touch", "bury", "drop"], [35, 40, 8, 8, 5, 4])[0]:
        case "ack":
            call("ack", ack, **about)
        case "slow":
            actor.pause(0.5 * TTR, 2.5 * TTR)
            verb = actor.random.choice(["ack", "release"])
            call(verb, ack if verb == "ack" else task.release, **about)
        case "release":
            call("release", task.release, **about)
        case "touch":
            call("touch", lambda: task.touch(TOUCH), seconds=TOUCH, **about)
            actor.pause(TTR, TTR + 0.15)
            call("ack", ack, **about)
        case "bury":
            call("bury", task.bury, **about)


def _read_messages(actor: Actor, tube: penstock.Tube) -> None:
    """Read messages that were never delivered, or never acked, and ack most of them."""
    if actor.random.random() < 0.8:
        found = actor.recorder.call("pop", lambda: tube.take_many(3), tube=tube.name)
    else:
        found = actor.recorder.call("recover", lambda: tube.recover(3, TTR), tube=tube.name)
    ids = [task.id for task in found or ()]
    if ids and actor.random.random() < 0.8:
        actor.recorder.call("remove", lambda: tube.ack_many(ids), tube=tube.name, asked=ids)


async def _connect_awaited(url: str) -> tuple[penstock.aio.Broker, penstock.aio.Tube]:
    while True:
        try:
            broker = await penstock.aio.connect(url)
            return broker, await broker.tube("plain", kind="fifottl", ttr=TTR)
        except AWAY:
            await asyncio.sleep(0.05)


async def work_awaited(name: str, url: str, folder: Path, seed: int) -> None:
    """Eight coroutines on one asyncio broker, which put, take and ack until SIGTERM."""
    over, recorder, dice = asyncio.Event(), Recorder(folder, name), random.Random(f"{seed} {name}")
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, over.set)
    broker, tube = await _connect_awaited(url)

    async def work() -> None:
        data = f"{name}-{next(_numbers)}"
        if (await tube.stats()).tasks.ready <= DEEP:
            await recorder.await_call("put", lambda: tube.put(data), tube="plain", data=data, utube=None)
        hand = next(_numbers)
        task = await recorder.await_call("take", lambda: tube.take(0.2), tube="plain", hand=hand)
        if task is not None:
            await asyncio.sleep(dice.choice([0, 0, 0, 0.5 * TTR, 1.5 * TTR, 10 * TTR]))
            about = {"tube": "plain", "id": task.id, "lease": task.lease, "hand": hand}
            await recorder.await_call("ack", lambda: task.ack(task.data), **about)

    async def until_over() -> None:
        while not over.is_set():
            try:
                await work()
            except AWAY:
                await asyncio.sleep(0.05)
            await asyncio.sleep(dice.uniform(0, 0.1))

    await asyncio.gather(*(until_over() for _ in range(8)))
    await recorder.await_call("close", broker.close, process=name)


def administer(actor: Actor) -> None:
    actor.pause(0.02, 0.1)
    name = actor.random.choice(list(TUBES))
    tube, call = actor.tubes[name], actor.recorder.call
    # The admin leaves a group's end work alone: the checker must see it.
    listed = [task for task in tube.tasks(limit=50) if not str(task.data).startswith(("end-", "cancel-"))]
    verb = actor.random.choices(["kick", "bury", "delete", "release_all"], [50, 20, 20, 2])[0]
    if verb == "kick":
        call("kick", lambda: tube.kick(5), tube=name)
    elif verb == "release_all":
        call("release_all", tube.release_all, tube=name)
    elif listed:
        id = actor.random.choice(listed).id
        work = tube.bury if verb == "bury" else tube.delete
        call(verb, lambda: work(id), tube=name, id=id)


ROLES = {"producer": produce, "taker": consume, "admin": administer}


# broken builds


def _without_guard(verb: str) -> None:
    allowed = lifecycle._allowed

    def loose(record: Record, move: Move, now: int) -> bool:
        return record.state == "t" if move.verb == verb else allowed(record, move, now)

    lifecycle._allowed = loose


def _promote_unchecked() -> None:
    MicroQueueState.room = lambda self, limit: 1  # type: ignore[method-assign]
    PUTS[:] = TAKES[:] = ["per_utube"]  # so that it is seen soon


def _forget_puts() -> None:
    put = Store.put

    def forgetful(self: Store, tube: Tube, entries: list[Entry]) -> Stored:
        stored = put(self, tube, entries)
        if not tube.kind.per_utube and stored.records[0].id % 20 == 0:
            with self.step([tube]) as step:
                assert isinstance(step, SqliteStep)
                step.change("DELETE FROM penstock_task WHERE pk = :pk", pk=first_pk(tube) | stored.records[0].id)
        return stored

    Store.put = forgetful  # type: ignore[assignment,method-assign]


def _leases_that_repeat() -> None:
    for module in (port, redis_store):
        module.new_call = lambda: 1  # type: ignore[attr-defined]


# name -> what it breaks
DEFECTS: dict[str, Callable[[], None]] = {
    "ack without the lease guard": lambda: _without_guard("ack"),
    "release without the lease guard": lambda: _without_guard("release"),
    "promote without the micro-queue check": _promote_unchecked,
    "a put that is not stored": _forget_puts,
    "leases without their random part": _leases_that_repeat,
}


def main(role: str, name: str, url: str, folder: str, seed: str, *defects: str) -> None:
    for defect in defects:
        DEFECTS[defect]()
    if role == "awaited":
        return asyncio.run(work_awaited(name, url, Path(folder), int(seed)))
    return Actor(name, url, Path(folder), int(seed)).run(ROLES[role])


if __name__ == "__main__":
    main(*sys.argv[1:])
