"""What a sharded tube must show, whichever of its tasks come first: a model that is told what was handed out."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Line:
    """One task. `moment`: when its delay or its lease is over."""

    number: int
    pri: int
    utube: str | None
    address: str | None
    status: str = "r"
    moment: float | None = None
    lease: int = 0


@dataclass
class Ledger:
    """The tasks that are in the tube, by their data. `limit`: of a micro-queue, where the kind has them."""

    ttr: float
    limit: int | None
    lines: dict[int, Line] = field(default_factory=dict)

    def add(self, line: Line, delay: float, now: float) -> None:
        """A put."""
        self.lines[line.number] = line
        self.put_back(line, delay, now)

    def put_back(self, line: Line, delay: float, now: float) -> None:
        """At its old place, now or later."""
        line.status, line.moment = ("~", now + delay) if delay else ("r", None)

    def pass_time(self, now: float) -> None:
        """What is due is ready."""
        for line in self.lines.values():
            if line.moment is not None and line.moment <= now:
                line.status, line.moment = "r", None

    def holds(self, address: str) -> bool:
        """Whether a task of the tube has the address."""
        return any(line.address == address for line in self.lines.values())

    def takeable(self) -> set[int]:
        """What a take may give: everything ready, or of each micro-queue as many of its first as its limit leaves."""
        ready = sorted((line for line in self.lines.values() if line.status == "r"), key=lambda line: line.pri)
        if self.limit is None:
            return {line.number for line in ready}
        taken = Counter(line.utube for line in self.lines.values() if line.status == "t")
        heads: set[int] = set()
        for line in ready:  # in put order within a priority: sorting is stable
            if taken[line.utube] < self.limit:
                taken[line.utube] += 1
                heads.add(line.number)
        return heads

    def hand_out(self, number: int, lease: int, now: float) -> None:
        """It was taken."""
        line = self.lines[number]
        line.status, line.moment, line.lease = "t", now + self.ttr, lease

    def held(self, number: int, lease: int) -> Line | None:
        """The task, while that hand-out of it lives."""
        line = self.lines.get(number)
        return line if line is not None and (line.status, line.lease) == ("t", lease) else None

    def shown(self) -> dict[int, str]:
        """The status of each."""
        return {number: line.status for number, line in self.lines.items()}
