"""The checker on hand-written histories: each rule finds its violation, and nothing in a good history."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.fault import rules
from tests.fault.checker import Checker, Final
from tests.fault.history import Call
from tests.fault.invariants import Violation

TTR = 10.0
KEY = ("t", 1)


def call(
    op: str, begun: float, ended: float | None = -1, *, by: str = "w1", error: str | None = None, **facts: Any
) -> Call:
    """A call on task 1 that took half a second, unless specified otherwise."""
    about: dict[str, Any] = {"tube": "t"} if op in ("kill", "close", "kick", "release_all") else {"tube": "t", "id": 1}
    return Call(by, op, begun, {**about, **facts}, begun + 0.5 if ended == -1 else ended, error)


def put(begun: float, id: int = 1, **facts: Any) -> Call:
    return call("put", begun, by="p", id=id, **{"data": f"d{id}", "utube": None, **facts})


def take(begun: float, lease: int = 1, id: int = 1, **facts: Any) -> Call:
    return call("take", begun, lease=lease, **{"id": id, "data": f"d{id}", "utube": None, **facts})


def judged(*calls: Call, stored: dict[tuple[str, int], int] | None = None, **counted: int) -> set[str]:
    final = Final(stored or {}, {"t": {"put": 1, "take": 1, "ack": 1, **counted}})
    found = Checker(sorted(calls, key=lambda made: made.begun), final, ttr=TTR, limit=1).violations()
    return {violation.name for violation in found}


GOOD = (put(0), take(1), call("ack", 2, lease=1))


def test_a_good_history_has_no_violation() -> None:
    assert judged(*GOOD) == set()


def test_an_interrupted_call_may_have_been_applied_or_not() -> None:
    cut = call("ack", 2, None, lease=1)
    assert judged(put(0), take(1), cut) == set()
    assert judged(put(0), take(1), cut, stored={KEY: 1}, ack=0) == set()


@pytest.mark.parametrize(
    ("calls", "stored", "counted", "name"),
    [
        ((put(0), take(1)), {}, {"ack": 0}, "I1"),
        ((put(0), take(1), call("ack", 2, lease=1, error="NotTaken")), {}, {"ack": 0}, "I1"),
        (GOOD, {KEY: 1}, {}, "I1"),
        ((put(0), take(1, data="other"), GOOD[2]), {}, {}, "I2"),
        ((replace(put(0), error="TubeFull"), take(1), GOOD[2]), {}, {"put": 0}, "I2"),
        ((put(0), take(1), take(20), call("ack", 21, lease=1)), {}, {"take": 2}, "I3"),
        ((put(0), take(1, 2), take(20, 1)), {KEY: 2}, {"take": 2, "ack": 0}, "I3"),
        ((put(0), take(1), take(12, 2), call("ack", 13, lease=1)), {}, {"take": 2}, "I3"),
        ((put(0), take(1), take(12, 2), call("release", 13, lease=1)), {KEY: 2}, {"take": 2, "ack": 0}, "I3"),
        ((put(0), take(1), call("ack", 30, lease=1)), {}, {}, "I3"),
        ((*GOOD, call("ack", 3, lease=1)), {}, {"ack": 2}, "I4"),
        ((*GOOD, take(20, 2)), {}, {"take": 2}, "I4"),
        ((put(0), take(1), take(3, 2)), {KEY: 2}, {"take": 2, "ack": 0}, "I5"),
        ((put(0), take(1, 2)), {KEY: 2}, {"ack": 0}, "I5"),
        (GOOD, {}, {"ack": 2}, "I11"),
        (GOOD, {}, {"put": 0}, "I11"),
    ],
)  # fmt: skip
def test_each_rule_finds_its_violation(
    calls: tuple[Call, ...], stored: dict[tuple[str, int], int], counted: dict[str, int], name: str
) -> None:
    assert name in judged(*calls, stored=stored, **counted)


@pytest.mark.parametrize(
    "cause",
    [
        call("release", 2, lease=1),
        call("release", 2, None, lease=1),
        call("bury", 2, by="admin"),
        call("release_all", 2, by="admin"),
        call("kill", 2, by="faults", process="w1"),
        call("close", 2, process="w1"),
    ],
    ids=lambda made: f"{made.op} {made.ended}",
)
def test_a_second_hand_out_with_a_cause_is_allowed(cause: Call) -> None:
    calls = (put(0), take(1), cause, replace(take(3, 2), process="w2"))
    assert judged(*calls, stored={KEY: 2}, take=2, ack=0) == set()


def test_a_touch_postpones_the_end_of_a_lease() -> None:
    touch = call("touch", 2, lease=1, seconds=5)
    assert judged(put(0), take(1), touch, call("ack", 14, lease=1)) == set()
    late = (put(0), take(1), touch, take(12, 2))
    assert judged(*late, stored={KEY: 2}, take=2, ack=0) == {"I5"}


def test_a_micro_queue_with_two_taken_at_once_is_seen() -> None:
    puts = (put(0, utube="u"), put(1, 2, utube="u"))
    takes = (take(2, utube="u"), take(3, id=2, utube="u"))
    stored = {("t", 1): 1, ("t", 2): 1}
    assert judged(*puts, *takes, stored=stored, put=2, take=2, ack=0) == {"I6"}
    between = call("ack", 2.6, 2.9, lease=1)
    assert judged(*puts, *takes, between, stored={("t", 2): 1}, put=2, take=2) == set()


def test_a_micro_queue_out_of_order_is_seen() -> None:
    puts = (put(0, utube="u"), put(1, 2, utube="u"))
    takes = (take(2, id=2, utube="u"), call("ack", 3, lease=1, id=2), take(4, utube="u"))
    assert judged(*puts, *takes, stored={KEY: 1}, put=2, take=2) == {"I6"}
    aside = call("bury", 1.6, 1.9, by="admin")
    assert judged(*puts, aside, *takes, stored={KEY: 1}, put=2, take=2) == set()


# addresses, groups, tubes without leases, and lost writes

REMOVED = call("ack", 2, lease=1)
GROUP: dict[str, Any] = {"tube": "t", "group": "g"}
END, MEMBER = call("on_end", 0, data="end-g", **GROUP), call("put", 0, by="p", data="d1", **GROUP)
STARTED = call("start_group", 1, **GROUP)


def of_group(op: str, begun: float) -> Call:
    return call(op, begun, **GROUP)


def message(op: str, begun: float, **facts: Any) -> Call:
    return Call("w1", op, begun, {"tube": "m", **facts}, begun + 0.5)


POPPED = message("pop", 1, ids=["1-1"], data=["d"])
PUSHED, ACKED = message("push", 0, ids=["1-1"], pushed=["d"]), message("remove", 2, asked=["1-1"], ids=["1-1"])
LOST = Call("faults", "lose_tail", 5, {"since": 0.5}, 6)


@pytest.mark.parametrize(
    ("found", "names"),
    [
        (rules.addresses([put(0, address="a"), REMOVED, put(3, 2, address="a")], rules.Left()), []),
        (rules.addresses([put(0, address="a"), put(1, 2, address="a")], rules.Left()), ["I8"]),
        (rules.addresses([put(0, address="a")], rules.Left({"a": ("done", "d9")})), ["I4"]),
        (rules.groups([MEMBER, END, STARTED, take(2), call("ack", 3, lease=1), take(4, id=2, data="end-g")]), []),
        (rules.groups([MEMBER, END, STARTED, take(2), take(3, id=2, data="end-g")]), ["I9"]),
        (rules.groups([END, STARTED]), ["I9"]),
        (rules.groups([END, STARTED, take(4, id=2, data="end-g"), take(5, id=3, data="end-g")]), ["I9"]),
        (rules.groups([MEMBER, of_group("cancel_group", 1), take(2, id=2, data="cancel-g"), take(4)]), ["I9"]),
        (rules.rounds([message("turn", 0, id="e"), message("turn", 9, id="e")], rules.Left(), 5, []), []),
        (rules.rounds([message("turn", 0, id="e"), message("turn", 1, id="e")], rules.Left(), 5, []), ["I10"]),
        (rules.rounds([message("element", 0, id="e")], rules.Left(), 5, []), ["I1"]),
        (rules.messages([PUSHED, POPPED, ACKED], rules.Left()), []),
        (rules.messages([PUSHED, POPPED], rules.Left()), ["I1"]),
        (rules.messages([PUSHED, POPPED, POPPED, ACKED], rules.Left()), ["I5"]),
        (rules.messages([PUSHED, POPPED, ACKED, ACKED], rules.Left()), ["I4"]),
        (rules.messages([PUSHED, ACKED, message("recover", 4, ids=["1-1"], data=["d"])], rules.Left()), ["I4"]),
        (rules.messages([PUSHED, message("pop", 1, ids=["1-1"], data=["x"]), ACKED], rules.Left()), ["I2"]),
        (rules.lost_tails([take(1, hand=1), LOST, take(7, hand=2), call("ack", 8, lease=1, hand=1)]), ["I3"]),
        (rules.lost_tails([take(1, hand=1), LOST, take(7, hand=2), call("ack", 8, lease=1, hand=2)]), []),
    ],
)
def test_each_further_rule_finds_its_violation(found: Iterator[Violation], names: list[str]) -> None:
    assert [violation.name for violation in found] == names
