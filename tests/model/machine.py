"""The state machine: the same calls, at the same moments, on a store and on the memory store, which is the model."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import ClassVar
from uuid import uuid4

from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import penstock
from penstock.keeper import BEAT_SECONDS
from tests.fault.invariants import require
from tests.model.draws import CLOCK_STEPS, Config, addresses, configs, data, delays, groups, places, put_options
from tests.model.sides import BROKERS, GROUPS, Side, answer

NAMES = ("a", "b")
tubes = st.sampled_from(NAMES)
brokers = st.integers(0, BROKERS - 1)
Call = Callable[[Side], object]


class Machine(RuleBasedStateMachine):
    """A subclass names the store under test."""

    make_url: ClassVar[Callable[[Path], str]]
    durable: ClassVar[bool]
    full: ClassVar[bool]

    def __init__(self) -> None:
        super().__init__()
        self._opened = ExitStack()
        folder = Path(self._opened.enter_context(TemporaryDirectory(prefix="penstock-model-")))
        self.model = Side(f"memory://{uuid4().hex}")
        self.tried = Side(type(self).make_url(folder))
        for side in (self.model, self.tried):
            self._opened.callback(side.close)
        self.configs: dict[str, Config] = {}
        self.moments: list[float] = []  # deadlines that were seen
        self.looking = True
        self._began = time.monotonic()

    def teardown(self) -> None:
        self._opened.close()

    @property
    def late(self) -> bool:
        """Keepers beat by real time. An example that lasts as long as a beat is not judged beyond it."""
        return time.monotonic() - self._began > BEAT_SECONDS - 1

    def both(self, call: Call) -> None:
        """I12 for one call."""
        self.looking = True
        if self.late:
            return
        expected, found = answer(self.model, call), answer(self.tried, call)
        require("I12", found == expected, f"the model answers {expected}, the store {found}")

    @initialize(one=configs, other=configs)
    def create(self, one: Config, other: Config) -> None:
        for name, config in zip(NAMES, (one, other), strict=True):
            self.configs[name] = config
            self.both(lambda side, name=name, config=config: side.create(name, config.kind, config.options))

    @invariant()
    @precondition(lambda self: self.configs and self.looking and not self.late)
    def alike_and_sound(self) -> None:
        """I12 for all that can be seen, and what each store shows by itself."""
        expected, found = self.model.visible(), self.tried.visible()
        if self.late:
            return  # a keeper may have beaten between the two looks
        for what, value in expected.items():
            require("I12", found[what] == value, f"{what}: the model has {value}, the store {found[what]}")
        self.model.must_be_sound()
        self.tried.must_be_sound()
        self.moments = _moments(expected)

    # putting

    @rule(who=places, name=tubes, data=data, draw=st.data())
    def put(self, who: int, name: str, data: object, draw: st.DataObject) -> None:
        options = draw.draw(put_options(self.configs[name].kind, linked=self.full))
        self.both(lambda side: side.tube(who, name).put(data, **options))

    @rule(who=places, name=tubes, draw=st.data())
    def put_many(self, who: int, name: str, draw: st.DataObject) -> None:
        item = st.tuples(data, put_options(self.configs[name].kind, linked=self.full))
        items = draw.draw(st.lists(st.one_of(data, item), max_size=6))
        self.both(lambda side: side.tube(who, name).put_many(items))

    # taking

    @rule(who=places, name=tubes, max_pri=st.none() | st.none() | st.integers(0, 3))
    def take(self, who: int, name: str, max_pri: int | None) -> None:
        def call(side: Side) -> object:
            task = side.tube(who, name).take(0, max_pri=max_pri)
            return side.handed([task] if task else [])

        self.both(call)

    @rule(who=places, name=tubes, count=st.integers(1, 6), max_pri=st.none() | st.none() | st.integers(0, 3))
    def take_many(self, who: int, name: str, count: int, max_pri: int | None) -> None:
        self.both(lambda side: side.handed(side.tube(who, name).take_many(count, max_pri=max_pri)))

    @rule(who=places, names=st.permutations(NAMES))
    def take_of_several(self, who: int, names: list[str]) -> None:
        def call(side: Side) -> object:
            task = side.actor(who).take(names, 0)
            return side.handed([task] if task else [])

        self.both(call)

    # settling: by a Task, whose lease may be long dead, or by an id, by whoever

    def _settle(self, verb: str, which: int, *arguments: object) -> None:
        if self.model.tasks:
            self.both(lambda side: getattr(side.tasks[which % len(side.tasks)], verb)(*arguments))

    @rule(which=places)
    def ack(self, which: int) -> None:
        self._settle("ack", which)

    @rule(which=places)
    def fail(self, which: int) -> None:
        self._settle("fail", which, "broken")

    @rule(which=places, delay=delays)
    def release(self, which: int, delay: float) -> None:
        self._settle("release", which, delay)

    @rule(which=places, seconds=st.sampled_from((0.5, 3)))
    def touch(self, which: int, seconds: float) -> None:
        self._settle("touch", which, seconds)

    @rule(which=places, reason=st.sampled_from((None, "odd")))
    def bury(self, which: int, reason: str | None) -> None:
        self._settle("bury", which, reason)

    @rule(which=places)
    def delete(self, which: int) -> None:
        if self.model.tasks:
            self.both(lambda side: _home(side, which).delete(side.tasks[which % len(side.tasks)]))

    @rule(
        who=places,
        name=tubes,
        id=st.integers(1, 12),
        verb=st.sampled_from(("ack", "fail", "release", "touch", "bury", "delete")),
    )
    def settle_by_id(self, who: int, name: str, id: int, verb: str) -> None:
        arguments = {"fail": ["broken"], "touch": [2]}.get(verb, [])
        self.both(lambda side: getattr(side.tube(who, name), verb)(id, *arguments))

    @rule(who=places, name=tubes, whiches=st.lists(places, max_size=4), ids=st.lists(st.integers(1, 8), max_size=2))
    def ack_many(self, who: int, name: str, whiches: list[int], ids: list[int]) -> None:
        def call(side: Side) -> object:
            known = [side.tasks[which % len(side.tasks)] for which in whiches if side.tasks]
            return side.tube(who, name).ack_many([*(task for task in known if task.tube == name), *ids])

        self.both(call)

    @rule(which=places, result=data)
    def ack_with_a_result(self, which: int, result: object) -> None:
        self._settle("ack", which, result)

    # addresses and groups

    @precondition(lambda self: type(self).full)
    @rule(who=places, name=tubes, address=addresses)
    def wait(self, who: int, name: str, address: str) -> None:
        self.both(lambda side: side.tube(who, name).wait(address, 0))

    @precondition(lambda self: type(self).full)
    @rule(who=places, name=tubes, group=groups, end=st.booleans())
    def open_group(self, who: int, name: str, group: str, end: bool) -> None:
        def call(side: Side) -> object:
            opened = side.tube(who, name).group(group)
            side.groups = [*side.groups, opened][-GROUPS:]
            if end:
                opened.on_end(f"end of {group}")
                opened.on_cancel(f"cancel of {group}")
            return opened.progress()

        self.both(call)

    def _group(self, which: int, call: Callable[[penstock.Group], object]) -> None:
        if self.model.groups:
            self.both(lambda side: call(side.groups[which % len(side.groups)]))

    @rule(which=places, count=st.integers(1, 3))
    def put_into_group(self, which: int, count: int) -> None:
        self._group(which, lambda group: group.put_many(range(count)))

    @rule(which=places, verb=st.sampled_from(("start", "start", "cancel")))
    def turn_group(self, which: int, verb: str) -> None:
        self._group(which, lambda group: getattr(group, verb)())

    @rule(which=places)
    def look_at_group(self, which: int) -> None:
        self._group(which, lambda group: group.progress())
        self._group(which, lambda group: group.wait(0))

    # steering

    @rule(who=places, name=tubes, count=st.integers(1, 4))
    def kick(self, who: int, name: str, count: int) -> None:
        self.both(lambda side: side.tube(who, name).kick(count))

    @rule(who=places, name=tubes)
    def release_all(self, who: int, name: str) -> None:
        self.both(lambda side: side.tube(who, name).release_all())

    @rule(who=places, name=tubes)
    def truncate(self, who: int, name: str) -> None:
        self.both(lambda side: side.tube(who, name).truncate())

    @rule(name=tubes)
    def drop_and_create(self, name: str) -> None:
        def call(side: Side) -> object:
            side.onlooker.tube(name).drop()
            side.tasks = [task for task in side.tasks if task.tube != name]
            side.groups = []
            return side.create(name, *side.names[name])

        self.both(call)

    @rule(who=places, name=tubes)
    def pause(self, who: int, name: str) -> None:
        self.both(lambda side: side.tube(who, name).pause())

    @rule(who=places, name=tubes)
    def resume(self, who: int, name: str) -> None:
        self.both(lambda side: side.tube(who, name).resume())

    # looking

    @rule(who=places, name=tubes, id=st.integers(1, 12))
    def peek(self, who: int, name: str, id: int) -> None:
        self.both(lambda side: side.tube(who, name).peek(id))
        self.both(lambda side: side.tube(who, name).why(id).partition(":")[0].partition(",")[0])

    @rule(
        name=tubes,
        status=st.sampled_from((None, *penstock.Status)),
        limit=st.integers(1, 3),
        after=st.none() | st.integers(0, 8),
    )
    def list_tasks(self, name: str, status: str | None, limit: int, after: int | None) -> None:
        self.both(lambda side: side.onlooker.tube(name).tasks(status, limit=limit, after=after))

    @rule()
    def list_sessions(self) -> None:
        self.both(lambda side: [(seen.held, seen.heartbeat) for seen in side.onlooker.sessions()])

    # time

    @rule(seconds=CLOCK_STEPS, look=st.booleans())
    def advance(self, seconds: float, look: bool) -> None:
        """Without a look, the next call meets what is due."""
        self.both(lambda side: side.clock.advance(seconds))
        self.looking = look

    @rule(which=places, early=st.booleans(), look=st.booleans())
    def advance_to_a_deadline(self, which: int, early: bool, look: bool) -> None:
        ahead = sorted(moment for moment in self.moments if moment > self.model.clock.seconds)
        if ahead:
            to = ahead[which % len(ahead)] - (0.001 if early else 0)
            self.both(lambda side: side.clock.advance(to - side.clock.seconds))
            self.looking = look

    @rule(who=brokers, beats=st.integers(1, 4))
    def beat(self, who: int, beats: int) -> None:
        """Time passes while one broker is silent; after three beats it has lapsed."""

        def call(side: Side) -> None:
            for _ in range(beats):
                side.clock.advance(BEAT_SECONDS)
                side.beat(but=who)

        self.both(call)

    # clients

    @rule(broker=brokers, ttr=st.sampled_from((0, 0, 4)), joins=st.none() | places)
    def open_session(self, broker: int, ttr: float, joins: int | None) -> None:
        if len(self.model.sessions) < 4:
            self.both(lambda side: side.open_session(broker, ttr, joins))

    @rule(which=places)
    def close_session(self, which: int) -> None:
        if self.model.sessions:
            self.both(lambda side: side.close_session(which))

    @rule(which=brokers)
    def crash_client(self, which: int) -> None:
        self.both(lambda side: side.abandon(which))

    @precondition(lambda self: type(self).durable)
    @rule()
    def reopen_store(self) -> None:
        self.both(lambda side: side.reopen(keep=side is self.model))


def _home(side: Side, which: int) -> penstock.Tube:
    task = side.tasks[which % len(side.tasks)]
    return side.brokers[0].tube(task.tube)


def _moments(visible: dict[str, object]) -> list[float]:
    """The deadlines that a look shows."""
    found: set[float] = set()
    for what, value in visible.items():
        if what.startswith("tasks of ") and isinstance(value, list):
            found.update(moment for task in value for moment in (task["due"], task["expires"]) if moment is not None)
        if what == "sessions" and isinstance(value, list):
            found.update(heartbeat + 15 for _, heartbeat, _ in value)
    if found:
        note(f"deadlines: {sorted(found)}")
    return sorted(found)
