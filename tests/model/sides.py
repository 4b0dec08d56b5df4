"""The two sides that a model test compares, store and model: clock, brokers, sessions and all taken tasks of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, cast

import penstock
from penstock.core.task import record_of, tube_of
from penstock.runtime.heartbeat import BEAT_SECONDS
from penstock.testing import Clock
from tests.fault.invariants import require
from tests.model import handles
from tests.model.naive import Model

BROKERS = 2
# Old attempts kept for late calls; far more than are live at once.
REMEMBERED = 40
# Handles of groups kept, live and ended.
GROUPS = 6

_FACTS = (
    "id", "status", "data", "tube", "pri", "utube", "attempts", "lease", "created", "taken", "due", "expires", "reason",
    "address", "group",
)  # fmt: skip


class Side:
    """A store with its brokers and sessions. Nothing here waits or reads a real clock."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.clock = Clock()
        self.events: Counter[tuple[str, str, int | str, str]] = Counter()
        self.clocks: dict[tuple[int, int], float] = {}  # the last delivery of each element of a round tube
        self.tasks: list[penstock.Task] = []
        self.groups: list[penstock.Group] = []
        self.sessions: list[tuple[int, penstock.Session]] = []  # with its broker's place
        self._ever: list[penstock.Session] = []
        self._abandoned: list[penstock.Broker] = []
        self.names: dict[str, tuple[str, dict[str, object]]] = {}
        #: Only reads: it never takes, so it has no session. It also keeps a memory store alive.
        self.onlooker = self._connect()
        self.brokers = [self._connect() for _ in range(BROKERS)]

    def _connect(self) -> penstock.Broker:
        return penstock.connect(self.url, clock=self.clock)

    def create(self, name: str, kind: str, options: dict[str, object]) -> None:
        """Create a tube and record all its changes."""
        self.names[name] = (kind, options)
        self.onlooker.create_tube(name, kind, **options)  # type: ignore[arg-type]
        self._listen()

    def _listen(self) -> None:
        for broker in (self.onlooker, *self.brokers):
            for name in self.names:
                broker.tube(name).on_change(self._note)

    def _note(self, task: penstock.Task, event: str) -> None:
        self.events[task.tube, event, task.id, str(task.status)] += 1

    def actor(self, place: int) -> penstock.Broker | penstock.Session:
        """A caller: a broker with its implicit session, or an explicit session."""
        actors: list[penstock.Broker | penstock.Session] = [*self.brokers, *(session for _, session in self.sessions)]
        return actors[place % len(actors)]

    def tube(self, place: int, name: str) -> penstock.Tube:
        """That caller's handle of a tube."""
        return self.actor(place).tube(name)

    def handed(self, tasks: list[penstock.Task]) -> list[penstock.Task]:
        """Remember taken tasks, and return them."""
        for task in tasks:
            self._keeps_its_period(task)
        self.tasks = [*self.tasks, *tasks][-REMEMBERED:]
        return tasks

    def _keeps_its_period(self, task: penstock.Task) -> None:
        period = self.names[task.tube][1].get("period")
        if isinstance(period, int | float):
            element = (tube_of(task).stored.no, record_of(task).id)
            last = self.clocks.get(element)
            require("I10", last is None or round(task.taken - last, 3) >= period, (self.url, task, last))
            self.clocks[element] = task.taken

    def nth_newest(self, place: int) -> penstock.Task:
        """One of the taken tasks, counted from the newest."""
        return self.tasks[-1 - place % len(self.tasks)]

    def open_session(self, broker: int, ttr: float, joins: int | None) -> None:
        """Open a new explicit session, or one more handle of an older one."""
        id = None if joins is None or not self.sessions else self.sessions[joins % len(self.sessions)][1].id
        session = self.brokers[broker].session(ttr, id)
        self._ever.append(session)
        self.sessions.append((broker, session))

    def close_session(self, place: int) -> None:
        """Close one handle."""
        self.sessions.pop(place % len(self.sessions))[1].close()

    def silence(self, place: int, beats: int) -> None:
        """Let time pass while all brokers but one send heartbeats; after three missed ones its sessions lapse."""
        for _ in range(beats):
            self.clock.advance(BEAT_SECONDS)
            for other, broker in enumerate(self.brokers):
                if other != place:
                    self._beat(broker)

    def _beat(self, broker: penstock.Broker) -> None:
        broker.runtime.send_heartbeats()

    def drop_and_create(self, name: str) -> None:
        """Drop a tube and create it again; attempts of the old one are invalid."""
        self.onlooker.tube(name).drop()
        self.tasks = [task for task in self.tasks if task.tube != name]
        self.create(name, *self.names[name])

    def abandon(self, place: int) -> None:
        """Simulate a crashed client: its broker sends nothing more, and a new one replaces it."""
        self._abandoned.append(self.brokers[place])
        self.brokers[place] = self._connect()
        self.sessions = [(broker, session) for broker, session in self.sessions if broker != place]
        self._listen()

    def reopen(self) -> None:
        """Close every broker and connect again."""
        for session in self._ever:  # in order: a broker would close its own in any order
            session.close()
        for broker in (*self._abandoned, *self.brokers):
            broker.close()
        self.onlooker.close()
        self.onlooker = self._connect()
        self._ever, self._abandoned, self.sessions, self.groups = [], [], [], []
        self.brokers = [self._connect() for _ in range(BROKERS)]
        self._listen()

    def close(self) -> None:
        """Close everything at the end."""
        for broker in (*self._abandoned, *self.brokers, self.onlooker):
            broker.close()

    def visible(self) -> dict[str, Any]:
        """Everything that this store shows now."""
        shown: dict[str, Any] = {}
        for name in sorted(self.names):
            self._show(name, shown)
        # Only now, after everything due was applied: a reply may have created a tube, and stores differ in when.
        shown["tubes"] = self.onlooker.tubes()
        for name in sorted({info.name for info in self.onlooker.tubes()} - self.names.keys()):
            self._show(name, shown)
        shown["sessions"] = [(seen.held, seen.heartbeat, seen.waits) for seen in self.onlooker.sessions()]
        shown["hand-outs"] = [facts(task) for task in self.tasks]
        shown["events"] = self.events
        return shown

    def _show(self, name: str, shown: dict[str, Any]) -> None:
        tube = self.onlooker.tube(name)
        shown[f"stats of {name}"] = tube.stats()
        shown[f"tasks of {name}"] = [facts(task) for task in tube.tasks(limit=10_000)]

    def must_be_sound(self, visible: dict[str, Any]) -> None:
        """Check the invariants that one store shows by itself."""
        for name, (_, options) in self.names.items():
            stats, listed = visible[f"stats of {name}"], visible[f"tasks of {name}"]
            counted = Counter(task["status"].name.lower() for task in listed)
            for state in ("ready", "taken", "delayed", "buried"):
                require("I11", getattr(stats.tasks, state) == counted[state], (self.url, name, state, stats))
            require("I1", stats.calls.put == stats.tasks.done + len(listed), (self.url, name, stats))
            capacity = options.get("capacity")
            puts = [task for task in listed if not is_reply(task["data"])]  # replies ignore the capacity
            require("I8", not isinstance(capacity, int) or len(puts) <= capacity, (self.url, name))
            held = Counter(task["address"] for task in listed if task["address"] is not None)
            require("I8", all(count == 1 for count in held.values()), (self.url, name, held))
            _micro_queues_hold(name, options, listed)
        findings = self.onlooker.check()
        require("I11", findings == [], (self.url, findings))
        live = Counter((task.tube, task.id, task.lease) for task in self.tasks if task.lease)
        require("I3", all(count == 1 for count in live.values()), live)


