"""Verbs and options that kind round refuses before anything is stored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import penstock
from tests.conftest import Connect
from tests.support.inspection import everything, refused
from tests.support.verbs import LEASED_KINDS_VERBS, take


@pytest.fixture
def feeds(broker: penstock.Broker) -> penstock.Tube:
    return broker.create_tube("feeds", "round", period=5)


REFUSED: dict[str, Callable[[penstock.Tube, Any], object]] = {
    **LEASED_KINDS_VERBS,
    "ack": lambda tube, task: tube.ack(task),
    "ack_many": lambda tube, task: tube.ack_many([task]),
    "ack_many of nothing": lambda tube, task: tube.ack_many([]),
    "recover": lambda tube, task: tube.recover(1, 0),
    "inspect": lambda tube, task: tube.inspect(0, 1),
}


def test_a_verb_of_other_kinds_is_refused(feeds: penstock.Tube) -> None:
    feeds.put(1, id="a")
    task = take(feeds)
    before = everything(feeds)
    for verb in REFUSED.values():
        for which in (task, "a"):
            with pytest.raises(penstock.UnsupportedOption):
                verb(feeds, which)
    assert everything(feeds) == before


def test_a_verb_of_the_task_itself_is_refused(feeds: penstock.Tube) -> None:
    feeds.put(1, id="a")
    task = take(feeds)
    verbs: list[Callable[[], object]] = [
        task.ack, task.release, lambda: task.touch(1), task.bury, lambda: task.fail("broken"),
    ]  # fmt: skip
    for verb in verbs:
        with pytest.raises(penstock.UnsupportedOption, match=r"(?s)(?=.*round)(?=.*fifottl)"):
            verb()


OPTIONS: dict[str, object] = {
    "pri": 1, "ttr": 1, "delay": 1, "utube": "u", "rank": 1, "address": "x", "group": "g", "reply_to": "r",
    "callback": "http://a/", "max_attempts": 1,
}  # fmt: skip


def test_an_option_of_other_kinds_is_refused_at_put(feeds: penstock.Tube) -> None:
    for option, value in OPTIONS.items():
        with pytest.raises(penstock.UnsupportedOption, match=option):
            feeds.put(1, id="a", **{option: value})  # type: ignore[arg-type]
    assert everything(feeds) == ({}, {}, [])


TUBE_OPTIONS: dict[str, object] = {
    "ttr": 1, "pri": 1, "aging": 1, "utube_limit": 2, "fair": True, "max_attempts": 1, "retention": 1,
    "callback": "http://a/", "backoff": penstock.Backoff(),
}  # fmt: skip


def test_an_option_of_other_kinds_is_refused_at_creation(broker: penstock.Broker) -> None:
    for option, value in TUBE_OPTIONS.items():
        with pytest.raises(penstock.UnsupportedOption, match=option):
            broker.create_tube("t", "round", period=1, **{option: value})  # type: ignore[arg-type]
    assert broker.tubes() == []


def test_the_period_is_required_to_create_and_not_to_open(broker: penstock.Broker, connect: Connect) -> None:
    for create in (broker.create_tube, broker.tube):
        with pytest.raises(penstock.BadValue, match="period"):
            create("t", "round")
    assert broker.tubes() == []
    broker.tube("t", kind="round", period=5)
    assert connect().tube("t").kind == "round"
    connect().tube("t", kind="round", period=5)
    with pytest.raises(penstock.TubeMismatch, match="period"):
        connect().tube("t", period=6)
    assert [(info.kind, info.options) for info in broker.tubes()] == [("round", {"period": 5})]


def test_a_bad_period_is_refused(broker: penstock.Broker) -> None:
    bad = [0, -1, float("nan"), float("inf"), True, "5", 1e308]
    refused(bad, lambda period: broker.create_tube("t", "round", period=period), "period")
    assert broker.tubes() == []


def test_the_id_is_required_at_put(feeds: penstock.Tube) -> None:
    with pytest.raises(penstock.BadValue, match="id"):
        feeds.put(1)
    with pytest.raises(penstock.BadValue, match="id"):
        feeds.put_many([(1, {"id": "a"}), 2])
    assert everything(feeds) == ({}, {}, [])


BAD_IDS: list[Any] = [
    "", " ", "\t", "x" * 201, "é" * 101, "a\0b", "a\r\nb", "\u202ea", "a\u200b", "\ud800", 1, 1.5, True, b"a", ["a"],
]  # fmt: skip


def test_a_bad_id_is_refused(feeds: penstock.Tube) -> None:
    feeds.put(1, id="a")
    before = everything(feeds)
    looks: list[Callable[[str], object]] = [
        lambda id: feeds.put(1, id=id), lambda id: feeds.put_many([(1, {"id": "b"}), (2, {"id": id})]),
        feeds.peek, feeds.delete, feeds.why, feeds.__contains__, lambda id: feeds.tasks(after=id),
    ]  # fmt: skip
    for look in looks:
        refused(BAD_IDS, look, "id")
    assert everything(feeds) == before


def test_a_bad_ttl_is_refused(feeds: penstock.Tube) -> None:
    refused([0, -1, float("nan"), True, "1"], lambda ttl: feeds.put(1, id="a", ttl=ttl), "ttl")
    assert len(feeds) == 0
