"""check finds what must not exist in memory, and repair mends it: tests.support.corruption, done to the dicts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from uuid import uuid4

import pytest
from msgspec.structs import replace

import penstock
from penstock.store.memory.database import MemoryDatabase, opened
from penstock.store.memory.tube import TubeState
from tests.behaviour.verbs import drain, take
from tests.support import corruption as damage

Damage = Callable[[TubeState], object]


@pytest.fixture
def broker() -> Iterator[penstock.Broker]:
    with penstock.connect(f"memory://{uuid4().hex}") as broker:
        yield broker


def _database(broker: penstock.Broker) -> MemoryDatabase:
    return opened[broker.runtime.store.identity]


def _alter(tube: TubeState, id: int, **fields: object) -> None:
    tube.records[id] = replace(tube.records[id], **fields)


def _alter_all(tube: TubeState, state: str, to: str) -> None:
    for record in list(tube.records.values()):
        if record.state == state:
            _alter(tube, record.id, state=to)


def _lose(tube: TubeState, group: str) -> None:
    for record in list(tube.records.values()):
        if record.group == group:
            del tube.records[record.id], tube.members[record.group_no or 0][record.id]


UNLEASED: dict[str, tuple[str, Damage, str]] = {
    "an element out of its place": ("feeds", lambda tube: _alter(tube, 1, rank1=7), "does not stand"),
    "a buried element": ("feeds", lambda tube: _alter(tube, 1, state="!"), "state !"),
    "a leased message": ("queue", lambda tube: _alter(tube, 1, owner=1), "held by session 1"),
    "a delayed message": ("queue", lambda tube: _alter(tube, 2, state="~"), "state ~"),
    "a last id that is too low": ("queue", lambda tube: setattr(tube, "mark", (5, 9)), "the last id is kept as 5-9"),
    "a wrong counter": ("queue", lambda tube: tube.counts.update(taken=4), "counter taken"),
}


@pytest.mark.parametrize("name", UNLEASED)
def test_unleased_kinds(broker: penstock.Broker, name: str) -> None:
    where, harm, found = UNLEASED[name]
    damage.fill_unleased(broker)
    harm(_database(broker).by_name[where])
    damage.must_mend_unleased(broker, found)


GROUPS: dict[str, tuple[Damage, str, list[str]]] = {
    "a wrong count": (lambda tube: setattr(tube.groups[2], "left", 7), "7 tasks are left", ["s", "end"]),
    "a lost end": (lambda tube: _lose(tube, "started"), "should have ended", ["end"]),
    "a task of no group": (lambda tube: tube.groups.pop(1), "its group is not there", ["s", "end", "o"]),
    "a task that runs ahead": (lambda tube: _alter(tube, 1, state="r"), "can be taken", ["s", "end"]),
    "a start that nobody follows": (
        lambda tube: setattr(tube.groups[1], "state", "started"),
        "do not follow",
        ["s", "end", "o"],
    ),
}


@pytest.mark.parametrize("name", GROUPS)
def test_groups(broker: penstock.Broker, name: str) -> None:
    harm, found, expected = GROUPS[name]
    damage.fill_groups(broker)
    harm(_database(broker).by_name["t"])
    damage.must_mend_groups(broker, found, expected)


def _miscount(tube: TubeState) -> None:
    for id in (97, 98, 99):
        tube.queues["a"].waiting.add((0, 0, id))


def _forget_queues(tube: TubeState) -> None:
    tube.queues.clear()


QUEUES: dict[str, tuple[Damage, str]] = {
    "no row": (_forget_queues, "counts (0, 0, 0), there are (1, 0, 2)"),
    "a wrong number": (_miscount, "counts (1, 0, 5), there are (1, 0, 2)"),
    "heads that must wait": (lambda tube: _alter_all(tube, "q", "r"), "ready tasks takeable and has not"),
    "no heads": (lambda tube: _alter_all(tube, "r", "q"), "ready tasks takeable and has not"),
}


@pytest.mark.parametrize("fair", [False, True])
@pytest.mark.parametrize("name", QUEUES)
def test_micro_queues(broker: penstock.Broker, name: str, fair: bool) -> None:
    harm, found = QUEUES[name]
    damage.fill_lanes(broker, fair=fair)
    harm(_database(broker).by_name["t"])
    damage.must_mend_lanes(broker, found)


@pytest.mark.parametrize("state", damage.STRANDED)
def test_a_state_that_nothing_ends(broker: penstock.Broker, state: str) -> None:
    damage.fill_stranded(broker, state)
    _alter(_database(broker).by_name["t"], 1, state=state)
    damage.must_mend_stranded(broker, state)


def test_a_task_that_no_live_session_holds(broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    tube.put("x")
    take(tube)
    _alter(_database(broker).by_name["t"], 1, owner=9)
    assert [finding.what for finding in broker.check()] == ["taken, but no live session holds it"]
    broker.check(repair=True)
    assert broker.check() == []
    assert drain(tube) == ["x"]
