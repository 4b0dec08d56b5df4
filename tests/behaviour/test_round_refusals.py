"""What kind round does not have, and what it does not accept: refused before anything is stored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import penstock
from tests.behaviour.helpers import LEASED_KINDS_VERBS, everything, take
from tests.conftest import Connect


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


@pytest.mark.parametrize("verb", REFUSED)
def test_a_verb_of_other_kinds_is_refused(feeds: penstock.Tube, verb: str) -> None:
    feeds.put(1, id="a")
    task = take(feeds)
    before = everything(feeds)
    for which in (task, "a"):
        with pytest.raises(penstock.UnsupportedOption):
            REFUSED[verb](feeds, which)
    assert everything(feeds) == before


@pytest.mark.parametrize("verb", ["ack", "release", "touch", "bury", "fail"])
def test_a_verb_of_the_task_itself_is_refused(feeds: penstock.Tube, verb: str) -> None:
    feeds.put(1, id="a")
    arguments = {"touch": (1,), "fail": ("broken",)}.get(verb, ())
    with pytest.raises(penstock.UnsupportedOption, match=r"(?s)(?=.*round)(?=.*fifottl)"):
        getattr(take(feeds), verb)(*arguments)


OPTIONS: dict[str, object] = {
    "pri": 1, "ttr": 1, "delay": 1, "utube": "u", "rank": 1, "address": "x", "group": "g", "reply_to": "r",
    "callback": "http://a/", "max_attempts": 1,
}  # fmt: skip


@pytest.mark.parametrize("option", OPTIONS)
def test_an_option_of_other_kinds_is_refused_at_put(feeds: penstock.Tube, option: str) -> None:
    with pytest.raises(penstock.UnsupportedOption, match=option):
        feeds.put(1, id="a", **{option: OPTIONS[option]})  # type: ignore[arg-type]
    assert everything(feeds) == ({}, {}, [])


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("ttr", 1), ("pri", 1), ("aging", 1), ("utube_limit", 2), ("fair", True), ("max_attempts", 1), ("retention", 1),
        ("callback", "http://a/"), ("backoff", penstock.Backoff()),
    ],
)  # fmt: skip
def test_an_option_of_other_kinds_is_refused_at_creation(broker: penstock.Broker, option: str, value: object) -> None:
    with pytest.raises(penstock.UnsupportedOption, match=option):
        broker.create_tube("t", "round", period=1, **{option: value})  # type: ignore[arg-type]
    assert broker.tubes() == []


def test_the_period_is_needed_to_create_and_not_to_open(broker: penstock.Broker, connect: Connect) -> None:
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


@pytest.mark.parametrize("period", [0, -1, float("nan"), float("inf"), True, "5", 1e308])
def test_a_bad_period_is_refused(broker: penstock.Broker, period: float) -> None:
    with pytest.raises(penstock.BadValue, match="period"):
        broker.create_tube("t", "round", period=period)
    assert broker.tubes() == []


def test_the_id_is_needed_at_put(feeds: penstock.Tube) -> None:
    with pytest.raises(penstock.BadValue, match="id"):
        feeds.put(1)
    with pytest.raises(penstock.BadValue, match="id"):
        feeds.put_many([(1, {"id": "a"}), 2])
    assert everything(feeds) == ({}, {}, [])


BAD_IDS: list[Any] = [
    "", " ", "\t", "x" * 201, "é" * 101, "a\0b", "a\r\nb", "\u202ea", "a\u200b", "\ud800", 1, 1.5, True, b"a", ["a"],
]  # fmt: skip


@pytest.mark.parametrize("id", BAD_IDS, ids=ascii)
def test_a_bad_id_is_refused(feeds: penstock.Tube, id: str) -> None:
    feeds.put(1, id="a")
    before = everything(feeds)
    looks: list[Callable[[str], object]] = [
        lambda id: feeds.put(1, id=id), lambda id: feeds.put_many([(1, {"id": "b"}), (2, {"id": id})]),
        feeds.peek, feeds.delete, feeds.why, feeds.__contains__, lambda id: feeds.tasks(after=id),
    ]  # fmt: skip
    for look in looks:
        with pytest.raises(penstock.BadValue, match="id"):
            look(id)
    assert everything(feeds) == before


@pytest.mark.parametrize("ttl", [0, -1, float("nan"), True, "1"])
def test_a_bad_ttl_is_refused(feeds: penstock.Tube, ttl: float) -> None:
    with pytest.raises(penstock.BadValue, match="ttl"):
        feeds.put(1, id="a", ttl=ttl)
    assert len(feeds) == 0
