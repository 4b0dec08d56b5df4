"""Shared takes: which callers the store counts as waiting, however the takes end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import penstock
from penstock.broker.session import TakeOp
from penstock.operations.operation import Failure


@pytest.fixture
def look(broker: penstock.Broker) -> Callable[..., TakeOp]:
    """Makes take operations of one session on one tube."""
    tube = broker.tube("t")

    def make(*, blocks: bool = False, count: int = 1) -> TakeOp:
        takes = TakeOp(broker.session_handle, (tube,), count, None)
        takes.blocks = blocks
        return takes

    return make


def waits(broker: penstock.Broker) -> list[list[str]]:
    return [session.waits for session in broker.sessions()]


def test_a_waiter_is_registered_while_anyone_waits(broker: penstock.Broker, look: Callable[..., TakeOp]) -> None:
    first, second, third = (look(blocks=True) for _ in range(3))
    assert [tasks for tasks, _ in first.run_batch([first, second])] == [[], []]
    assert third.run_batch([third])[0][0] == []
    assert waits(broker) == [["t"]]
    broker.tube("t").put("x")
    (got, _), (nothing, _) = second.run_batch([second, first])
    assert ([task.data for task in got], nothing) == (["x"], [])
    assert waits(broker) == [["t"]]
    assert first.run_batch([first.leave(), third.leave()]) == [None, None]
    assert waits(broker) == [[]]
    assert broker.session_handle.waiter_groups == {}


def test_a_leaving_caller_is_unregistered_although_others_fail(
    broker: penstock.Broker, look: Callable[..., TakeOp], monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting, newcomer = look(blocks=True), look()
    waiting.run_batch([waiting])
    store: Any = broker.runtime.store
    real = store.take

    def take(*args: Any, **kwargs: Any) -> Any:
        if kwargs["blocked"] != "unregister":
            raise penstock.StoreBusy("held by others")
        return real(*args, **kwargs)

    monkeypatch.setattr(store, "take", take)
    with pytest.raises(penstock.StoreBusy):
        waiting.run_batch([waiting.leave(), newcomer])
    assert waits(broker) == [[]]


def test_an_error_of_a_second_poll_does_not_harm_served_takers(
    broker: penstock.Broker, look: Callable[..., TakeOp], monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.tube("t").put("x")
    first, second = look(blocks=True), look(blocks=True)
    store: Any = broker.runtime.store
    real, made = store.take, list[int]()

    def take(*args: Any, **kwargs: Any) -> Any:
        made.append(args[1])
        if len(made) > 1:
            raise penstock.StoreBusy("held by others")
        return real(*args, **kwargs)

    monkeypatch.setattr(store, "take", take)
    (got, _), failure = first.run_batch([first, second])
    assert [task.data for task in got] == ["x"]
    assert isinstance(failure, Failure)
    assert made == [2, 1]
