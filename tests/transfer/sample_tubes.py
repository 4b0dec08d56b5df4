"""Tubes with one task of every sort, and everything observable of a tube."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BytesIO

import penstock
from penstock.core.group import Group
from penstock.testing import Clock
from penstock.transfer.export_import import Import, export_tube
from penstock.transfer.move import Move, Moved

# name -> how a tube of that sort is filled
FILLED: dict[str, Callable[[penstock.Broker, Clock], None]] = {}
# The public fields of tasks; the lease is a number that may only grow.
_SHOWN = "id status data pri utube attempts lease created taken due expires address group reason errors".split()


def filled(fill: Callable[[penstock.Broker, Clock], None]) -> Callable[[penstock.Broker, Clock], None]:
    """Register a function that fills a tube, under its own name."""
    FILLED[fill.__name__] = fill
    return fill


@filled
def plain(broker: penstock.Broker, clock: Clock) -> None:
    tube = broker.tube("plain", ttr=60, max_attempts=5, backoff=penstock.Backoff(base=1))
    tube.put_many([{"n": n} for n in range(5)])
    for data in (b"\0\xff", "", None, 2.5, [1, {"a": "ä"}]):
        tube.put(data, pri=3)
    tube.put("urgent", pri=0, ttl=500, callback="https://example.org/hook", max_attempts=2, reply_to="replies")
    tube.put("later", delay=9)
    tube.put("gone", ttl=1)
    first = tube.take(0)
    assert first is not None
    first.release(delay=8)
    tube.bury(7, "no such user")
    tube.delete(8)
    clock.advance(2)


@filled
def temporary(broker: penstock.Broker, clock: Clock) -> None:
    broker.tube("temporary", temporary=True).put_many(["a", ("b", {"delay": 5}), ("c", {"address": "c"})])


@filled
def micro(broker: penstock.Broker, clock: Clock) -> None:
    tube = broker.tube("micro", "utubettl", utube_limit=2)
    for n in range(12):
        tube.put(n, utube=f"u{n % 3}" if n % 4 else None, pri=n % 2)
    tube.put("delayed", utube="u1", delay=30)
    tube.bury(3)


@filled
def fair(broker: penstock.Broker, clock: Clock) -> None:
    tube = broker.tube("fair", "utube", fair=True)
    tube.put_many([(n, {"utube": "big"}) for n in range(6)])
    tube.put_many([(n, {"utube": "small"}) for n in range(2)])
    tube.ack_many(tube.take_many(2))


@filled
def related(broker: penstock.Broker, clock: Clock) -> None:
    tube = broker.tube("related", retention=3600)
    tube.put("live", address="a 1", reply_to="replies", ttr=10)
    for address in ("done", "failed", "again"):
        tube.put(address, address=address, pri=0)
    for task in tube.take_many(4):
        if task.address == "failed":
            task.fail("broken", 17)
        elif task.address != "a 1":
            task.ack(b"\0result")
        else:
            task.release()
    tube.put("again", address="again")
    lapsing = tube.take_many(1)  # the group without end work
    clock.advance(10)
    tube.stats()
    assert [len(tube.peek(task.id).errors) for task in lapsing] == [1]
    waiting, started = tube.group("waiting"), tube.group("started")
    waiting.put_many([(n, {"delay": n * 10}) for n in range(3)])
    waiting.on_end({"end": "waiting"})
    waiting.on_cancel("cancelled")
    started.put_many([("s", {"pri": 1}), ("t", {"delay": 20}), ("u", {})])
    started.on_end("all done")
    started.start()
    for task in tube.take_many(10):
        if task.data == "u":
            task.ack()
        else:
            task.release(delay=5)


@filled
def rounds(broker: penstock.Broker, clock: Clock) -> None:
    tube = broker.tube("rounds", "round", period=5)
    for n in range(4):
        tube.put(n, id=f"feed {n}", ttl=900)
    assert tube.take(0) is not None
    clock.advance(1)
    assert tube.take(0) is not None


@filled
def messages(broker: penstock.Broker, clock: Clock) -> None:
    tube = broker.tube("messages", "reliable")
    tube.put_many(list("abcdef"))
    tasks = tube.take_many(3)
    tube.ack_many([tasks[1].id])
    clock.advance(1)
    tube.recover(1, 0)


def seen(broker: penstock.Broker, name: str) -> dict[str, object]:
    """Everything that users see of a tube: options, tasks, counters, groups and outcomes."""
    tube = broker.tube(name)
    info = next(info for info in broker.tubes() if info.name == name)
    groups = sorted(broker.runtime.store.read_page(tube.stored, Group, 0, 100), key=lambda group: group.name)
    return {
        "kind": info.kind,
        "options": info.options,
        "tasks": [{fact: getattr(task, fact) for fact in _SHOWN} for task in tube.tasks(limit=1000)],
        "counts": tube.stats(),
        "groups": [(group.name, group.state, group.total, group.left, group.end, group.cancel) for group in groups],
        "outcomes": {
            address: broker.runtime.store.outcomes(tube.stored, [address])[0].ending
            for address in ("done", "failed", "nobody")
        },
        "paused": broker.runtime.store.counters(tube.stored).paused,
    }


def order(broker: penstock.Broker, name: str) -> list[object]:
    """The ids in the order in which they can be taken one by one."""
    tube = broker.tube(name)
    found = []
    while (task := tube.take(0)) is not None:
        found.append(task.id)
        if tube.stored.kind.leased:
            task.ack()
        elif len(found) > 20:
            break
    return found


def moved(source: penstock.Broker, target: penstock.Broker, *tubes: str, wait: float = 0) -> list[Moved]:
    """Move tubes, and name another URL than the target's, which old handles then report."""
    move = Move(
        source.runtime,
        target.runtime.store,
        "postgresql://me:secret@new.example/jobs",
        wait=wait,
        on_progress=lambda *_: None,
    )
    return move.run(tubes)


def exported(broker: penstock.Broker, name: str) -> bytes:
    """Export a tube as a file."""
    file = BytesIO()
    export_tube(broker.runtime.store, broker.tube(name).stored, file, lambda count: None)
    return file.getvalue()


def imported(broker: penstock.Broker, content: bytes, name: str | None = None) -> int:
    """Import a file as a tube."""
    return Import(broker.runtime.store, BytesIO(content), "a file", name).run(lambda count: None)


@contextmanager
def opened(url: str, clock: Clock) -> Iterator[penstock.Broker]:
    """A broker; at the end of the block, everything stored must be consistent."""
    with penstock.connect(url, clock=clock) as broker:
        yield broker
        assert broker.check() == []
