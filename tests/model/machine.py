"""The state machine: makes the same calls, at the same times, on a store and on the naive model."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import penstock
from penstock.core.kind import find_kind
from penstock.runtime.heartbeat import BEAT_SECONDS
from tests.fault.invariants import require
from tests.model.sides import BROKERS, GROUPS, ModelSide, Side, answer
from tests.model.strategies import (
    CLOCK_STEPS,
    Config,
    addresses,
    configs,
    data,
    delays,
    groups,
    max_pris,
    places,
    put_options,
    recent,
)

NAMES = ("a", "b")
tubes = st.sampled_from(NAMES)
brokers = st.integers(0, BROKERS - 1)
Call = Callable[[Side], object]
WEIGHTS = {
    "work": 9, "settle": 6, "settle_by_id": 3, "ack_many": 1, "administer": 3, "look": 1,
    "advance": 2, "advance_to_a_deadline": 2, "settle_at_a_deadline": 2, "clients": 2, "relate": 5, "deliver": 3,
}  # fmt: skip
_WORK = ("put", "put_many", "take", "take", "take_many", "take_of_several", "serve")
_SETTLE = ("ack", "release", "touch", "fail", "bury", "delete", "cancel")
_ADMINISTER = (*["kick"] * 5, *["resume"] * 3, "pause", *["release_all"] * 2, "truncate", "drop")
_RELATE = (
    *["wait"] * 2,
    *["open_group"] * 3,
    "fill_group",
    *["start_group"] * 2,
    "cancel_group",
    "cancel_group",
    "look_at_group",
)
_CLIENTS = ("open", "open", "join", "close", "silence", "crash", "reopen")


def _arguments(**strategies: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(strategies)


_verbs = st.sampled_from
ARGUMENTS = {
    "work": _arguments(verb=_verbs(_WORK), name=tubes, who=places),
    "settle": _arguments(verb=_verbs(_SETTLE), which=recent, delay=delays),
    "settle_by_id": _arguments(
        verb=_verbs(("bury", "bury", "delete", "cancel", "ack", "release")), name=tubes, who=places, which=places
    ),
    "ack_many": _arguments(
        name=tubes, who=places, handed=st.lists(recent, max_size=4), ids=st.lists(places, max_size=2)
    ),
    "administer": _arguments(verb=_verbs(_ADMINISTER), name=tubes, who=places, count=st.integers(1, 4)),
    "look": _arguments(
        name=tubes, who=places, which=places, status=_verbs((None, *penstock.Status)), limit=st.integers(1, 3)
    ),
    "advance": _arguments(seconds=CLOCK_STEPS, look=st.booleans()),
    "advance_to_a_deadline": _arguments(which=places, early=st.booleans(), look=st.booleans()),
    "settle_at_a_deadline": _arguments(verb=_verbs(_SETTLE), which=places, early=st.booleans()),
    "relate": _arguments(
        verb=_verbs(_RELATE), name=tubes, who=places, which=places, address=addresses, group=groups, end=st.booleans()
    ),
    "deliver": _arguments(
        name=tubes, who=places, count=st.integers(1, 4), elapsed=_verbs((0, 0, 0.5, 1)), start=st.integers(-4, 4)
    ),
    "clients": _arguments(verb=_verbs(_CLIENTS), broker=brokers, which=places, ttr=_verbs((0, 0, 4))),
}


class Machine(RuleBasedStateMachine):
    """Compares a store with the model; a subclass names the store."""

    make_url: ClassVar[Callable[[Path], str]]
    durable: ClassVar[bool]

    def __init__(self) -> None:
        super().__init__()
        self._opened = ExitStack()
        folder = Path(self._opened.enter_context(TemporaryDirectory(prefix="penstock-model-")))
        self.model = ModelSide()
        self.tried = Side(type(self).make_url(folder))
        for side in (self.model, self.tried):
            self._opened.callback(side.close)
        self.configs: dict[str, Config] = {}
        self.moments: list[float] = []  # deadlines seen so far
        self.ids: dict[str, list[int | str]] = {}  # tasks seen so far
        self.looking = True
        self._began = time.monotonic()

    def teardown(self) -> None:
        self._opened.close()

    @property
    def late(self) -> bool:
        """Whether the example took so long that real heartbeats may have interfered; then it is not judged further."""
        return self._is_late()

    def _is_late(self) -> bool:
        return time.monotonic() - self._began > BEAT_SECONDS - 1

    def both(self, call: Call) -> None:
        """Make one call on both sides and compare (I12)."""
        self.looking = True
        if self.late:
            return
        expected, found = answer(self.model, call), answer(self.tried, call)
        if found != expected and not self._is_late():
            require("I12", False, f"the model answers {expected}, the store {found}")

    @initialize(draw=st.data())
    def create(self, draw: st.DataObject) -> None:
        for name in NAMES:
            config = self.configs[name] = draw.draw(configs())
            self.both(_creation(name, config))
            self._put_many(name, 0, draw)

    @invariant()
    @precondition(lambda self: self.configs and self.looking and not self.late)
    def sides_agree(self) -> None:
        """I12 for everything observable, and the invariants that the store shows by itself."""
        expected, found = self.model.visible(), self.tried.visible()
        if self.late:
            return  # a heartbeat may come between the two reads
        for what, value in expected.items():
            require("I12", found[what] == value, f"{what}: the model has {value}, the store {found[what]}")
        self.tried.must_be_sound(found)
        self.moments = _moments(expected, {name: config.options for name, config in self.configs.items()})
        self.ids = {name: _ids(expected[f"tasks of {name}"]) for name in NAMES}

    @rule(action=st.sampled_from([action for action, weight in WEIGHTS.items() for _ in range(weight)]), draw=st.data())
    def step(self, action: str, draw: st.DataObject) -> None:
        """The only rule, so that the weights are ours: Hypothesis may disable rules, and takes must be common."""
        arguments = draw.draw(ARGUMENTS[action], label=action)
        if action in ("settle", "settle_at_a_deadline", "ack_many") and not self.model.tasks:
            return
        getattr(self, action)(draw=draw, **arguments) if action == "work" else getattr(self, action)(**arguments)

    def work(self, verb: str, name: str, who: int, draw: st.DataObject) -> None:
        getattr(self, f"_{verb}")(name, who, draw)

    def _put(self, name: str, who: int, draw: st.DataObject) -> None:
        value, options = draw.draw(data), draw.draw(put_options(self.configs[name].kind))
        self.both(lambda side: side.tube(who, name).put(value, **options))

    def _put_many(self, name: str, who: int, draw: st.DataObject) -> None:
        item = st.tuples(data, put_options(self.configs[name].kind))
        items = draw.draw(st.lists(item, min_size=2, max_size=8))
        self.both(lambda side: side.tube(who, name).put_many(items))

    def _take(self, name: str, who: int, draw: st.DataObject) -> None:
        max_pri = draw.draw(max_pris)

        def call(side: Side) -> object:
            task = side.tube(who, name).take(0, max_pri=max_pri)
            return side.handed([task] if task else [])

        self.both(call)

    def _take_many(self, name: str, who: int, draw: st.DataObject) -> None:
        count, max_pri = draw.draw(st.integers(1, 6)), draw.draw(max_pris)
        self.both(lambda side: side.handed(side.tube(who, name).take_many(count, max_pri=max_pri)))

    def _take_of_several(self, name: str, who: int, draw: st.DataObject) -> None:
        names = draw.draw(st.permutations(NAMES))

        def call(side: Side) -> object:
            task = side.actor(who).take(names, 0)
            return side.handed([task] if task else [])

        self.both(call)

    def _serve(self, name: str, who: int, draw: st.DataObject) -> None:
        """Take and settle one task after the other, which shows the order of the tube."""
        verb = draw.draw(st.sampled_from(("ack", "ack", "release")))
        for _ in range(draw.draw(st.integers(2, 5))):
            self._take(name, who, draw)
            if self.model.tasks:
                self.settle(verb, 0, 0)

    # by a Task, whose lease may have ended long ago, or by an id

    def settle(self, verb: str, which: int, delay: float) -> None:
        arguments: dict[str, tuple[object, ...]] = {
            "release": (delay,), "touch": (0.5 + delay,), "fail": ("broken",), "bury": (None if delay else "odd",),
            "cancel": (None if delay else "late",),
        }  # fmt: skip

        def call(side: Side) -> object:
            task = side.nth_newest(which)
            home = side.brokers[0].tube(task.tube)
            work: Callable[..., object] = (
                partial(getattr(home, verb), task) if verb in ("delete", "cancel") else getattr(task, verb)
            )
            return work(*arguments.get(verb, ()))

        self.both(call)

    def settle_by_id(self, who: int, name: str, which: int, verb: str) -> None:
        self.both(lambda side: getattr(side.tube(who, name), verb)(self._id(name, which)))

    def ack_many(self, who: int, name: str, handed: list[int], ids: list[int]) -> None:
        def call(side: Side) -> object:
            known = [side.nth_newest(which) for which in handed]
            numbers = [self._id(name, which) for which in ids]
            return side.tube(who, name).ack_many([*(task for task in known if task.tube == name), *numbers])

        self.both(call)

    def relate(self, verb: str, name: str, who: int, which: int, address: str, group: str, end: bool) -> None:
        if verb == "wait":
            self.both(lambda side: side.tube(who, name).wait(address, 0))
        elif verb == "open_group":
            delayed = {"delay": 10} if find_kind(self.configs[name].kind).has("delay") else {}
            items = [("one", {}), ("two", delayed)] if which % 3 else []
            self.both(partial(_open_group, who=who, name=name, group=group, end=end, items=items))
        elif self.model.groups:
            self.both(lambda side: _use_group(side.groups[which % len(side.groups)], verb))

    def deliver(self, who: int, name: str, count: int, elapsed: float, start: int) -> None:
        """Make a call that only kind reliable has; other kinds refuse it."""
        self.both(lambda side: side.handed(side.tube(who, name).recover(count, elapsed)))
        self.both(lambda side: side.tube(who, name).inspect(start, count))
        self.both(lambda side: side.tube(who, name).inspect(start, count, pending=True))

    def _id(self, name: str, which: int) -> int | str:
        """Draw an id, mostly of an existing task."""
        ids = self.ids.get(name) or [1]
        return ids[which % len(ids)] if which < 28 else which

    def administer(self, who: int, name: str, verb: str, count: int) -> None:
        if verb in ("drop", "truncate") and self.model.owed_replies(name) > 1:
            return  # any order, so the ids of the replies differ
        if verb == "drop":
            self.both(lambda side: side.drop_and_create(name))
        else:
            self.both(lambda side: getattr(side.tube(who, name), verb)(*([count] if verb == "kick" else [])))

    def look(self, who: int, name: str, which: int, status: str | None, limit: int) -> None:
        id = self._id(name, which)
        self.both(lambda side: side.tube(who, name).peek(id))
        self.both(lambda side: side.tube(who, name).why(id).partition(":")[0].partition(",")[0])
        self.both(lambda side: side.onlooker.tube(name).tasks(status, limit=limit, after=id))
        self.both(lambda side: [(seen.held, seen.heartbeat) for seen in side.onlooker.sessions()])

    # time

    def advance(self, seconds: float, look: bool) -> None:
        """Advance the clock without a look, so that the next call finds what is due."""
        self.both(lambda side: side.clock.advance(seconds))
        self.looking = look

    def advance_to_a_deadline(self, which: int, early: bool, look: bool) -> None:
        ahead = sorted(moment for moment in self.moments if moment > self.model.clock.seconds)
        if ahead:
            to = ahead[which % len(ahead)] - (0.001 if early else 0)
            self.both(lambda side: side.clock.advance(to - side.clock.seconds))
            self.looking = look

    def settle_at_a_deadline(self, verb: str, which: int, early: bool) -> None:
        """Settle a task exactly when its lease ends, or just before, with no other call in between."""
        now, newest_first = self.model.clock.seconds, self.model.tasks[::-1]
        ahead = [place for place, task in enumerate(newest_first) if task.due is not None and task.due > now]
        if ahead:
            place = ahead[which % len(ahead)]
            to = (newest_first[place].due or now) - (0.001 if early else 0)
            self.both(lambda side: side.clock.advance(to - side.clock.seconds))
            self.settle(verb, place, 0)

    # clients

    def clients(self, verb: str, broker: int, which: int, ttr: float) -> None:
        if verb == "silence":
            self.both(lambda side: side.silence(broker, beats=1 + which % 4))
        elif verb in ("open", "join") and len(self.model.sessions) < 4:
            self.both(lambda side: side.open_session(broker, ttr, which if verb == "join" else None))
        elif verb == "close" and self.model.sessions:
            self.both(lambda side: side.close_session(which))
        elif verb == "crash":
            self.both(lambda side: side.abandon(broker))
        elif verb == "reopen" and type(self).durable:
            self.both(lambda side: side.reopen())


def _creation(name: str, config: Config) -> Call:
    return lambda side: side.create(name, config.kind, config.options)


def _ids(listed: object) -> list[int | str]:
    assert isinstance(listed, list)
    return [task["id"] for task in listed]


def _moments(visible: dict[str, Any], options: dict[str, dict[str, Any]]) -> list[float]:
    """The deadlines that a listing shows."""
    found: set[float] = set()
    for name, given in options.items():
        taken = [task["taken"] for task in visible[f"tasks of {name}"] if task["taken"] is not None]
        found.update(moment + given["period"] for moment in taken if "period" in given)
    for what, value in visible.items():
        if what.startswith("tasks of ") and isinstance(value, list):
            found.update(moment for task in value for moment in (task["due"], task["expires"]) if moment is not None)
        if what == "sessions" and isinstance(value, list):
            found.update(heartbeat + 15 for _, heartbeat, _ in value)
    if found:
        note(f"deadlines: {sorted(found)}")
    return sorted(found)


def _open_group(side: Side, who: int, name: str, group: str, end: bool, items: Sequence[object]) -> object:
    opened = side.tube(who, name).group(group)
    side.groups = [*side.groups, opened][-GROUPS:]
    if end:
        opened.on_end(f"end of {group}")
        opened.on_cancel(f"cancel of {group}")
    opened.put_many(items)
    return opened.progress()


def _use_group(group: penstock.Group, verb: str) -> object:
    match verb:
        case "fill_group":
            return group.put_many([("one", {}), ("two", {})])
        case "start_group":
            group.start()
        case "cancel_group":
            group.cancel()
        case _:
            return group.progress(), group.wait(0)
    return None
