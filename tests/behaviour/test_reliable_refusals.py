"""Verbs and options that kind reliable refuses before anything is stored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import penstock
from tests.support.inspection import everything, refused
from tests.support.verbs import LEASED_KINDS_VERBS, take


@pytest.fixture
def queue(broker: penstock.Broker) -> penstock.Tube:
    return broker.create_tube("queue", "reliable")


def test_a_verb_of_other_kinds_is_refused(queue: penstock.Tube) -> None:
    queue.put(1)
    task = take(queue)
    before = everything(queue)
    for verb in LEASED_KINDS_VERBS.values():
        for which in (task, task.id):
            with pytest.raises(penstock.UnsupportedOption):
                verb(queue, which)
    assert everything(queue) == before


@pytest.mark.parametrize("kind", ["fifo", "fifottl", "utube", "utubettl"])
def test_leased_kinds_have_neither_recover_nor_inspect(broker: penstock.Broker, kind: str) -> None:
    tube = broker.tube("t", kind=kind)
    for verb in (tube.recover, tube.inspect):
        with pytest.raises(penstock.UnsupportedOption, match=f"(?s)(?=.*{kind})(?=.*reliable)"):
            verb(1, 1)


OPTIONS: dict[str, object] = {
    "pri": 1, "ttl": 1, "ttr": 1, "delay": 1, "utube": "u", "id": "x", "rank": 1, "address": "x", "group": "g",
    "reply_to": "r", "callback": "http://a/", "max_attempts": 1, "on_duplicate": "replace",
}  # fmt: skip


def test_an_option_of_other_kinds_is_refused_at_put(queue: penstock.Tube) -> None:
    for option, value in OPTIONS.items():
        with pytest.raises(penstock.UnsupportedOption, match=option):
            queue.put(1, **{option: value})  # type: ignore[arg-type]
        with pytest.raises(penstock.UnsupportedOption, match=option):
            queue.put_many([1, (2, {option: value})])
    assert everything(queue) == ({}, {}, [])


TUBE_OPTIONS: dict[str, object] = {
    "ttl": 1, "ttr": 1, "pri": 1, "aging": 1, "utube_limit": 2, "fair": True, "max_attempts": 1, "retention": 1,
    "callback": "http://a/", "backoff": penstock.Backoff(), "period": 1,
}  # fmt: skip


def test_an_option_of_other_kinds_is_refused_at_creation(broker: penstock.Broker) -> None:
    for option, value in TUBE_OPTIONS.items():
        with pytest.raises(penstock.UnsupportedOption, match=option):
            broker.create_tube("t", "reliable", **{option: value})  # type: ignore[arg-type]
    assert broker.tubes() == []


BAD_IDS: list[Any] = [
    "", "1", "1-", "-1", "1-1xyz", "x1-1", " 1-1", "1-1 ", "1-1\n", "01-1", "1-01", "-1-1", "1--1", "+1-1", "1-1-1",
    "1_0-1", "1.0-1", "1-1e3", "٣-١", "9007199254740992-1", "1-9007199254740992", f"1-{'9' * 400}", 1, 1.5, True, None,
    b"1-1", {"1-1"}, (1, 1),
]  # fmt: skip


def test_what_is_not_an_id_is_refused(queue: penstock.Tube) -> None:
    queue.put_many(["a", "b"])
    task = take(queue)
    before = everything(queue)
    looks: list[Callable[[Any], object]] = [
        queue.ack, lambda id: queue.ack_many([task, id]), queue.peek, queue.delete, queue.why, queue.__contains__,
    ]  # fmt: skip
    for look in looks:
        refused(BAD_IDS, look, "id")
    assert everything(queue) == before


def test_a_valid_id_that_was_never_given_is_unknown(queue: penstock.Tube) -> None:
    queue.put("a")
    take(queue)
    for id in ("0-0", "1-0", "0-1", "9007199254740991-9007199254740991"):
        assert queue.ack_many([id]) == []
        assert id not in queue


def test_a_bad_count_is_refused(queue: penstock.Tube) -> None:
    queue.put("a")
    take(queue)
    before, bad = everything(queue), [0, -1, True, 1.0, "1", None, float("nan"), 2**31]
    refused(bad, lambda count: queue.recover(count, 0), "count")
    refused(bad, lambda count: queue.inspect(0, count), "count")
    assert everything(queue) == before


def test_a_bad_elapsed_is_refused(queue: penstock.Tube) -> None:
    queue.put("a")
    take(queue)
    bad = [-1, -0.001, float("nan"), float("inf"), 1e308, True, "1", None]
    refused(bad, lambda elapsed: queue.recover(1, elapsed), "elapsed")
    assert queue.inspect(0, 1, pending=True)[0].attempts == 1


def test_a_bad_start_or_pending_is_refused(queue: penstock.Tube) -> None:
    bad = [True, 1.0, "0", None, float("nan"), 2**31, -(2**31)]
    refused(bad, lambda start: queue.inspect(start, 1), "start")
    refused([1, 0, "yes", ""], lambda pending: queue.inspect(0, 1, pending), "pending")
