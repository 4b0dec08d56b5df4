"""The processes of a campaign: `python -m tests.fault.actors ROLE NAME URL FOLDER SEED [SABOTAGE]`.

Each works until SIGTERM and records what it does. A sabotage breaks this build of penstock in one place, to show
that the checker sees it.
"""

from __future__ import annotations

import random
import signal
import sys
import threading
from collections.abc import Callable
from itertools import count
from pathlib import Path

import penstock
from penstock.core import lifecycle
from penstock.core.lane import LaneState
from penstock.core.lifecycle import Move
from penstock.core.options import Tube
from penstock.core.results import Stored
from penstock.core.task import Entry, Record
from penstock.engine.store import Store
from penstock.store.sql.step import first_pk
from penstock.store.sqlite.step import SqliteStep
from tests.fault.history import Recorder

TTR = 0.3
TOUCH = 0.2
LIMIT = 1
TUBES = {"plain": "fifottl", "laned": "utubettl"}
UTUBES = [f"u{number}" for number in range(6)]
# What a call may raise while a server is away or a connection breaks.
AWAY = (penstock.StoreUnavailable, penstock.StoreBusy, penstock.OutcomeUnknown)
# More than this waiting, and producers pause: deep queues would only hide races.
DEEP = 60


class Actor:
    """What all roles share."""

    def __init__(self, name: str, url: str, folder: Path, seed: int) -> None:
        self.name = name
        self.random = random.Random(f"{seed} {name}")
        self.recorder = Recorder(folder, name)
        self.over = threading.Event()
        self.broker, self.tubes = self._connect(url)
        signal.signal(signal.SIGTERM, lambda *_: self.over.set())

    def _connect(self, url: str) -> tuple[penstock.Broker, dict[str, penstock.Tube]]:
        while True:
            try:
                broker = penstock.connect(url)
                return broker, {tube: broker.tube(tube, kind=kind, ttr=TTR) for tube, kind in TUBES.items()}
            except AWAY:
                self.pause(0.02, 0.1)

    def run(self, role: Callable[[Actor], None]) -> None:
        while not self.over.is_set():
            try:
                role(self)
            except AWAY:  # in a call that is not recorded
                self.pause(0.01, 0.05)
        self.recorder.call("close", self.broker.close, process=self.name)

    def pause(self, low: float, high: float) -> None:
        """The time that work takes."""
        self.over.wait(self.random.uniform(low, high))


_numbers = count()


def produce(actor: Actor) -> None:
    name = actor.random.choice(list(TUBES))
    tube = actor.tubes[name]
    if tube.stats().tasks.ready > DEEP:
        return actor.pause(0.01, 0.05)
    data, utube = f"{actor.name}-{next(_numbers)}", actor.random.choice(UTUBES) if name == "laned" else None
    actor.recorder.call("put", lambda: tube.put(data, utube=utube), tube=name, data=data, utube=utube)
    return actor.pause(0, 0.01)


def consume(actor: Actor) -> None:
    name = actor.random.choice(list(TUBES))
    tube = actor.tubes[name]
    task = actor.recorder.call("take", lambda: tube.take(0.2), tube=name)
    if task is None:
        return
    about = {"tube": name, "id": task.id, "lease": task.lease}
    call = actor.recorder.call
    match actor.random.choices(["ack", "slow", "release", "touch", "bury", "drop"], [35, 40, 8, 8, 5, 4])[0]:
        case "ack":
            call("ack", task.ack, **about)
        case "slow":
            actor.pause(0.5 * TTR, 2.5 * TTR)
            verb = actor.random.choice(["ack", "release"])
            call(verb, task.ack if verb == "ack" else task.release, **about)
        case "release":
            call("release", task.release, **about)
        case "touch":
            call("touch", lambda: task.touch(TOUCH), seconds=TOUCH, **about)
            actor.pause(TTR, TTR + 0.15)
            call("ack", task.ack, **about)
        case "bury":
            call("bury", task.bury, **about)


def administer(actor: Actor) -> None:
    actor.pause(0.02, 0.1)
    name = actor.random.choice(list(TUBES))
    tube, call = actor.tubes[name], actor.recorder.call
    listed = tube.tasks(limit=50)
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
    LaneState.room = lambda self, limit: 1  # type: ignore[method-assign]


def _forget_puts() -> None:
    put = Store.put

    def forgetful(self: Store, tube: Tube, entries: list[Entry], *, now: int | None = None) -> Stored:
        stored = put(self, tube, entries, now=now)
        if not tube.kind.per_utube and stored.records[0].id % 20 == 0:
            with self.step([tube]) as step:
                assert isinstance(step, SqliteStep)
                step.change("DELETE FROM penstock_task WHERE pk = :pk", pk=first_pk(tube) | stored.records[0].id)
        return stored

    Store.put = forgetful  # type: ignore[assignment,method-assign]


# name -> what it breaks
SABOTAGE: dict[str, Callable[[], None]] = {
    "ack without the lease guard": lambda: _without_guard("ack"),
    "release without the lease guard": lambda: _without_guard("release"),
    "promote without the micro-queue check": _promote_unchecked,
    "a put that is not stored": _forget_puts,
}


def main(role: str, name: str, url: str, folder: str, seed: str, *sabotage: str) -> None:
    for broken in sabotage:
        SABOTAGE[broken]()
    Actor(name, url, Path(folder), int(seed)).run(ROLES[role])


if __name__ == "__main__":
    main(*sys.argv[1:])
