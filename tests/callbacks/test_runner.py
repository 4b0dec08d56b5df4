"""Callbacks from put to ack, with a real store and a real receiver."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import penstock
from penstock.callbacks.allow_list import Settings, allow_list
from penstock.callbacks.callback_runner import Runner
from penstock.callbacks.signing import key
from penstock.testing import Clock
from tests.callbacks.receiver import PATIENCE, Answer, Got, Receiver
from tests.conftest import STORES
from tests.support.threads import until

Run = Callable[..., Runner]


@pytest.fixture(params=["sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("PENSTOCK_LOCKS", str(tmp_path / "locks"))
    return STORES[request.param](tmp_path)


@pytest.fixture
def broker(url: str) -> Iterator[penstock.Broker]:
    # A memory store has the clock of its first broker, which is stopped here: no lease ends.
    with penstock.connect(url, clock=Clock() if url.startswith("memory") else None) as broker:
        yield broker
        assert broker.check() == []


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as receiver:
        yield receiver


@pytest.fixture
def run(url: str, broker: penstock.Broker) -> Iterator[Run]:
    """Starts runners and stops them after the test."""
    with ExitStack() as begun:

        def begin(*allowed: str, per_host: int = 8) -> Runner:
            settings = Settings(allow_list(allowed or ["127.0.0.1"]), (key("a secret for the tests"),), per_host)
            runner = Runner(url, settings)
            runner.begin()
            begun.callback(runner.end, 1)
            return runner

        yield begin


def gone(tube: penstock.Tube) -> None:
    """Wait until the tube is empty."""
    until(lambda: len(tube) == 0, PATIENCE)


@pytest.mark.parametrize("url", [name for name in STORES if name != "memory"], indirect=True)
def test_a_task_is_posted_and_acked(broker: penstock.Broker, receiver: Receiver, run: Run) -> None:
    tube = broker.create_tube("hooks", callback=receiver.url)
    tube.put({"n": 1})
    run()
    got = receiver.next()
    assert (got.body, got.headers["Penstock-Tube"], got.headers["Penstock-Id"]) == (b'{"n":1}', "hooks", "1")
    gone(tube)
    assert (tube.stats().calls.ack, receiver.got.empty()) == (1, True)
    tube.put({"n": 2}, delay=0.1)
    assert receiver.next().body == b'{"n":2}'
    gone(tube)


def test_the_response_is_the_result(broker: penstock.Broker, receiver: Receiver, run: Run) -> None:
    receiver.answer = lambda got: Answer(200, b'{"sent": true}', {"Content-Type": "application/json"})
    tube = broker.create_tube("hooks", callback=receiver.url)
    tube.put("x", address="order-7", reply_to="replies")
    run()
    assert tube.wait("order-7", PATIENCE).unwrap() == {"sent": True}
    reply = broker.tube("replies").take(PATIENCE)
    assert reply is not None
    assert reply.data["result"] == {"sent": True}


def test_one_callback_among_other_work_is_found_and_the_rest_left_alone(
    broker: penstock.Broker, receiver: Receiver, run: Run
) -> None:
    run()
    mixed, plain = broker.tube("mixed"), broker.tube("plain")
    mixed.put_many(["other", ("ours", {"callback": receiver.url}), "other"])
    plain.put_many(["other"] * 3)
    assert receiver.next().body == b'"ours"'
    left = [("other", penstock.Status.READY, 0)] * 2
    until(lambda: [(task.data, task.status, task.attempts) for task in mixed.tasks()] == left, PATIENCE)
    assert plain.stats().calls.take == 0
    assert receiver.got.empty()


def test_failures_are_retried_with_back_off_and_then_buried(
    broker: penstock.Broker, receiver: Receiver, run: Run
) -> None:
    receiver.answer = lambda got: Answer(500, b"broken")
    backoff = penstock.Backoff(base=0.05, factor=2, limit=1, jitter=0)
    tube = broker.create_tube("hooks", callback=receiver.url, max_attempts=3, backoff=backoff)
    tube.put("x")
    run()
    attempts = [receiver.next().headers["Penstock-Attempt"] for _ in range(3)]
    assert attempts == ["1", "2", "3"]
    until(lambda: tube.stats().tasks.buried == 1, PATIENCE)
    assert (tube.peek(1).reason, tube.peek(1).attempts) == ("callback was answered with 500: broken", 3)
    assert receiver.got.empty()


@pytest.mark.parametrize("status", [410])
def test_a_response_gone_buries_the_task_at_once(
    broker: penstock.Broker, receiver: Receiver, run: Run, status: int
) -> None:
    receiver.answer = lambda got: Answer(status)
    tube = broker.create_tube("hooks", callback=receiver.url)
    tube.put("x")
    run()
    until(lambda: tube.stats().tasks.buried == 1, PATIENCE)
    assert (tube.peek(1).reason, tube.peek(1).attempts) == ("callback was answered with 410", 1)


def test_callbacks_that_are_not_allowed_are_buried_and_never_called(
    broker: penstock.Broker, receiver: Receiver, run: Run
) -> None:
    tube = broker.create_tube("hooks", callback=receiver.url)
    tube.put("x")
    run("hooks.example.org")
    until(lambda: tube.stats().tasks.buried == 1, PATIENCE)
    expected = f"callback refused: 127.0.0.1:{receiver.port} is not on the allow-list: add the address or its network"
    assert tube.peek(1).reason == expected
    assert receiver.got.empty()


@pytest.mark.parametrize("url", ["memory"], indirect=True)
def test_a_call_ends_at_its_ttr(broker: penstock.Broker, receiver: Receiver, run: Run) -> None:
    ended = threading.Event()
    receiver.answer = lambda got: Answer() if ended.wait(PATIENCE) else Answer(500)
    tube = broker.create_tube("hooks", callback=receiver.url, ttr=1, max_attempts=1)
    tube.put("x")
    run()
    until(lambda: tube.stats().tasks.buried == 1, PATIENCE)
    ended.set()
    assert tube.peek(1).reason == "callback was not answered within 1 s"
    assert tube.stats().calls.ttr == 0


def test_a_busy_host_is_limited_and_does_not_delay_others(
    broker: penstock.Broker, receiver: Receiver, run: Run
) -> None:
    release, running, most = threading.Event(), [0], [0]
    lock = threading.Lock()

    def slow(got: Got) -> Answer:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        release.wait(PATIENCE)
        with lock:
            running[0] -= 1
        return Answer()

    receiver.answer = slow
    tube = broker.create_tube("hooks", callback=receiver.url)
    tube.put_many(["slow"] * 12)
    with Receiver() as other:
        # The same address by another name is another host.
        tube.put("quick", callback=f"http://localhost:{other.port}/")
        run("127.0.0.1", "localhost", "::1", per_host=2)
        assert other.next().body == b'"quick"'
    until(lambda: running == [2], PATIENCE)  # the fast one may have overtaken them
    release.set()
    gone(tube)
    assert most == [2]
    assert (receiver.got.qsize(), tube.stats().calls.ack) == (12, 13)


def test_many_are_called_through_few_connections(broker: penstock.Broker, receiver: Receiver, run: Run) -> None:
    tube = broker.create_tube("hooks", "fifo", callback=receiver.url)
    tube.put_many(list(range(500)))
    run()
    gone(tube)
    assert sorted(int(receiver.next().body) for _ in range(500)) == list(range(500))
    assert (tube.stats().calls.ack, tube.stats().calls.bury) == (500, 0)


def test_a_stop_lets_calls_end_and_releases_the_others(broker: penstock.Broker, receiver: Receiver, run: Run) -> None:
    release = threading.Event()
    receiver.answer = lambda got: Answer() if release.wait(PATIENCE) else Answer(500)
    tube = broker.create_tube("hooks", callback=receiver.url)
    tube.put("x")
    runner = run()
    receiver.next()
    runner.end(0.2)
    release.set()
    assert (tube.peek(1).status, tube.peek(1).reason) == ("r", "the worker stopped before the handler ended")
