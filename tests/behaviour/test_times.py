"""Durations as a timedelta, and `at`: a time instead of a delay."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

import penstock
from penstock.testing import Clock
from tests.support.inspection import everything, tasks
from tests.support.threads import begin, until
from tests.support.verbs import take


def after(clock: Clock, seconds: float) -> datetime:
    return datetime.fromtimestamp(clock.seconds, UTC) + timedelta(seconds=seconds)


def test_every_option_in_seconds_accepts_a_timedelta(broker: penstock.Broker, clock: Clock) -> None:
    minute, second = timedelta(minutes=1), timedelta(seconds=1)
    backoff = penstock.Backoff(base=second, limit=minute)
    assert (backoff, backoff.delay(1, 0.5)) == (penstock.Backoff(1, limit=60), 1)
    tube = broker.tube("mail", ttl=minute, ttr=second * 5, aging=second, retention=minute, backoff=backoff)
    options = {"ttl": 60, "ttr": 5, "aging": 1, "retention": 60, "backoff": backoff}
    assert [(info.name, info.options) for info in broker.tubes()] == [("mail", options)]
    broker.tube("mail", ttl=60, ttr=timedelta(milliseconds=5000))
    with pytest.raises(penstock.TubeMismatch, match=r"ttl=60.0, not 61\.0"):
        broker.tube("mail", ttl=minute + second)
    assert broker.tube("round", kind="round", period=timedelta(days=7), retention=None).stored.period == 604_800_000

    task = tube.put("x", ttl=minute * 2, ttr=second * 2, delay=second * 3, timeout=second)
    assert (task.due, task.expires) == (clock.seconds + 3, clock.seconds + 123)
    clock.advance(3)
    task = take(tube)
    assert task.due == clock.seconds + 2
    task.touch(second)
    assert tube.peek(task.id).due == clock.seconds + 3
    task.release(delay=second)
    assert tube.peek(task.id).due == clock.seconds + 1
    assert tube.take(timedelta()) is None
    assert tube.take_many(2, timedelta()) == []
    assert broker.take(["mail"], timedelta()) is None
    with pytest.raises(TimeoutError):
        tube.put("y", address="a")
        tube.wait("a", timedelta())
    with broker.session(ttr=minute) as session:
        assert session.take(["mail"], timedelta()) is not None


def test_a_timedelta_is_checked_as_seconds_are(broker: penstock.Broker) -> None:
    tube = broker.tube("mail")
    for bad in (timedelta(seconds=-1), timedelta.max, timedelta.min):
        with pytest.raises(penstock.BadValue, match="delay"):
            tube.put("x", delay=bad)
        with pytest.raises(penstock.BadValue, match="timeout"):
            tube.take(bad)
        with pytest.raises(penstock.BadValue, match="backoff base"):
            penstock.Backoff(base=bad)
    with pytest.raises(penstock.BadValue, match="above 0"):
        tube.put("x", ttl=timedelta())
    assert tasks(tube) == {}


def test_a_task_is_put_for_a_time(broker: penstock.Broker, clock: Clock) -> None:
    tube = broker.tube("mail")
    at = after(clock, 10)
    task = tube.put("x", at=at)
    assert (task.status, task.due) == ("~", clock.seconds + 10)
    assert tube.put("y", at=at.astimezone(timezone(timedelta(hours=-7)))).due == clock.seconds + 10
    many = tube.put_many([1, (2, {"pri": 1}), (3, {"at": None})], at=after(clock, 2))
    assert [task.due for task in many] == [clock.seconds + 2] * 3
    many = tube.put_many([1, (2, {"at": after(clock, 2)}), (3, {"delay": 1})])
    assert [task.due for task in many] == [None, clock.seconds + 2, clock.seconds + 1]
    group = tube.group("g")
    late = group.put("z", at=at)
    group.start()
    assert tube.peek(late.id).due == clock.seconds + 10
    clock.advance(9.999)
    assert [task.id for task in tube.tasks("~")] == [1, 2, late.id]
    clock.advance(0.001)
    assert tube.tasks("~") == []


def test_a_time_in_the_past_means_now(broker: penstock.Broker, clock: Clock) -> None:
    tube = broker.tube("mail")
    assert tube.put("x", at=after(clock, -1)).status == "r"
    assert tube.put("y", at=after(clock, 0), delay=0).status == "r"
    assert [task.status for task in tube.put_many(["z"], at=datetime.min.replace(tzinfo=UTC), delay=None)] == ["r"]


def test_a_bad_time_is_refused(broker: penstock.Broker, clock: Clock) -> None:
    tube = broker.tube("mail")
    before, good = everything(tube), after(clock, 5)
    bad: dict[str, Any] = {
        "no time zone": good.replace(tzinfo=None),
        "give a datetime": clock.seconds,
        "is a str: give a datetime": "2030-01-01T00:00:00Z",
        "is a date: give": good.date(),
        "is out of range": datetime.max.replace(tzinfo=UTC),
    }
    for message, at in bad.items():
        with pytest.raises(penstock.BadValue, match=message):
            tube.put("x", at=at)
        with pytest.raises(penstock.BadValue, match=message):
            tube.put_many(["x"], at=at)
        with pytest.raises(penstock.BadValue, match=message):
            tube.put_many(["x", ("y", {"at": at})])
    delays: list[Any] = [1, 0.5, timedelta(seconds=1), "soon"]
    for delay in delays:
        with pytest.raises(penstock.BadValue, match="at and delay"):
            tube.put("x", at=good, delay=delay)
        with pytest.raises(penstock.BadValue, match="at and delay"):
            tube.put_many([("x", {"delay": delay})], at=good)
    assert everything(tube) == before


@pytest.mark.parametrize("kind", ["fifo", "utube", "reliable"])
def test_a_kind_without_delays_has_no_at(broker: penstock.Broker, clock: Clock, kind: str) -> None:
    tube = broker.tube("mail", kind=kind)
    for seconds in (5, -5):
        with pytest.raises(penstock.UnsupportedOption, match="no option at: use one of fifottl, utubettl"):
            tube.put("x", at=after(clock, seconds))
    assert len(tube) == 0


def test_at_is_a_time_of_the_stores_clock(live: penstock.Broker) -> None:
    task = live.tube("mail").put("x", at=datetime.now(UTC) + timedelta(seconds=60))
    assert task.due == pytest.approx(time.time() + 60, abs=2)


@pytest.mark.usefixtures("unscanned")  # a scan would put again, perhaps while this test sets the clock
@pytest.mark.parametrize("many", [False, True])
def test_at_is_a_time_also_after_a_wait_for_room(
    broker: penstock.Broker, clock: Clock, many: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    tube, at = broker.tube("mail", capacity=1), after(clock, 5)
    tube.put("first")
    store, attempts = broker.runtime.store, list[bool]()
    store_put = store.put

    def put_once(*args: Any, **kwargs: Any) -> Any:
        try:
            return store_put(*args, **kwargs)
        finally:
            attempts.append(True)

    monkeypatch.setattr(store, "put", put_once)
    put = (lambda: tube.put_many(["x"], at=at, timeout=60)[0]) if many else (lambda: tube.put("x", at=at, timeout=60))
    waiting = begin(put)
    until(lambda: len(attempts) >= 2)  # once before it waits, and once in the wait queue
    clock.advance(2)
    tube.delete(1)
    assert waiting.result(60).due == at.timestamp()
