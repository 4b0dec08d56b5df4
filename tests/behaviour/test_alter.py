"""`tube.alter`: new options apply to later puts and takes, in every process within a second."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta

import pytest

import penstock
from penstock.testing import Clock
from tests.conftest import Connect
from tests.support.inspection import tasks
from tests.support.threads import begin, until
from tests.support.verbs import take


def test_altered_options_apply_to_later_puts(broker: penstock.Broker, clock: Clock) -> None:
    tube = broker.tube("t", ttr=60, pri=3)
    tube.put("old")
    tube.alter(ttr=30, pri=2, ttl=timedelta(seconds=100), max_attempts=1)
    new = tube.put("new")
    assert (new.pri, new.expires) == (2, clock.seconds + 100)
    first, second = take(tube), take(tube)
    assert (first.data, first.due) == ("new", clock.seconds + 30)
    assert (second.data, second.due, second.expires) == ("old", clock.seconds + 60, None)
    first.release()
    assert tube.peek(first.id).status == "!"
    assert broker.tubes()[0].options == {"ttr": 30, "pri": 2, "ttl": 100, "max_attempts": 1}


def test_none_resets_an_option_to_its_default(broker: penstock.Broker) -> None:
    tube = broker.tube("t", ttr=60, capacity=1, retention=5)
    tube.alter(ttr=None, capacity=None, retention=7 * 24 * 3600)
    tube.put_many(range(3))
    assert take(tube).due is None
    assert broker.tubes()[0].options == {}
    assert broker.tube("t", retention=None).stored.retention == 7 * 24 * 3600 * 1000


def test_every_handle_notices(connect: Connect, broker: penstock.Broker) -> None:
    tube, twin, other = broker.tube("t"), broker.tube("t"), connect().tube("t")
    other.put("x")
    tube.alter(max_payload=10)
    for handle in (tube, twin, other):
        with pytest.raises(penstock.PayloadTooLarge):
            handle.put("x" * 20)
        with pytest.raises(penstock.PayloadTooLarge):
            handle.put_many(["x" * 20])


ELSEWHERE = """
import sys, time, penstock
from penstock.runtime import store_clock
assert max(store_clock.FRESH_SECONDS, store_clock.CLOCK_SECONDS) <= 1
store_clock.FRESH_SECONDS = store_clock.CLOCK_SECONDS = 0.1  # as a second, in less time
with penstock.connect(sys.argv[1]) as broker:
    tube = broker.tube("t")
    if sys.argv[2] == "taker":
        broker.session()
    tube.put("first")
    print("ready", flush=True)
    sys.stdin.readline()
    time.sleep(0.4)
    print(tube.put("second").pri, flush=True)
"""


@pytest.mark.parametrize("role", ["putter", "taker"])
def test_another_process_notices_within_a_second(durable_url: str, role: str) -> None:
    with penstock.connect(durable_url) as broker:
        tube = broker.tube("t")
        command = [sys.executable, "-c", ELSEWHERE, durable_url, role]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            tube.alter(pri=5)
            process.stdin.write("\n")
            process.stdin.flush()
            assert process.stdout.readline() == "5\n"


@pytest.mark.parametrize("kind", ["utube", "utubettl"])
def test_a_larger_utube_limit_promotes_waiting_tasks(broker: penstock.Broker, kind: str) -> None:
    tube = broker.tube("t", kind)
    tube.put_many([(n, {"utube": "a"}) for n in range(4)])
    held = take(tube)
    blocked = begin(lambda: tube.take(20))
    until(lambda: any("t" in session.waits for session in broker.sessions()))
    tube.alter(utube_limit=3)
    woken = blocked.result(20)
    assert woken is not None
    assert [woken.data, take(tube).data, tube.take(0)] == [1, 2, None]
    tube.alter(utube_limit=1)
    held.ack()
    assert tube.take(0) is None
    assert tasks(tube) == {"ready": 1, "taken": 2, "done": 1, "total": 3}


def test_a_smaller_utube_limit_demotes(broker: penstock.Broker) -> None:
    tube = broker.tube("t", "utube", utube_limit=3, fair=True)
    tube.put_many([(n, {"utube": n % 2}) for n in range(6)])
    tube.alter(utube_limit=1)
    assert [take(tube).data, take(tube).data, tube.take(0)] == [0, 1, None]


def test_capacity_period_backoff_and_retention(broker: penstock.Broker, clock: Clock) -> None:
    full = broker.tube("full", capacity=1)
    full.put("x")
    with pytest.raises(penstock.TubeFull):
        full.put("y")
    full.alter(capacity=2)
    full.put("y")
    feeds = broker.tube("feeds", "round", period=100)
    feeds.put("x", id="a")
    assert feeds.take(0) is not None
    clock.advance(5)
    assert feeds.take(0) is None
    feeds.alter(period=5)
    assert feeds.take(0) is not None
    work = broker.tube("work", retention=1000)
    work.put("w", address="before")
    take(work).ack()
    work.alter(retention=3, backoff=penstock.Backoff(base=7, jitter=0))
    id = work.put("x", address="a").id
    with pytest.raises(ZeroDivisionError), take(work):
        _ = 1 / 0
    assert work.peek(id).due == clock.seconds + 7
    work.delete(id)
    assert work.wait("a", 0).status == "deleted"
    clock.advance(3)
    assert [work.wait(address, 0).status for address in ("a", "before")] == ["unknown", "done"]


def test_structural_and_invalid_options_are_refused(broker: penstock.Broker) -> None:
    tube = broker.tube("t", ttr=60)
    for option in ("kind", "order", "fair", "aging", "shards", "temporary"):
        with pytest.raises(penstock.UnsupportedOption, match=option):
            tube.alter(**{option: None})
    for wrong in ({"ttl": -1}, {"color": "red"}, {"capacity": "x"}, {"max_payload": 0}):
        with pytest.raises(penstock.BadValue):
            tube.alter(**wrong)
    with pytest.raises(penstock.UnsupportedOption):
        tube.alter(utube_limit=2)
    with pytest.raises(penstock.BadValue):
        broker.tube("feeds", "round", period=1).alter(period=None)
    assert broker.tubes()[1].options == {"ttr": 60}


def test_a_mismatch_names_alter_and_a_pause_keeps_what_was_altered(connect: Connect, broker: penstock.Broker) -> None:
    tube, other = broker.tube("t", ttr=60), connect().tube("t")
    broker.runtime.store.write_tube(tube.stored, changes={"ttr": 30})  # no handle has noticed yet
    other.pause()
    other.resume()
    assert broker.tubes()[0].options == {"ttr": 30}
    with pytest.raises(penstock.TubeMismatch, match=r"tube\.alter"):
        broker.tube("t", ttr=60)


def test_a_dropped_tube_is_not_altered(connect: Connect, broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    connect().tube("t").drop()
    with pytest.raises(penstock.NoSuchTube):
        tube.alter(ttr=5)
