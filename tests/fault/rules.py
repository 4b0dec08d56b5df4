"""Checks relations between tasks: addresses, groups, tubes without leases, and lost writes.

As in `checker`, only what is certain counts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from tests.fault.history import Call
from tests.fault.invariants import Violation

# The store uses the wall clock, the histories the monotonic clock.
SLACK = 0.05
REMOVALS = ("ack", "fail", "delete")
SETTLES = ("ack", "release", "touch")


@dataclass(frozen=True)
class Left:
    """What is stored at the end besides leased tasks: outcomes by address, round elements, reliable messages."""

    outcomes: dict[str, tuple[str, object]] = field(default_factory=dict)
    elements: frozenset[str] = frozenset()
    messages: frozenset[str] = frozenset()


def addresses(calls: Sequence[Call], left: Left) -> Iterator[Violation]:
    """I8: a second put at an address only after the first task was removed; the outcome is that of the right task."""
    puts: dict[str, list[Call]] = defaultdict(list)
    removals: dict[tuple[str, int], list[Call]] = defaultdict(list)
    for call in calls:
        if call.op == "put" and call.facts.get("address") and call.possible:
            puts[call.facts["address"]].append(call)
        elif call.op in REMOVALS and call.possible:
            removals[call.task].append(call)
    for address, found in puts.items():
        for older, newer in pairwise(call for call in found if call.ok):
            free = any(removal.begun < (newer.ended or 0) for removal in removals[older.task])
            if not free and (older.ended or 0) < newer.begun:
                yield Violation("I8", f"{newer.task} was put at {address}, where {older.task} still was")
        status, result = left.outcomes.get(address, ("unknown", None))
        last = found[-1]
        possible = {last.facts["data"]} if last.ok else {call.facts["data"] for call in found}
        if status == "done" and result not in possible:
            yield Violation("I4", f"the outcome at {address} is {result}, which is not of the last put: {possible}")


def groups(calls: Sequence[Call]) -> Iterator[Violation]:
    """I9: end work once, after all work; after a cancel only the cancel work."""
    named: dict[str, list[Call]] = defaultdict(list)
    taken: dict[str, list[Call]] = defaultdict(list)
    removals: dict[tuple[str, int], list[Call]] = defaultdict(list)
    for call in calls:
        if call.facts.get("group"):
            named[call.facts["group"]].append(call)
        elif call.op == "take" and call.ok and "id" in call.facts:
            taken[call.facts["data"]].append(call)
        elif call.op in REMOVALS and call.possible:
            removals[call.task].append(call)
    for group, about in named.items():
        ends, cancels = taken[f"end-{group}"], taken[f"cancel-{group}"]
        if len({call.task for call in ends}) > 1 or len({call.task for call in cancels}) > 1 or (ends and cancels):
            yield Violation("I9", f"group {group} had its end work {len(ends)} times, cancel work {len(cancels)} times")
        members = [call for call in about if call.op == "put" and call.ok]
        if ends and not cancels:
            first = min(call.ended or 0 for call in ends)
            for member in members:
                if not any(removal.begun < first for removal in removals[member.task]):
                    yield Violation("I9", f"the end work of group {group} came before {member.task} had left")
        cancelled = [call.ended or 0 for call in about if call.op == "cancel_group" and call.ok]
        for member in members if cancels and cancelled else ():
            if any(call.begun > min(cancelled) for call in taken[member.facts["data"]]):
                yield Violation("I9", f"{member.task} was handed out after group {group} was cancelled")
        started = any(call.op == "start_group" and call.ok for call in about)
        work = any(call.op == "on_end" and call.ok for call in about)
        if started and work and not ends and not any(call.op == "cancel_group" for call in about):
            yield Violation("I9", f"the end work of group {group} never came")


def rounds(calls: Sequence[Call], left: Left, period: float, losses: Sequence[Call]) -> Iterator[Violation]:
    """I10 and I1: an element is handed out at most once per period, and none is lost."""
    turns: dict[str, list[Call]] = defaultdict(list)
    for call in calls:
        if call.op == "turn" and call.ok and "id" in call.facts:
            turns[call.facts["id"]].append(call)
        if call.op == "element" and call.ok and call.facts["id"] not in left.elements:
            yield Violation("I1", f"round element {call.facts['id']} is gone, and nobody removed it")
    for element, found in turns.items():
        for older, newer in pairwise(found):
            forgotten = any(loss.begun < (newer.ended or 0) and (loss.ended or 0) > older.begun for loss in losses)
            if (newer.ended or 0) - older.begun < period - SLACK and not forgotten:
                yield Violation("I10", f"round element {element} was handed out twice within {period} s")


def messages(calls: Sequence[Call], left: Left) -> Iterator[Violation]:
    """I1, I2, I4, I5 of a reliable tube: each message is popped once and kept until it is acked."""
    of = {
        op: [call for call in calls if call.op == op and call.possible] for op in ("push", "pop", "recover", "remove")
    }
    asked = {id for call in of["remove"] for id in call.facts["asked"]}
    for push in of["push"]:
        for id in push.facts.get("ids", ()):
            if id not in left.messages and id not in asked:
                yield Violation("I1", f"message {id} is gone, and nobody acked it")
    pushed = {data for push in of["push"] for data in push.facts["pushed"]}
    removed: dict[str, float] = {}
    for call in of["remove"]:
        for id in call.facts.get("ids", ()):
            if id in removed:
                yield Violation("I4", f"message {id} was acked twice")
            removed[id] = call.ended or 0
    popped: set[str] = set()
    for call in (*of["pop"], *of["recover"]):
        for id, data in zip(call.facts.get("ids", ()), call.facts.get("data", ()), strict=True):
            if data not in pushed:
                yield Violation("I2", f"message {id} has data that nobody pushed: {data}")
            if call.begun > removed.get(id, call.begun):
                yield Violation("I4", f"message {id} was delivered after its ack")
            if call.op == "pop" and id in popped:
                yield Violation("I5", f"message {id} was popped twice")
            if call.op == "pop":
                popped.add(id)


def lost_tails(calls: Sequence[Call]) -> Iterator[Violation]:
    """I3, I4: after the newest writes were lost, attempts that the store forgot settle nothing."""
    taken = {(call.process, call.facts["hand"]): call for call in calls if call.op == "take" and call.ok}
    for loss in (call for call in calls if call.op == "lose_tail"):
        for call in calls:
            if call.op not in SETTLES or not call.ok or call.begun < (loss.ended or loss.begun):
                continue
            hand = taken.get((call.process, call.facts["hand"]))
            if hand and hand.begun > loss.facts["since"] and (hand.ended or 0) < loss.begun:
                yield Violation("I3", f"{call.op} of {call.task} by a hand-out from before {loss}")
