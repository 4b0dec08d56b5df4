"""A store that has no addresses, replies and groups yet: refused by name, and nothing is stored."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import cast

import pytest

import penstock
from penstock.store.base import Store
from penstock.store.linked import LinkedStore
from tests.partial import Without


@pytest.fixture
def tube() -> Iterator[penstock.Tube]:
    with penstock.Broker(cast(Store, Without(LinkedStore))) as broker:
        yield broker.tube("t")


CALLS: dict[str, Callable[[penstock.Tube], object]] = {
    "address": lambda tube: tube.put("x", address="a"),
    "reply_to": lambda tube: tube.put("x", reply_to="r"),
    "group": lambda tube: tube.put("x", group="g"),
    "put_many": lambda tube: tube.put_many(["x", ("y", {"reply_to": "r"})]),
    "wait": lambda tube: tube.wait("a", 0),
    "group()": lambda tube: tube.group("g"),
}


@pytest.mark.parametrize("name", CALLS)
def test_what_the_store_does_not_have_is_refused(tube: penstock.Tube, name: str) -> None:
    with pytest.raises(penstock.UnsupportedOption, match="sqlite"):
        CALLS[name](tube)
    assert len(tube) == 0


def test_plain_work_goes_on(tube: penstock.Tube) -> None:
    tube.put("x", pri=1)
    task = tube.take(0)
    assert task is not None
    task.ack("result")
