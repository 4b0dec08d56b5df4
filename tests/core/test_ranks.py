"""The place of a task in its tube: the rank of each order key, from put time and id."""

from __future__ import annotations

import pytest

from penstock.core.entry import NEVER, make_entry
from penstock.core.kind import Kind, find_kind
from penstock.core.micro_queue import MicroQueueState, next_turn
from penstock.core.options import PutOptions, Tube, make_tube
from penstock.core.task import NO_UTUBE, Rank

ID, NOW = 41, 1_700_000_000_000
ALL = frozenset({"pri", "ttl", "ttr", "delay"})


def tube(kind: Kind, **options: object) -> Tube:
    return make_tube(1, "t", kind, dict(options))


def ranks(tube: Tube, options: PutOptions) -> tuple[float, float]:
    entry = make_entry(tube, "x", options)
    return entry.rank1.value(ID, NOW), entry.rank2.value(ID, NOW)


@pytest.mark.parametrize(
    ("order", "options", "expected"),
    [
        (("id",), {}, (0, 0)),
        (("-id",), {}, (-ID, 0)),
        (("pri",), {"pri": 3}, (3, 0)),
        (("pri", "-id"), {"pri": 3}, (3, -ID)),
        (("expires",), {"ttl": 2}, (NOW + 2_000, 0)),
        (("expires",), {"ttl": 2, "delay": 1}, (NOW + 3_000, 0)),
        (("expires",), {}, (NEVER, 0)),
        (("due",), {"delay": 1.5}, (NOW + 1_500, 0)),
        (("due",), {}, (NOW, 0)),
        (("created",), {}, (NOW, 0)),
        (("created", "pri"), {"pri": 2}, (NOW, 2)),
        (("rank",), {"rank": -2.5}, (-2.5, 0)),
        (("rank",), {}, (0, 0)),
        (("pri", "rank"), {"pri": 1, "rank": 7}, (1, 7)),
        (("id", "pri"), {"pri": 3}, (0, 0)),
    ],
)
def test_the_rank_of_each_order(order: tuple[str, ...], options: PutOptions, expected: tuple[float, float]) -> None:
    assert ranks(tube(Kind("own", ALL, order)), options) == expected


@pytest.mark.parametrize(("pri", "aging", "rank"), [(0, 5, NOW), (1, 5, NOW + 5_000), (3, 0.5, NOW + 1_500)])
def test_aging_turns_priority_into_time(pri: int, aging: float, rank: float) -> None:
    assert ranks(tube(find_kind("fifottl"), aging=aging), {"pri": pri}) == (rank, 0)


def test_an_aged_rank_stays_exact_in_a_double() -> None:
    highest, _ = ranks(tube(find_kind("fifottl"), aging=3_000_000_000), {"pri": 2**31 - 1})
    assert highest < 2**53


def test_the_tubes_priority_ranks_a_put_without_one() -> None:
    assert ranks(tube(find_kind("fifottl"), pri=6), {}) == (6, 0)


def test_the_rank_of_the_tubes_ttl() -> None:
    assert ranks(tube(Kind("own", ALL, ("expires",)), ttl=4), {}) == (NOW + 4_000, 0)


def test_a_rank_adds_up_its_parts() -> None:
    assert Rank(5, clock=True, newest=True).value(2, 100) == 103


@pytest.mark.parametrize(
    ("kind", "utube", "stored"),
    [("fifo", None, None), ("utube", None, NO_UTUBE), ("utube", "u", "u"), ("utube", 1, "1")],
)
def test_the_micro_queue_of_an_entry_is_text_or_none(kind: str, utube: str | int | None, stored: str | None) -> None:
    assert make_entry(tube(find_kind(kind)), "x", {"utube": utube}).utube == stored


@pytest.mark.parametrize(
    ("options", "put", "ttr"),
    [
        ({}, {}, None),
        ({"ttl": 9}, {}, 9_000),
        ({"ttl": 9, "ttr": 7}, {}, 7_000),
        ({"ttr": 7}, {"ttl": 8}, 7_000),
        ({}, {"ttl": 8}, 8_000),
        ({"ttl": 9, "ttr": 7}, {"ttr": 6}, 6_000),
    ],
)
def test_the_time_to_run_of_a_put(options: dict[str, object], put: PutOptions, ttr: int | None) -> None:
    assert make_entry(tube(find_kind("fifottl"), **options), "x", put).ttr == ttr


@pytest.mark.parametrize(("turn", "now", "expected"), [(0, 50, 50), (50, 50, 51), (80, 50, 81), (49, 50, 50)])
def test_a_turn_comes_after_everyone_served_before(turn: int, now: int, expected: int) -> None:
    assert next_turn(turn, now) == expected


@pytest.mark.parametrize(
    ("state", "room", "empty"),
    [
        (MicroQueueState(), 2, True),
        (MicroQueueState(taken=1), 1, False),
        (MicroQueueState(heads=1), 1, False),
        (MicroQueueState(taken=1, heads=1, waiting=4), 0, False),
        (MicroQueueState(turn=99), 2, True),
    ],
)
def test_the_room_of_a_micro_queue(state: MicroQueueState, room: int, empty: bool) -> None:
    assert (state.room(2), state.empty) == (room, empty)
