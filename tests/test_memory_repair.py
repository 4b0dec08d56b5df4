"""check finds what must not exist among addresses and groups in memory, and repair mends it."""

from __future__ import annotations

from collections.abc import Callable
from uuid import uuid4

import pytest

import penstock
from penstock.core.lifecycle import Move
from penstock.store.memory import MemoryStore
from penstock.store.memory.step import Step
from penstock.store.memory.tube import TubeState
from tests.behaviour.verbs import drain


def _forget_tasks(state: TubeState) -> None:
    """The work of the started group is gone, and nobody noticed."""
    state.links.groups.members[state.links.groups.live["started"]].clear()
    state.links.groups.by_no[state.links.groups.live["started"]].left = 0


def _end_unnoticed(state: TubeState) -> None:
    record = next(record for record in state.records.values() if record.group == "started")
    group = state.links.groups.by_no[record.group_no or 0]
    group.state = "open"  # so that its end is missed
    state.settle(Move("delete", record.id), Step(0))
    group.state = "started"


# name -> the damage, what is found, and what can be taken once it is mended
DAMAGE: dict[str, tuple[Callable[[TubeState], object], str, list[object]]] = {
    "a lost address": (lambda state: state.links.by_address.clear(), "address a", ["s", "end"]),
    "an address of no task": (lambda state: state.links.by_address.update(b=9), "address b", ["s", "end"]),
    "a wrong count": (_forget_tasks, "0 tasks are left", ["s", "end"]),
    "a lost end": (_end_unnoticed, "should have ended", ["end"]),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_found_and_mended(name: str) -> None:
    damage, found, expected = DAMAGE[name]
    with penstock.connect(f"memory://{uuid4().hex}") as broker:
        tube = broker.tube("t")
        tube.put("o", group="open", address="a")
        started = tube.group("started")
        started.put("s")
        started.on_end("end")
        started.start()
        store = broker._hub.store
        assert isinstance(store, MemoryStore)
        damage(store._by_name["t"])
        assert any(found in finding.what for finding in broker.check()), broker.check()
        broker.check(repair=True)
        assert broker.check() == []
        assert drain(tube) == expected
        with pytest.raises(penstock.DuplicateAddress):
            tube.put("again", address="a")