class ModelSide(Side):
    """The naive model, whose handles have the same names."""

    def __init__(self) -> None:
        self._model: Model | None = None
        super().__init__("the model")

    @property
    def model(self) -> Model:
        self._model = self._model or Model(self.clock)
        return self._model

    def _connect(self) -> penstock.Broker:
        return cast(penstock.Broker, handles.Broker(self.model))

    def _beat(self, broker: penstock.Broker) -> None:
        for member in cast(handles.Broker, broker).members:
            member.beat()

    def _keeps_its_period(self, task: penstock.Task) -> None:
        """Nothing to check in the model: the store's side is checked."""

    def owed_replies(self, name: str) -> int:
        """The number of tasks in a tube that will put a reply."""
        tube = self.model.tubes.get(name)  # None if the example was late before it was created
        return 0 if tube is None else sum("reply_to" in item.options for item in tube.items)


def _micro_queues_hold(name: str, options: dict[str, object], listed: list[dict[str, Any]]) -> None:
    limit = options.get("utube_limit", 1)
    taken = Counter(task["utube"] for task in listed if task["status"] == "t" and task["utube"] is not None)
    assert isinstance(limit, int)
    require("I6", all(count <= limit for count in taken.values()), (name, limit, taken))


def is_reply(data: object) -> bool:
    """Whether a task's data is a reply."""
    return isinstance(data, dict) and {"id", "address", "status"} <= data.keys()


def facts(task: penstock.Task | handles.Task) -> dict[str, object]:
    """All public fields of a task."""
    return {name: getattr(task, name) for name in _FACTS}


def shown(value: object) -> object:
    """The result of a call in a form that can be compared between the sides."""
    if isinstance(value, penstock.Task | handles.Task):
        return facts(value)
    if isinstance(value, list):
        return [shown(item) for item in value]
    return value


def answer(side: Side, call: Callable[[Side], object]) -> object:
    """The result of a call or, if it raises, the class of its error."""
    try:
        return shown(call(side))
    except (penstock.PenstockError, TimeoutError) as error:
        return type(error)
