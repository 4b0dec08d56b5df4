"""The transition table against the deciding functions, for every combination of their inputs."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import msgspec
import pytest

from penstock.core import lifecycle
from penstock.core.lifecycle import TRANSITIONS, Change, Move
from penstock.core.task import Extra, Record

NOW = 1_000_000
RECORD = Record(
    id=1, state="t", rank1=0, rank2=0, pri=0, utube=None, attempts=2, lease=2, created=NOW - 10, taken=NOW - 5,
    expires=None, at=None, ttr=None, owner=7, reason="last time", extra=None, payload=b"1",
)  # fmt: skip


def record(*, max_attempts: Any = None, **changes: object) -> Record:
    return msgspec.structs.replace(RECORD, extra=Extra(max_attempts=max_attempts).packed(), **changes)


def every(states: str) -> Iterator[Record]:
    """Records in these states with every ttl, attempt count and reason that a decision could depend on."""
    for state, expires, limit, reason in product(states, (None, NOW - 1, NOW, NOW + 1), (None, 1, 2, 3), (None, "why")):
        yield record(state=state, expires=expires, at=expires, max_attempts=limit, reason=reason)


def decisions() -> Iterator[tuple[str, Record, Change]]:
    """Every event, a task it can happen to, and the decision."""
    for task in every("t"):
        for delay, unstarted in product((0, 5), (False, True)):
            yield "release", task, lifecycle.came_back(task, NOW, "release", delay, unstarted=unstarted)
        yield "ttr", task, lifecycle.became_due(task, NOW)
        yield "touch", task, lifecycle.touched(task, 5)
        yield "ack", task, lifecycle.removed(task, "ack")
        yield "fail", task, lifecycle.removed(task, "fail")
    for task in every("r~!t"):
        yield "delete", task, lifecycle.removed(task, "delete")
        yield "bury", task, lifecycle.buried(task, "odd")
    for task in every("!"):
        yield "kick", task, lifecycle.kicked(task)
    for task in every("r~!"):
        expired = task.expires is not None and task.expires <= NOW
        if expired or task.state == "~":
            yield "ttl" if expired else "delay", task, lifecycle.became_due(task, NOW)


def test_the_decisions_are_exactly_the_table() -> None:
    decided = {(event, task.state, change.state) for event, task, change in decisions()}
    # take is decided by the store; a taken task expires only when it is released, by release or ttr.
    tabled = {
        (event, before, after)
        for event, moves in TRANSITIONS.items()
        for before, afters in moves.items()
        for after in afters
        if event != "take" and (event, before) != ("ttl", "t")
    }
    assert decided == tabled


def test_every_event_allows_the_transition_it_reports() -> None:
    wrong = [
        (event, task, change)
        for event, task, change in decisions()
        for event_name in change.events
        if change.state not in TRANSITIONS[event_name].get(task.state, "")
    ]
    assert wrong == []


def test_a_task_past_its_ttl_never_stays() -> None:
    kept = [
        change
        for event, task, change in decisions()
        if event in ("release", "ttr", "delay", "ttl") and task.expires is not None and task.expires <= NOW
        if change.state != "-"
    ]
    assert kept == []


@pytest.mark.parametrize(
    ("changes", "event", "delay", "state", "events"),
    [
        ({}, "release", 0, "r", ("release",)),
        ({}, "release", 5, "~", ("release",)),
        ({}, "ttr", 0, "r", ("ttr",)),
        ({"expires": NOW + 1}, "release", 0, "r", ("release",)),
        ({"expires": NOW}, "release", 0, "-", ("release", "ttl")),
        ({"expires": NOW}, "release", 5, "-", ("release", "ttl")),
        ({"expires": NOW}, "ttr", 0, "-", ("ttr", "ttl")),
        ({"max_attempts": 3}, "release", 0, "r", ("release",)),
        ({"max_attempts": 2}, "release", 0, "!", ("bury",)),
        ({"max_attempts": 2}, "release", 5, "!", ("bury",)),
        ({"max_attempts": 1}, "release", 0, "!", ("bury",)),
        ({"max_attempts": 2}, "ttr", 0, "!", ("ttr", "bury")),
        ({"max_attempts": 2, "expires": NOW}, "release", 0, "-", ("release", "ttl")),
    ],
)
def test_a_taken_task_becomes_ready_again(
    changes: dict[str, object], event: str, delay: int, state: str, events: tuple[str, ...]
) -> None:
    change = lifecycle.came_back(record(**changes), NOW, event, delay)
    assert (change.state, change.events) == (state, events)


def test_release_with_delay_moves_due_and_ttl() -> None:
    change = lifecycle.came_back(record(expires=NOW + 7), NOW, "release", 5)
    assert (change.at, change.expires) == (NOW + 5, NOW + 12)


def test_a_task_that_is_ready_again_expires_by_its_ttl() -> None:
    change = lifecycle.came_back(record(expires=NOW + 7, at=NOW), NOW, "ttr")
    assert (change.at, change.expires, change.attempts, change.reason) == (NOW + 7, NOW + 7, 2, "last time")


def test_an_unstarted_task_gets_its_attempt_back() -> None:
    change = lifecycle.came_back(record(max_attempts=2), NOW, "release", unstarted=True)
    assert (change.state, change.attempts) == ("r", 1)


@pytest.mark.parametrize(("reason", "kept"), [("last time", "last time"), (None, "handed out 2 times without an ack")])
def test_a_task_out_of_attempts_has_a_reason(reason: str | None, kept: str) -> None:
    assert lifecycle.came_back(record(max_attempts=2, reason=reason), NOW, "release").reason == kept


@pytest.mark.parametrize(
    ("state", "expires", "after", "events"),
    [
        ("~", None, "r", ("delay",)),
        ("~", NOW + 1, "r", ("delay",)),
        ("~", NOW, "-", ("ttl",)),
        ("r", NOW, "-", ("ttl",)),
        ("!", NOW, "-", ("ttl",)),
    ],
)
def test_the_clock_moves_a_waiting_task(state: str, expires: int | None, after: str, events: tuple[str, ...]) -> None:
    change = lifecycle.became_due(record(state=state, expires=expires, at=expires or NOW), NOW)
    assert (change.state, change.events) == (after, events)


def test_kick_forgets_attempts_and_reason() -> None:
    change = lifecycle.kicked(record(state="!", expires=NOW + 9, at=NOW + 9))
    assert change == Change("r", ("kick",), NOW + 9, NOW + 9, 0, None)


@pytest.mark.parametrize(("given", "kept"), [("odd", "odd"), (None, "last time")])
def test_bury_keeps_the_last_reason_unless_it_brings_one(given: str | None, kept: str) -> None:
    assert lifecycle.buried(RECORD, given).reason == kept


@pytest.mark.parametrize(("at", "after"), [(None, None), (NOW + 3, NOW + 8)])
def test_touch_moves_a_deadline_if_there_is_one(at: int | None, after: int | None) -> None:
    assert lifecycle.touched(record(at=at), 5).at == after


@pytest.mark.parametrize("verb", sorted(lifecycle.LEASED_VERBS))
@pytest.mark.parametrize(
    ("changes", "session", "lease", "held"),
    [
        ({}, 7, 2, True),
        ({}, 7, None, True),
        ({"at": NOW + 1}, 7, 2, True),
        ({"at": NOW}, 7, 2, False),
        ({"at": NOW - 1}, 7, 2, False),
        ({}, 8, 2, False),
        ({}, None, 2, False),
        ({}, 7, 1, False),
        ({}, 7, 3, False),
        ({"state": "r", "owner": None}, None, None, False),
        ({"state": "~", "owner": 7}, 7, 2, False),
        ({"state": "!", "owner": 7}, 7, 2, False),
    ],
)
def test_a_leased_verb_needs_the_live_lease_and_its_session(
    verb: str, changes: dict[str, object], session: int | None, lease: int | None, held: bool
) -> None:
    decided = lifecycle.decide(record(**changes), Move(verb, 1, session, lease, extra=1), NOW)
    assert (decided is not None) is held


@pytest.mark.parametrize("verb", ["bury", "delete"])
@pytest.mark.parametrize(
    ("changes", "lease", "allowed"),
    [
        ({"state": "r", "owner": None}, None, True),
        ({"state": "~", "owner": None}, None, True),
        ({"state": "!", "owner": None}, None, True),
        ({}, None, True),
        ({"at": NOW}, None, True),
        ({}, 2, True),
        ({"at": NOW + 1}, 2, True),
        ({"at": NOW}, 2, False),
        ({}, 1, False),
        ({"state": "r", "owner": None}, 2, False),
        ({"state": "!", "owner": None}, 2, False),
    ],
)
def test_a_free_verb_needs_a_live_lease_only_when_it_names_one(
    verb: str, changes: dict[str, object], lease: int | None, allowed: bool
) -> None:
    decided = lifecycle.decide(record(**changes), Move(verb, 1, session=99, lease=lease), NOW)
    assert (decided is not None) is allowed


@pytest.mark.parametrize(
    ("move", "state", "events"),
    [
        (Move("ack", 1, 7, 2), "-", ("ack",)),
        (Move("fail", 1, 7, 2), "-", ("fail",)),
        (Move("release", 1, 7, 2), "r", ("release",)),
        (Move("release", 1, 7, 2, extra=5), "~", ("release",)),
        (Move("touch", 1, 7, 2, extra=5), "t", ("touch",)),
        (Move("bury", 1), "!", ("bury",)),
        (Move("delete", 1), "-", ("delete",)),
    ],
    ids=lambda value: value.verb if isinstance(value, Move) else "",
)
def test_what_a_move_makes_of_a_taken_task(move: Move, state: str, events: tuple[str, ...]) -> None:
    decided = lifecycle.decide(RECORD, move, NOW)
    assert decided is not None
    assert (decided.state, decided.events) == (state, events)


@pytest.mark.parametrize(("given", "kept"), [("boom", "boom"), (None, "last time")])
def test_a_release_may_bring_a_reason(given: str | None, kept: str) -> None:
    decided = lifecycle.decide(RECORD, Move("release", 1, 7, 2, reason=given), NOW)
    assert decided is not None
    assert decided.reason == kept


def test_the_leased_verbs_are_those_that_only_a_taken_task_has() -> None:
    only_taken = {event for event, moves in TRANSITIONS.items() if set(moves) == {"t"}}
    assert only_taken - {"ttr"} == lifecycle.LEASED_VERBS


def test_the_events_are_the_words_of_the_spec() -> None:
    assert set(lifecycle.EVENTS) == {
        "put", "take", "ack", "fail", "release", "bury", "kick", "delete", "touch", "ttl", "ttr", "delay",
    }  # fmt: skip
