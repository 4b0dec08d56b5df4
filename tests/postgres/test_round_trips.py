"""One statement, one round trip, one transaction per verb, whatever the count."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import psycopg
import pytest

import penstock
from penstock.store.postgres.prepared import Link, Prepared
from penstock.store.postgres.store import PostgresStore


class Counted:
    """Counts the statements that a store sends."""

    def __init__(self, broker: penstock.Broker, monkeypatch: pytest.MonkeyPatch) -> None:
        assert isinstance(broker._hub.store, PostgresStore)
        self.sent: list[str] = []
        execute = psycopg.Connection.execute

        def counted(db: psycopg.Connection, query: str, values: Sequence[object] = (), **how: bool) -> psycopg.Cursor:
            assert db.autocommit  # else BEGIN and COMMIT would be round trips of their own
            self.sent.append(query)
            return execute(db, query, values, **how)

        run = Prepared._run

        def run_counted(statement: Prepared, db: Link, values: Sequence[bytes | None]) -> bytes | None:
            self.sent.append(statement._query.decode())
            return run(statement, db, values)

        monkeypatch.setattr(psycopg.Connection, "execute", counted)
        monkeypatch.setattr(Prepared, "_run", run_counted)


@pytest.fixture
def counted(broker: penstock.Broker, monkeypatch: pytest.MonkeyPatch) -> Counted:
    return Counted(broker, monkeypatch)


def must_be_one(counted: Counted, what: str, call: Callable[[], object]) -> None:
    counted.sent.clear()
    call()
    mine = [query for query in counted.sent if "penstock_beat" not in query]
    assert len(mine) == 1, f"{what}: {mine}"


@pytest.mark.parametrize("kind", ["fifo", "fifottl", "utube", "utubettl"])
def test_every_verb_is_one_round_trip(broker: penstock.Broker, counted: Counted, kind: str) -> None:
    tube = broker.tube("work", kind, max_attempts=9)
    tube.put("first")
    tube.take(0)  # joins
    calls: list[tuple[str, Callable[[], object]]] = [
        ("put", lambda: tube.put("x")),
        ("put_many", lambda: tube.put_many(range(3000))),
        ("put_many, mixed", lambda: tube.put_many((i, {"max_attempts": i % 7 + 1}) for i in range(1000))),
        ("take", lambda: tube.take(0)),
        ("take_many", lambda: tube.take_many(1000)),
        ("ack_many", lambda: tube.ack_many(range(1, 2001))),
        ("bury", lambda: tube.bury(3500)),
        ("kick", lambda: tube.kick(5)),
        ("delete", lambda: tube.delete(3501)),
        ("release_all", lambda: tube.release_all()),
    ]
    group, addressed = tube.group("g"), [0]
    calls += [
        ("put with an address", lambda: addressed.append(tube.put("x", address="a", reply_to="replies").id)),
        ("put_many into a group", lambda: group.put_many(range(100))),
        ("put that replaces", lambda: tube.put("y", address="a", on_duplicate="replace")),
        ("start", lambda: group.start()),
        ("end of an addressed task that replies", lambda: tube.delete(addressed[-1])),
        ("cancel", lambda: group.cancel()),
    ]
    if kind.endswith("ttl"):
        calls.append(("put with all options", lambda: tube.put("x", pri=1, ttl=9, ttr=9, delay=1)))
    for what, call in calls:
        must_be_one(counted, what, call)


def test_every_verb_of_unleased_kinds_is_one_round_trip(broker: penstock.Broker, counted: Counted) -> None:
    feeds, queue = broker.tube("feeds", "round", period=1000), broker.tube("queue", "reliable")
    feeds.put("first", id="first")
    feeds.take(0)  # joins
    calls: dict[str, Callable[[], object]] = {
        "put": lambda: feeds.put("x", id="x"),
        "put again": lambda: feeds.put("y", id="x"),
        "replace": lambda: feeds.put("z", id="x", on_duplicate="replace"),
        "put_many": lambda: feeds.put_many([(n, {"id": str(n)}) for n in range(1000)]),
        "take": lambda: feeds.take(0),
        "take_many": lambda: feeds.take_many(1001),
        "take nothing": lambda: feeds.take(0),
        "peek": lambda: feeds.peek("x"),
        "delete": lambda: feeds.delete("x"),
        "push one": lambda: queue.put("x"),
        "push": lambda: queue.put_many(range(1000)),
        "pop": lambda: queue.take_many(1001),
        "inspect": lambda: queue.inspect(-10, 10, pending=True),
        "recover": lambda: queue.recover(1000, 0),
    }
    for what, call in calls.items():
        must_be_one(counted, what, call)
    names = [task.id for task in queue.inspect(0, 1001, pending=True)]
    must_be_one(counted, "ack", lambda: queue.ack(names[0]))
    must_be_one(counted, "ack_many", lambda: queue.ack_many(names))
    assert broker.check() == []


@pytest.mark.parametrize("verb", ["ack", "release", "touch", "fail", "bury"])
def test_every_verb_of_a_task_is_one_round_trip(broker: penstock.Broker, counted: Counted, verb: str) -> None:
    tube = broker.tube("work", ttr=60)
    tube.put("x")
    task = tube.take(0)
    assert task is not None
    arguments: list[object] = {"touch": [5], "fail": ["broken"]}.get(verb, [])  # type: ignore[assignment]
    counted.sent.clear()
    getattr(task, verb)(*arguments)
    assert len([query for query in counted.sent if "penstock_beat" not in query]) == 1


def test_an_idle_taker_sends_no_query_but_scan_and_beat(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with penstock.connect(url) as broker:
        tube = broker.tube("work")
        tube.take(0)
        counted = Counted(broker, monkeypatch)
        began = time.monotonic()
        tube.take(3)
        scans = int(time.monotonic() - began)
        sent = [query for query in counted.sent if "penstock_beat" not in query]
        # The first look, the registration, the look after it, LISTEN, the look after that, the end, and the scans, of
        # which there is one a second; fewer than two a second is no polling.
        assert len(sent) <= 2 * scans + 7, sent
