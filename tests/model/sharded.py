"""The state machine of sharded tubes: any order of tasks is allowed, everything else is compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import penstock
from penstock.testing import Clock
from tests.fault.invariants import require
from tests.model import naive
from tests.model.naive import BURIED, READY, Item, Model, Session
from tests.model.strategies import addresses

TTR = 2.0
# All within a session's life: the other machine tests its end.
LATEST = 12.0

_pris = st.sampled_from((0, 0, 1))
_delays = st.sampled_from((0, 0, 0, 1))
_utubes = st.sampled_from(("u", "v", "w", "x", None))
_item = st.fixed_dictionaries({"pri": _pris, "delay": _delays, "utube": _utubes, "address": st.none() | addresses})


class ShardedMachine(RuleBasedStateMachine):
    """Compares sharded tubes with the model; a subclass names the store."""

    make_url: ClassVar[Callable[[Path], str]]

    @initialize(per_utube=st.booleans(), shards=st.integers(2, 5), limit=st.integers(1, 2))
    def create(self, per_utube: bool, shards: int, limit: int) -> None:
        self.opened = ExitStack()
        folder = Path(self.opened.enter_context(TemporaryDirectory(prefix="penstock-model-")))
        self.clock = Clock()
        self.began = self.clock.seconds
        url = type(self).make_url(folder)
        self.broker = self.opened.enter_context(penstock.connect(url, clock=self.clock))
        kind, limits = ("utubettl", {"utube_limit": limit}) if per_utube else ("fifottl", {})
        self.tube = self.broker.create_tube("t", kind, ttr=TTR, shards=shards, utube_limit=limit if per_utube else None)
        self.model = naive.Tube(Model(self.clock), "t", kind, {"ttr": TTR, **limits})
        self.session = Session(0)
        self.numbers = count()
        self.tasks: list[penstock.Task] = []

    def teardown(self) -> None:
        if hasattr(self, "opened"):
            self.opened.close()

    @rule(items=st.lists(_item, min_size=1, max_size=6))
    def put(self, items: list[dict[str, Any]]) -> None:
        """Draw addresses only in kinds without micro-queues, where they are unique in the tube."""
        without = "address" if self.model.per_utube else "utube"
        given = [(next(self.numbers), {key: item[key] for key in item if key != without}) for item in items]
        try:
            self._put(given)
        except penstock.DuplicateAddress:  # parts in other shards may be stored, so the whole is not compared
            for one in given:
                expected, found = _refused(partial(self._put, [one])), _refused(partial(self.tube.put_many, [one]))
                require("I8", found == expected, one)
        else:
            self.tube.put_many(given)

    def _put(self, given: list[tuple[int, dict[str, Any]]]) -> None:
        self.model.put([self.model.item(number, _given_options(options)) for number, options in given])

    @rule(most=st.integers(1, 5))
    def take(self, most: int) -> None:
        may = {item.data: item for item in self.model.takeable()}
        found = self.tube.take_many(most)
        numbers = {_number(task) for task in found}
        require("I6", numbers <= may.keys(), f"{numbers} were handed out, of {may}")
        require("L1", len(found) == len(numbers) == min(most, len(may)), f"{numbers} came of {may}, {most} were wanted")
        for task in found:
            self.model.hand_out(may[_number(task)], self.session)
        self.tasks += found

    @precondition(lambda self: self.tasks)
    @rule(which=st.integers(0, 20), verb=st.sampled_from(("ack", "ack", "release", "bury")), delay=_delays)
    def settle(self, which: int, verb: str, delay: float) -> None:
        """Settle by a Task, whose lease may have ended."""
        task = self.tasks.pop(which % len(self.tasks))
        item = self._items().get(_number(task))
        held = item is not None and self.model.settle(item, verb, self.session, task.lease, delay or None)
        try:
            task.release(delay) if verb == "release" else getattr(task, verb)()
        except penstock.NotTaken:
            require("I3", not held, f"{task} is held")
        else:
            require("I3", held, f"{task} was not held any more")

    @rule(most=st.integers(1, 4))
    def kick(self, most: int) -> None:
        buried = {number for number, item in self._items().items() if item.status == BURIED}
        kicked = self.tube.kick(most)
        left = {_number(task) for task in self.tube.tasks("!", limit=1000)}
        require(
            "I12", left <= buried and kicked == len(buried - left) == min(most, len(buried)), (buried, left, kicked)
        )
        for number in buried - left:
            self.model.move(self._items()[number], READY)

    @rule(seconds=st.sampled_from((0.5, 1, 2)))
    def advance(self, seconds: float) -> None:
        if self.clock.seconds + seconds - self.began < LATEST:
            self.clock.advance(seconds)
            self.model.advance()

    def _items(self) -> dict[int, Item]:
        return {int(str(item.data)): item for item in self.model.items}

    @invariant()
    def sound(self) -> None:
        if not hasattr(self, "tube"):
            return
        shown = {_number(task): str(task.status) for task in self.tube.tasks(limit=1000)}
        expected = {number: str(item.status) for number, item in self._items().items()}
        require("I12", shown == expected, f"the store shows {shown}, the model {expected}")
        stats, counted = self.tube.stats().tasks, Counter(shown.values())
        seen = {"r": stats.ready, "t": stats.taken, "~": stats.delayed, "!": stats.buried}
        require("I11", {status: number for status, number in seen.items() if number} == counted, (stats, counted))
        require("I11", self.broker.check() == [])


def _given_options(options: dict[str, Any]) -> dict[str, Any]:
    return {option: value for option, value in options.items() if value is not None}


def _refused(put: Callable[[], object]) -> bool:
    try:
        put()
    except penstock.DuplicateAddress:
        return True
    return False


def _number(task: penstock.Task) -> int:
    assert isinstance(task.data, int)
    return task.data
