"""The state machine of sharded tubes: which task comes first is the store's affair, everything else is not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import penstock
from penstock.testing import Clock
from tests.fault.invariants import require
from tests.model.draws import addresses
from tests.model.ledger import Ledger, Line

TTR = 2.0
# All of them within a session's life: its end is the other machine's affair.
LATEST = 12.0

_pris = st.sampled_from((0, 0, 1))
_delays = st.sampled_from((0, 0, 0, 1))
_utubes = st.sampled_from(("u", "v", "w", "x", None))
_item = st.fixed_dictionaries({"pri": _pris, "delay": _delays, "utube": _utubes, "address": st.none() | addresses})


class ShardedMachine(RuleBasedStateMachine):
    """A subclass names the store under test."""

    make_url: ClassVar[Callable[[Path], str]]

    @initialize(laned=st.booleans(), shards=st.integers(2, 5), limit=st.integers(1, 2))
    def create(self, laned: bool, shards: int, limit: int) -> None:
        self.opened = ExitStack()
        folder = Path(self.opened.enter_context(TemporaryDirectory(prefix="penstock-model-")))
        self.clock = Clock()
        self.began = self.clock.seconds
        url = type(self).make_url(folder)
        self.broker = self.opened.enter_context(penstock.connect(url, clock=self.clock))
        self.tube = self.broker.create_tube(
            "t", "utubettl" if laned else "fifottl", ttr=TTR, shards=shards, utube_limit=limit if laned else None
        )
        self.ledger = Ledger(TTR, limit if laned else None)
        self.numbers = count()
        self.tasks: list[penstock.Task] = []

    def teardown(self) -> None:
        if hasattr(self, "opened"):
            self.opened.close()

    @rule(items=st.lists(_item, min_size=1, max_size=6))
    def put(self, items: list[dict[str, Any]]) -> None:
        """Addresses are drawn where they are unique in the tube: in the kinds without micro-queues."""
        laned = self.ledger.limit is not None
        lines = [
            Line(next(self.numbers), item["pri"], item["utube"] if laned else None, None if laned else item["address"])
            for item in items
        ]
        given = [{"pri": line.pri, "utube": line.utube, "address": line.address} for line in lines]
        wanted = Counter(line.address for line in lines if line.address is not None)
        clash = any(number > 1 or self.ledger.holds(address) for address, number in wanted.items())
        if clash:  # what went to other shards may be stored: then nothing is promised that a set could show
            for line, options, item in zip(lines, given, items, strict=True):
                self._put_one(line, options, item["delay"])
            return
        pairs = zip(lines, given, items, strict=True)
        self.tube.put_many([(line.number, {**options, "delay": item["delay"]}) for line, options, item in pairs])
        for line, item in zip(lines, items, strict=True):
            self.ledger.add(line, item["delay"], self.clock.seconds)

    def _put_one(self, line: Line, options: dict[str, Any], delay: float) -> None:
        try:
            self.tube.put(line.number, delay=delay, **options)
        except penstock.DuplicateAddress:
            require("I8", line.address is not None and self.ledger.holds(line.address), line)
        else:
            require("I8", line.address is None or not self.ledger.holds(line.address), line)
            self.ledger.add(line, delay, self.clock.seconds)

    @rule(most=st.integers(1, 5))
    def take(self, most: int) -> None:
        may = self.ledger.takeable()
        found = self.tube.take_many(most)
        numbers = {_number(task) for task in found}
        require("I6", numbers <= may, f"{numbers} were handed out, of {may}")
        require("L1", len(found) == len(numbers) == min(most, len(may)), f"{numbers} came of {may}, {most} were wanted")
        for task in found:
            self.ledger.hand_out(_number(task), task.lease, self.clock.seconds)
        self.tasks += found

    @precondition(lambda self: self.tasks)
    @rule(which=st.integers(0, 20), verb=st.sampled_from(("ack", "ack", "release", "bury")), delay=_delays)
    def settle(self, which: int, verb: str, delay: float) -> None:
        """By a Task, whose lease may be dead."""
        task = self.tasks.pop(which % len(self.tasks))
        line = self.ledger.held(_number(task), task.lease)
        try:
            task.release(delay) if verb == "release" else getattr(task, verb)()
        except penstock.NotTaken:
            require("I3", line is None, f"{task} is held")
            return
        assert line is not None, f"{task} was not held any more"
        if verb == "ack":
            del self.ledger.lines[line.number]
        elif verb == "bury":
            line.status, line.moment = "!", None
        else:
            self.ledger.put_back(line, delay, self.clock.seconds)

    @rule(most=st.integers(1, 4))
    def kick(self, most: int) -> None:
        buried = {number for number, status in self.ledger.shown().items() if status == "!"}
        kicked = self.tube.kick(most)
        left = {_number(task) for task in self.tube.tasks("!", limit=1000)}
        require(
            "I12", left <= buried and kicked == len(buried - left) == min(most, len(buried)), (buried, left, kicked)
        )
        for number in buried - left:
            self.ledger.lines[number].status = "r"

    @rule(seconds=st.sampled_from((0.5, 1, 2)))
    def advance(self, seconds: float) -> None:
        if self.clock.seconds + seconds - self.began < LATEST:
            self.clock.advance(seconds)
            self.ledger.pass_time(self.clock.seconds)

    @invariant()
    def sound(self) -> None:
        if not hasattr(self, "tube"):
            return
        shown = {_number(task): str(task.status) for task in self.tube.tasks(limit=1000)}
        require("I12", shown == self.ledger.shown(), f"the store shows {shown}, the ledger {self.ledger.shown()}")
        stats, counted = self.tube.stats().tasks, Counter(shown.values())
        seen = {"r": stats.ready, "t": stats.taken, "~": stats.delayed, "!": stats.buried}
        require("I11", {status: number for status, number in seen.items() if number} == counted, (stats, counted))
        require("I11", self.broker.check() == [])


def _number(task: penstock.Task) -> int:
    assert isinstance(task.data, int)
    return task.data
