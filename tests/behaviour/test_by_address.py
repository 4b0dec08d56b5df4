"""peek, delete, cancel and why by address instead of id; `address in tube`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import penstock
from penstock.core.entry import make_entry
from penstock.core.lifecycle import Move
from penstock.testing import Clock
from tests.conftest import Connect
from tests.support.inspection import everything, tasks
from tests.support.verbs import KINDS, take

BY_ADDRESS: dict[str, Callable[[penstock.Tube, Any], object]] = {
    "peek": lambda tube, address: tube.peek(address=address),
    "delete": lambda tube, address: tube.delete(address=address),
    "cancel": lambda tube, address: tube.cancel(address=address),
    "why": lambda tube, address: tube.why(address=address),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_task_is_found_by_its_address(broker: penstock.Broker, kind: str) -> None:
    tube = broker.tube("t", kind=kind)
    tube.put("other")
    task = tube.put("x", address="order 1")
    found = tube.peek(address="order 1")
    assert (found.id, found.data, found.address) == (task.id, "x", "order 1")
    assert tube.why(address="order 1") == tube.why(task.id)
    assert "order 1" in tube
    assert "order 2" not in tube
    assert (task.id in tube, 99 in tube) == (True, False)


@pytest.mark.parametrize("taken", [False, True])
def test_a_task_is_deleted_by_its_address(broker: penstock.Broker, connect: Connect, taken: bool) -> None:
    tube = broker.tube("t")
    tube.put("x", address="a")
    held = take(tube) if taken else None
    connect().tube("t").delete(address="a")
    assert (tasks(tube), "a" in tube) == ({"done": 1}, False)
    assert tube.wait("a", 0).status == "deleted"
    if held is not None:
        with pytest.raises(penstock.NotTaken):
            held.ack()


def test_a_task_is_cancelled_by_its_address(broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    tube.put("x", address="a")
    assert tube.cancel(address="a", reason="too late") is True
    assert tube.wait("a", 0) == penstock.Outcome("cancelled", error="too late")
    assert tube.cancel(address="a") is False


def test_an_address_without_a_task_is_not_found(broker: penstock.Broker, clock: Clock) -> None:
    tube = broker.tube("t")
    tube.put("x", address="left")
    take(tube).ack()
    tube.put("y", address="expired", ttl=5)
    clock.advance(5)
    before = everything(tube)
    for address in ("left", "expired", "never"):
        for verb in ("peek", "delete", "why"):
            with pytest.raises(penstock.NotFound, match=f"address {address} .*tube t"):
                BY_ADDRESS[verb](tube, address)
        assert tube.cancel(address=address) is False
        assert address not in tube
    assert everything(tube) == before


def test_an_address_means_its_newest_task(broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    tube.put("old", address="a")
    take(tube).ack()
    new = tube.put("new", address="a")
    assert tube.peek(address="a").id == new.id
    tube.delete(address="a")
    assert tube.tasks() == []


def test_the_task_that_holds_the_address_now_is_settled(
    broker: penstock.Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between lookup and settle, the task leaves and another is put under its address."""
    tube = broker.tube("t")
    tube.put("old", address="a")
    store, rivals = broker.runtime.store, [1]
    get = store.get

    def slow(*args: Any, **given: Any) -> Any:
        found = get(*args, **given)
        if rivals:
            store.settle(tube.stored, [Move("delete", rivals.pop())])
            store.put(tube.stored, [make_entry(tube.stored, "new", {"address": "a"})])
        return found

    monkeypatch.setattr(broker.runtime.store, "get", slow)
    assert tube.cancel(address="a") is True
    assert (tube.tasks(), tube.wait("a", 0).status) == ([], "cancelled")


@pytest.mark.parametrize("verb", BY_ADDRESS)
def test_a_bad_address_is_refused(broker: penstock.Broker, verb: str) -> None:
    tube = broker.tube("t")
    tube.put("x", address="a")
    before = everything(tube)
    for bad in ("", " ", "a\nb", 1, b"a", "x" * 201, ["a"], tube.peek(1)):
        with pytest.raises(penstock.BadValue, match="address"):
            BY_ADDRESS[verb](tube, bad)
    with pytest.raises(penstock.BadValue, match="an id and an address are given: give one of them"):
        getattr(tube, verb)(1, address="a")
    with pytest.raises(penstock.BadValue, match="task id None"):
        getattr(tube, verb)()
    with pytest.raises(penstock.BadValue, match="task id 'a' is a str"):
        getattr(tube, verb)("a")
    assert everything(tube) == before


@pytest.mark.parametrize("kind", ["round", "reliable"])
@pytest.mark.parametrize("verb", BY_ADDRESS)
def test_kinds_without_addresses_refuse_it(broker: penstock.Broker, kind: str, verb: str) -> None:
    tube = broker.tube("t", kind=kind, **({"period": 1} if kind == "round" else {}))  # type: ignore[arg-type]
    with pytest.raises(penstock.UnsupportedOption, match="address"):
        BY_ADDRESS[verb](tube, "a")
