"""Round trips of each verb, whatever the count: one for a hot call, and one more if rows are loaded first."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

import pytest

import penstock
from penstock.store.postgres.postgres_wire import Call, Link, Row, Wire
from tests.support.quiet_broker import quiet


class Counted:
    """Counts the round trips of a store, each as the names of its statements."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sent: list[list[str]] = []
        run, thread = Wire.run, threading.get_ident()  # not those of the background thread

        def counted(wire: Wire, calls: Sequence[Call]) -> list[list[Row]]:
            assert isinstance(wire, Link)
            assert wire.autocommit  # otherwise BEGIN and COMMIT would be separate round trips
            if threading.get_ident() == thread:
                self.sent.append([query.called.decode().rpartition(".")[2] for query, *_ in calls])
            return run(wire, calls)

        monkeypatch.setattr(Wire, "run", counted)

    @property
    def mine(self) -> list[list[str]]:
        """The round trips without those that are made at random."""
        return [sent for sent in self.sent if not {"fold", "raise_bounds"} & set(sent)]


@pytest.fixture
def counted(broker: penstock.Broker, monkeypatch: pytest.MonkeyPatch) -> Counted:
    quiet(broker, beats=True)
    return Counted(monkeypatch)


def must_be(trips: int, counted: Counted, what: str, call: Callable[[], object]) -> None:
    counted.sent.clear()
    call()
    assert len(counted.mine) <= trips, f"{what}: {counted.mine}"


def test_many_tubes_are_read_in_one_round_trip(broker: penstock.Broker, counted: Counted) -> None:
    tubes = [broker.tube(f"t{number}").stored for number in range(50)]
    must_be(1, counted, "counters", lambda: broker.runtime.store.counters(tubes))


@pytest.mark.parametrize("kind", ["fifo", "fifottl", "utube", "utubettl"])
def test_round_trips_of_verbs(broker: penstock.Broker, counted: Counted, kind: str) -> None:
    tube = broker.tube("work", kind, max_attempts=9)
    tube.put("first")
    held = tube.take_many(1)  # joins
    calls: list[tuple[int, str, Callable[[], object]]] = [
        (1, "put", lambda: tube.put("x")),
        (1, "put_many", lambda: tube.put_many(range(3000))),
        (1, "put_many, mixed", lambda: tube.put_many((i, {"max_attempts": i % 7 + 1}) for i in range(1000))),
        (1, "ack", lambda: held.pop().ack()),
        (1, "take", lambda: held.extend(tube.take_many(1))),
        (1, "take_many", lambda: held.extend(tube.take_many(1000))),
        (1, "ack_many", lambda: tube.ack_many(held)),
        (2, "bury", lambda: tube.bury(3500)),
        (4, "kick", lambda: tube.kick(5)),  # ended sessions and deadlines are applied first
        (2 if kind.startswith("utube") else 1, "delete", lambda: tube.delete(3501)),
        (4, "release_all", lambda: tube.release_all()),
    ]
    group, addressed = tube.group("g"), [0]
    broker.tube("replies")
    calls += [
        (1, "put with an address", lambda: addressed.append(tube.put("x", address="a", reply_to="replies").id)),
        (1, "put_many into a group", lambda: group.put_many(range(100))),
        (3, "put that replaces", lambda: tube.put("y", address="a", on_duplicate="replace")),
        (5, "start", lambda: group.start()),
        (4, "end of an addressed task that replies", lambda: tube.delete(addressed[-1])),
        (5, "cancel", lambda: group.cancel()),
    ]
    if kind.endswith("ttl"):
        calls.append((1, "put with all options", lambda: tube.put("x", pri=1, ttl=9, ttr=9, delay=1)))
    for trips, what, call in calls:
        must_be(trips, counted, what, call)


def test_round_trips_of_verbs_of_unleased_kinds(broker: penstock.Broker, counted: Counted) -> None:
    feeds, queue = broker.tube("feeds", "round", period=1000), broker.tube("queue", "reliable")
    feeds.put("first", id="first")
    feeds.take(0)  # joins
    calls: list[tuple[int, str, Callable[[], object]]] = [
        (1, "put", lambda: feeds.put("x", id="x")),
        (2, "put again", lambda: feeds.put("y", id="x")),
        (3, "replace", lambda: feeds.put("z", id="x", on_duplicate="replace")),
        (1, "put_many", lambda: feeds.put_many([(n, {"id": str(n)}) for n in range(1000)])),
        (1, "take", lambda: feeds.take(0)),
        (1, "take_many", lambda: feeds.take_many(1001)),
        (1, "take nothing", lambda: feeds.take(0)),
        (1, "peek", lambda: feeds.peek("x")),
        (2, "delete", lambda: feeds.delete("x")),
        (1, "push one", lambda: queue.put("x")),
        (1, "push", lambda: queue.put_many(range(1000))),
        (1, "pop", lambda: queue.take_many(1001)),
        (2, "inspect", lambda: queue.inspect(-10, 10, pending=True)),
        (1, "recover", lambda: queue.recover(1000, 0)),
    ]
    for trips, what, call in calls:
        must_be(trips, counted, what, call)
    names = [task.id for task in queue.inspect(0, 1001, pending=True)]
    must_be(1, counted, "ack", lambda: queue.ack(names[0]))
    must_be(1, counted, "ack_many", lambda: queue.ack_many(names[1:]))
    assert broker.check() == []


@pytest.mark.parametrize(("verb", "trips"), [("ack", 1), ("release", 2), ("touch", 2), ("fail", 2), ("bury", 2)])
def test_round_trips_of_verbs_of_a_task(broker: penstock.Broker, counted: Counted, verb: str, trips: int) -> None:
    tube = broker.tube("work", ttr=60)
    tube.put("x")
    task = tube.take(0)
    assert task is not None
    arguments: list[object] = {"touch": [5], "fail": ["broken"]}.get(verb, [])  # type: ignore[assignment]
    must_be(trips, counted, verb, lambda: getattr(task, verb)(*arguments))


def test_an_idle_taker_sends_only_scans_and_heartbeats(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with penstock.connect(url) as broker:
        tube = broker.tube("work")
        tube.take(0)
        counted = Counted(monkeypatch)
        began = time.monotonic()
        tube.take(3)
        scans = int(time.monotonic() - began)
        # The first take, the registration, the take after it, LISTEN, the take after that, the end, and the scans,
        # one per second; fewer than two a second is no polling.
        assert len(counted.mine) <= 2 * scans + 7, counted.mine
