"""The invariants by name: the table of FAULTS.md, for the model, the campaign and the load tests."""

from __future__ import annotations

from dataclasses import dataclass

import penstock

HOLDS = {
    "I1": "no loss: a put that returned is acked, failed, deleted, expired by rule, or still stored",
    "I2": "no invention: every delivered (id, data) was put, data equal; a put that raised is never delivered",
    "I3": "one live lease a task; its numbers strictly grow; a call with an old lease changes nothing",
    "I4": "at most one successful ack a task",
    "I5": "every delivery after the first has a cause: release, kick, ttr, session end, crash or unknown outcome",
    "I6": "micro-queue: never more taken than its limit; first hand-outs in put order within a priority",
    "I7": "never handed out before its delay is over, after its ttl, while buried, or while the tube is paused",
    "I8": "one live task an address; capacity never exceeded",
    "I9": "group: end work exactly once after all its work; after cancel: cancel work once, end work never",
    "I10": "round: hand-outs of one element at least a period apart",
    "I11": "the counters of stats equal a recount at rest",
    "I12": "same calls, same clock: every store answers what the model answers",
    "L1": "a ready task and an idle taker meet within the scan interval; so does a lapsed lease",
    "L2": "after the fault is healed the system drains, and nothing is stuck",
}


@dataclass(frozen=True)
class Violation:
    """One violated invariant, and where."""

    name: str
    detail: str

    def __str__(self) -> str:
        return f"{self.name} ({HOLDS[self.name]}): {self.detail}"


def require(name: str, holds: bool, detail: object = "") -> None:
    """Fail the test with the text of the invariant."""
    assert holds, Violation(name, str(detail))


def recount(tube: penstock.Tube) -> dict[str, int]:
    """Count the tasks of a listing: the other side of I11."""
    counted = dict.fromkeys(("ready", "taken", "delayed", "buried"), 0)
    last: penstock.Task | None = None
    while page := tube.tasks(limit=10_000, after=last):
        for task in page:
            counted[task.status.name.lower()] += 1
        last = page[-1]
    return {**counted, "total": sum(counted.values())}


def counters_equal_a_recount(broker: penstock.Broker, tube: penstock.Tube) -> list[Violation]:
    """I11, with no call in flight: stats equal the listing, puts equal stored and ended tasks, check finds nothing."""
    stats = tube.stats()
    counted = recount(tube)
    found = [
        Violation("I11", f"tube {tube.name} counts {getattr(stats.tasks, name)} {name}, there are {number}")
        for name, number in counted.items()
        if getattr(stats.tasks, name) != number
    ]
    if stats.calls.put != counted["total"] + stats.tasks.done:
        found.append(
            Violation("I11", f"{stats.calls.put} put, but {stats.tasks.done} done and {counted['total']} here")
        )
    return found + [Violation("I11", str(finding)) for finding in broker.check()]
