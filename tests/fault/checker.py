"""Checks the histories of a campaign: which invariants were violated.

Only what is certain counts: a call may have taken effect anywhere between its two lines, and a call without an outcome
may have had no effect.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from tests.fault.history import Call
from tests.fault.invariants import Violation
from tests.fault.rules import SLACK

Key = tuple[str, int]
LEASED = ("ack", "release", "touch", "fail")
# Faults of a pool's Redis: no lease survives them.
LOSSES = ("restart", "flush", "lose_tail")


@dataclass(frozen=True)
class Final:
    """What is stored at the end: the attempts of each task, and the calls that the tubes counted.

    `answers_lost`: between a process and its server. A take whose answer is lost is repeated inside one call, and the
    tasks that it had leased are returned: an attempt that no history shows. `leases_lost`: with what a pool's Redis
    forgets when it is restarted or flushed, so attempts since the last change are not counted.
    """

    attempts: dict[Key, int]
    calls: dict[str, dict[str, int]]
    answers_lost: bool = False
    leases_lost: bool = False


class Checker:
    """The calls, by subject. `ttr` applies to every task, `limit` to every micro-queue."""

    def __init__(self, calls: list[Call], final: Final, *, ttr: float, limit: int) -> None:
        self._calls = calls
        self._final = final
        self._ttr = ttr
        self._limit = limit
        self._deliveries: dict[Key, list[Call]] = defaultdict(list)
        self._about: dict[Key, list[Call]] = defaultdict(list)
        for call in calls:
            if call.op == "take" and call.ok and "id" in call.facts:
                self._deliveries[call.task].append(call)
            elif call.op != "put" and call.op != "take" and "id" in call.facts:
                self._about[call.task].append(call)
        for found in self._deliveries.values():
            found.sort(key=lambda call: (call.facts["lease"], call.begun))
        self._sweeps = [call for call in calls if call.op in ("release_all", "kick") and call.possible]
        self._losses = [call for call in calls if final.leases_lost and call.op in LOSSES]
        self._ends = {call.facts["process"]: call for call in calls if call.op in ("kill", "close")}

    def violations(self) -> list[Violation]:
        """All violations."""
        rules = (
            self._nothing_lost, self._nothing_invented, self._leases_grow, self._old_leases_are_dead, self._acked_once,
            self._every_hand_out_has_a_cause, self._micro_queues_hold, self._micro_queues_in_order, self._counters,
        )  # fmt: skip
        return [violation for rule in rules for violation in rule()]

    def _of(self, op: str) -> list[Call]:
        return [call for call in self._calls if call.op == op]

    def _nothing_lost(self) -> Iterator[Violation]:
        cancelled = {call.facts["group"] for call in self._of("cancel_group") if call.possible}
        for put in self._of("put"):
            if put.ok and put.task not in self._final.attempts and put.facts.get("group") not in cancelled:
                removals = [call for call in self._about[put.task] if call.op in ("ack", "fail", "delete")]
                if not any(call.possible for call in removals):
                    yield Violation("I1", f"{put.task} was put, is gone, and nobody removed it")
        for key, calls in self._about.items():
            if key in self._final.attempts and any(call.ok and call.op in ("ack", "delete") for call in calls):
                yield Violation("I1", f"{key} was removed and is still stored")

    def _nothing_invented(self) -> Iterator[Violation]:
        puts = {put.facts["data"]: put for op in ("put", "on_end", "on_cancel") for put in self._of(op)}
        for key, deliveries in self._deliveries.items():
            for delivery in deliveries:
                put = puts.get(delivery.facts["data"])
                if put is None or put.facts["tube"] != key[0] or not put.possible:
                    yield Violation("I2", f"{key} was handed out with data that nobody put: {delivery.facts}")
                elif put.op == "put" and put.ok and put.task != key:
                    yield Violation("I2", f"{key} was handed out with the data of {put.task}")

    def _leases_grow(self) -> Iterator[Violation]:
        for key, deliveries in self._deliveries.items():
            for older, newer in pairwise(deliveries):
                if older.facts["lease"] == newer.facts["lease"]:
                    yield Violation("I3", f"{key} was handed out twice with lease {older.facts['lease']}")
                elif newer.ended is not None and newer.ended < older.begun:
                    yield Violation("I3", f"{key}: lease {newer.facts['lease']} came before {older.facts['lease']}")

    def _old_leases_are_dead(self) -> Iterator[Violation]:
        for key, calls in self._about.items():
            for call in calls:
                lease = call.facts.get("lease")
                if not call.ok or call.op not in LEASED or lease is None:
                    continue
                for delivery in self._deliveries[key]:
                    newer = delivery.facts["lease"] > lease
                    if newer and delivery.ended is not None and delivery.ended < call.begun:
                        yield Violation("I3", f"{key}: {call.op} with lease {lease}, after {delivery.facts['lease']}")
                if call.begun > self._latest_end(key, lease) + SLACK:
                    yield Violation("I3", f"{key}: {call.op} with lease {lease}, long after its ttr")

    def _latest_end(self, key: Key, lease: int) -> float:
        """The latest time at which a lease ends."""
        taken = [call for call in self._deliveries[key] if call.facts["lease"] == lease]
        touched = float(sum(call.facts["seconds"] for call in self._touches(key, lease) if call.possible))
        return max((call.ended or 0) for call in taken) + self._ttr + touched

    def _touches(self, key: Key, lease: int) -> list[Call]:
        return [call for call in self._about[key] if call.op == "touch" and call.facts["lease"] == lease]

    def _acked_once(self) -> Iterator[Violation]:
        for key, calls in self._about.items():
            acks = [call for call in calls if call.op == "ack" and call.ok]
            if len(acks) > 1:
                yield Violation("I4", f"{key} was acked {len(acks)} times")
            for ack in acks:
                if any(later.begun > (ack.ended or 0) for later in self._deliveries[key]):
                    yield Violation("I4", f"{key} was handed out after its ack")

    def _every_hand_out_has_a_cause(self) -> Iterator[Violation]:
        missing = 0
        for key, deliveries in self._deliveries.items():
            known = {call.facts["lease"]: call for call in deliveries}
            missing += max(known) - len(known)
            for lease, delivery in known.items():
                before = known.get(lease - 1)
                if before is not None and not self._cause(key, before, delivery):
                    yield Violation("I5", f"{key}: lease {lease} began while {lease - 1} lived: {before} {delivery}")
        unknown = sum(call.op == "take" and call.ended is None for call in self._calls)
        if missing > unknown and not self._final.answers_lost:
            yield Violation("I5", f"{missing} hand-outs reached nobody, but only {unknown} takes were cut off")

    def _cause(self, key: Key, before: Call, after: Call) -> bool:
        ended = after.ended or 0
        touched = sum(call.facts["seconds"] for call in self._touches(key, before.facts["lease"]) if call.ok)
        if ended - before.begun >= self._ttr + touched - SLACK:
            return True
        end = self._ends.get(before.process)
        given_back = [call for call in self._about[key] if call.op in ("release", "bury") and call.possible]
        causes = [*given_back, *self._sweeps, *([end] if end else [])]
        return any(call.begun < ended and (call.ended is None or call.ended > before.begun) for call in causes)

    def _micro_queues_hold(self) -> Iterator[Violation]:
        held: dict[tuple[str, str], list[tuple[float, int, Key]]] = defaultdict(list)
        for key, deliveries in self._deliveries.items():
            for delivery in deliveries:
                since, until = delivery.ended or 0, self._certainly_held_until(key, delivery)
                if delivery.facts["utube"] is not None and since < until:
                    moments = held[key[0], delivery.facts["utube"]]
                    moments += ((since, 1, key), (until, -1, key))
        for utube, moments in held.items():
            taken: set[Key] = set()
            for _, change, key in sorted(moments):
                (taken.add if change > 0 else taken.discard)(key)
                if len(taken) > self._limit:
                    yield Violation("I6", f"micro-queue {utube} had {sorted(taken)} taken at once")

    def _certainly_held_until(self, key: Key, delivery: Call) -> float:
        end = self._ends.get(delivery.process)
        moments = [delivery.begun + self._ttr - SLACK, *([end.begun] if end else [])]
        touching = [call for call in (*self._about[key], *self._sweeps) if call.possible]
        moments += [call.begun for call in touching if call.op != "touch" and (call.ended or 0) > delivery.begun]
        moments += [call.begun for call in touching if call.ended is None]
        moments += [loss.begun for loss in self._losses if (loss.ended or loss.begun) > delivery.begun]
        return min(moments)

    def _micro_queues_in_order(self) -> Iterator[Violation]:
        micro_queues: dict[tuple[str, str], list[Call]] = defaultdict(list)
        for put in self._of("put"):
            if put.ok and put.facts["utube"] is not None:
                micro_queues[put.facts["tube"], put.facts["utube"]].append(put)
        for utube, puts in micro_queues.items():
            first = {put.task: self._first(put.task) for put in puts}
            for early, late in ((early, late) for n, early in enumerate(puts) for late in puts[n + 1 :]):
                came = first[late.task]
                if came is None or (early.ended or 0) >= late.begun or self._admin_before(early.task, came):
                    continue
                if self._came_after(early.task, first[early.task], came):
                    yield Violation("I6", f"{late.task} of micro-queue {utube} overtook {early.task}")

    def _first(self, key: Key) -> Call | None:
        found = self._deliveries.get(key)
        return found[0] if found and found[0].facts["lease"] == 1 else None

    def _came_after(self, key: Key, first: Call | None, other: Call) -> bool:
        if first is not None:
            return first.begun > (other.ended or 0)
        return self._final.attempts.get(key) == 0 and key not in self._deliveries  # it is still waiting

    def _admin_before(self, key: Key, delivery: Call) -> bool:
        return any(call.begun < (delivery.ended or 0) for call in self._about[key] if "lease" not in call.facts)

    def _counters(self) -> Iterator[Violation]:
        for tube, counted in self._final.calls.items():
            for op in ("put", "take", "ack"):
                calls = [call for call in self._of(op) if call.facts["tube"] == tube]
                sure = sum(call.ok and (op != "take" or "id" in call.facts) for call in calls)
                most = sure + sum(call.possible and not call.ok for call in calls)
                if op == "put":
                    most += len(self._of("on_end")) + len(self._of("on_cancel"))
                if op == "take" and self._final.answers_lost:
                    most = counted[op]
                if op == "take" and self._final.leases_lost:
                    sure = 0
                if not sure <= counted[op] <= most:
                    yield Violation("I11", f"tube {tube} counts {counted[op]} {op}, the histories {sure} to {most}")


def summary(violations: Iterable[Violation]) -> str:
    """The number of violations of each invariant, and the first of each."""
    listed = list(violations)
    first = {violation.name: violation for violation in reversed(listed)}
    counted = Counter(violation.name for violation in listed)
    return "\n".join(f"{counted[name]} × {violation}" for name, violation in sorted(first.items()))
