"""The naive model behind penstock's own names, so that the machine makes the same calls on both.

Defines which calls a kind has, whose session makes them, which of them first apply what is due, and what they return.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partialmethod
from math import inf
from typing import Any

import penstock
from penstock import Outcome, Progress, SessionInfo, Status, TubeInfo, TubeStats
from penstock.broker.stats import CallCounts, TaskCounts
from tests.model import naive
from tests.model.naive import BURIED, TAKEN, Item, Model, ms

LAPSE = 15_000
OnChange = Callable[[Any, str], object]


def _seconds(moment: float) -> float | None:
    return None if moment == inf else moment / 1000


class Task:
    """A task as a call returned it, updated by its own verbs."""

    def __init__(self, item: Item, home: Tube) -> None:
        self.home = home
        self.id: int | str = item.no if home.stored.leased else item.address or ""
        self.address = item.address if home.stored.leased else None
        self.status, self.data, self.tube = item.status, item.data, home.name
        self.pri, self.utube, self.attempts, self.lease = item.pri, item.utube, item.attempts, item.lease
        self.created, self.expires = _seconds(item.created), _seconds(item.expires)
        self.taken, self.due = _seconds(item.taken or inf), None if item.unstarted else _seconds(item.due)
        self.reason, self.group = item.reason, None if item.group is None else item.group.name

    def _settle(self, verb: str, *values: object) -> None:
        getattr(self.home, verb)(self, *values)

    ack = partialmethod(_settle, "ack")
    fail = partialmethod(_settle, "fail")
    release = partialmethod(_settle, "release")
    touch = partialmethod(_settle, "touch")
    bury = partialmethod(_settle, "bury")


class Session:
    """The caller: an explicit session, or a broker with its implicit one, which starts at the first take."""

    broker: Broker
    model: Model
    id: naive.Session | None = None
    handle: object = None
    lost = False

    def __init__(self, broker: Broker, ttr: float, joins: naive.Session | None) -> None:
        self.broker, self.model = broker, broker.model
        self.join(ttr, joins)

    def join(self, ttr: float, session: naive.Session | None) -> None:
        """Join a new session, or a live one."""
        self.broker.begins()
        self.model.end_sessions()
        if session is None:
            session = naive.Session(ms(ttr))
            self.model.sessions.append(session)
        elif session not in self.model.sessions:
            raise penstock.NotFound
        self.id, self.handle, self.lost = session, object(), False
        session.until, session.handles[self.handle] = inf, self.model.clock() + LAPSE
        if self not in self.broker.members:
            self.broker.members.append(self)

    @property
    def holder(self) -> naive.Session | None:
        """The session whose tasks it settles."""
        return None if self.id is None or self.lost else self.id

    def tube(self, name: str) -> Tube:
        return Tube(self, self.model.tubes[name])

    def take(self, names: Sequence[str], timeout: float) -> Task | None:
        tasks = self.take_tasks([self.tube(name) for name in names], 1)
        return tasks[0] if tasks else None

    def take_tasks(self, tubes: list[Tube], count: int) -> list[Task]:
        """Take from the first of these tubes that has tasks. A lapsed session is reported even if there are none."""
        self.broker.begins()
        if self.holder is None:
            if self is not self.broker:
                raise penstock.NotFound
            self.join(0, None)
        assert self.id is not None
        self.model.end_sessions()
        if self.handle not in self.id.handles:
            self.model.put_works()
            self.lost = True
            return self.take_tasks(tubes, count) if self is self.broker else []
        for tube in tubes:
            tube.stored.advance()
            self.model.put_works()  # the effects of advance may be taken
            items = tube.stored.take(count, self.id, tube.max_pri)
            if items:
                return [Task(item, tube) for item in items]
        return []

    def beat(self) -> None:
        assert self.id is not None
        if self.id.handles.get(self.handle, -inf) > self.model.clock():
            self.id.handles[self.handle] = self.model.clock() + LAPSE
        else:
            self.lost = True

    def leave(self) -> None:
        if self not in self.broker.members:
            return
        self.broker.members.remove(self)
        if self.id is not None and not self.lost:
            self.broker.begins()
            self.model.end_sessions()
            if self.handle in self.id.handles:
                self.id.part(self.handle, self.model.clock())
            self.model.end_sessions()
            self.model.put_works()

    close = leave


class Broker(Session):
    """A broker of the model; records the changes that its own calls make."""

    def __init__(self, model: Model) -> None:
        self.broker, self.model = self, model
        self.members: list[Session] = []
        self.listeners: dict[naive.Tube, tuple[Tube, OnChange]] = {}
        self.closed = False

    def begins(self) -> None:
        """Begin a call of this broker."""
        if self.closed:
            raise penstock.StoreUnavailable
        self.model.on_change = self._on_change

    def _on_change(self, stored: naive.Tube, event: str, item: Item) -> None:
        if stored in self.listeners:
            tube, callback = self.listeners[stored]
            callback(Task(item, tube), event)

    def create_tube(self, name: str, kind: str, **options: object) -> None:
        self.model.tubes[name] = naive.Tube(self.model, name, kind, options)

    def tubes(self) -> list[TubeInfo]:
        defaults = {"temporary": False, "pri": 0, "utube_limit": 1}
        return [
            TubeInfo(name, tube.kind, {key: value for key, value in tube.options.items() if defaults.get(key) != value})
            for name, tube in sorted(self.model.tubes.items())
        ]

    def session(self, ttr: float, id: naive.Session | None) -> Session:
        return Session(self, ttr, id)

    def sessions(self) -> list[SessionInfo]:
        """The sessions that are alive or can still be joined."""
        self.begins()
        self.model.end_sessions()
        lapses = [max(session.handles.values(), default=session.last_seen) for session in self.model.sessions]
        return [
            SessionInfo("", "", 0, (lapse - LAPSE) / 1000, self._held(session), [])
            for session, lapse in zip(self.model.sessions, lapses, strict=True)
        ]

    def _held(self, session: naive.Session) -> list[tuple[str, int]]:
        tubes = sorted(self.model.tubes.items())
        return [(name, item.no) for name, tube in tubes for item in tube.items if item.owner is session]

    def close(self) -> None:
        for member in list(self.members):
            member.leave()
        self.closed = True


class Tube:
    """A tube for one session."""

    def __init__(self, session: Session, stored: naive.Tube) -> None:
        self.session, self.stored, self.name = session, stored, stored.name
        self.max_pri: float = inf

    @contextmanager
    def step(self) -> Iterator[naive.Tube]:
        """Make one call; put replies and group work before it ends."""
        self.session.broker.begins()
        if self.session.model.tubes.get(self.name) is not self.stored:
            raise penstock.NoSuchTube
        yield self.stored
        self.session.model.put_works()

    def catch_up(self) -> None:
        with self.step() as stored:
            stored.advance()

    def must_have(self, verb: str) -> None:
        kinds = {"ack": self.stored.kind != "round", "delete": True}
        kinds |= dict.fromkeys(("recover", "inspect"), self.stored.kind == "reliable")
        kinds["touch"] = self.stored.leased and not {"ttl", "ttr", "delay"}.isdisjoint(self.stored.accepts)
        if not kinds.get(verb, self.stored.leased):
            raise penstock.UnsupportedOption

    # putting and taking

    def put(self, data: object, **options: Any) -> Task:
        return self.put_many([(data, options)])[0]

    def put_many(self, given: Sequence[tuple[object, dict[str, Any]]], group: naive.Group | None = None) -> list[Task]:
        """Apply what is due first, but only if the tube is full."""
        items = [self.stored.item(data, options) for data, options in given]
        for item in items:
            item.group = group
        try:
            return self._put(items)
        except penstock.TubeFull:
            if len(items) > self.stored.options["capacity"]:
                raise
        self.catch_up()
        return self._put(items)

    def _put(self, items: list[Item]) -> list[Task]:
        with self.step() as stored:
            return [Task(item, self) for item in stored.put(items)]

    def take(self, timeout: float, *, max_pri: int | None = None) -> Task | None:
        tasks = self.take_many(1, max_pri=max_pri)
        return tasks[0] if tasks else None

    def take_many(self, count: int, *, max_pri: int | None = None) -> list[Task]:
        if max_pri is not None and (self.stored.order[0] != "pri" or "aging" in self.stored.options):
            raise penstock.UnsupportedOption
        self.max_pri = inf if max_pri is None else max_pri
        return self.session.take_tasks([self], count)

    # settling

    def _find(self, given: object) -> Item | None:
        id = given.id if isinstance(given, Task) else given
        if not isinstance(id, int if self.stored.leased else str):
            raise penstock.BadValue
        found = [item for item in self.stored.items if id == (item.no if self.stored.leased else item.address)]
        return found[0] if found else None

    def _settled(self, verb: str, given: object, value: object = None) -> Item | None:
        """The task, if it was settled; by a Task only while the lease of that attempt is alive."""
        item, lease = self._find(given), given.lease if isinstance(given, Task) and self.stored.leased else None
        with self.step() as stored:
            good = item is not None and stored.settle(item, verb, self.session.holder, lease, value)
            return item if good else None

    def _settle(self, verb: str, given: object, value: object = None) -> None:
        self.must_have(verb)
        if verb == "release" and value and "delay" not in self.stored.accepts:
            raise penstock.UnsupportedOption
        item, leased = self._settled(verb, given, value), isinstance(given, Task) and self.stored.leased
        if item is None:
            raise penstock.NotFound if verb in ("bury", "delete", "cancel") and not leased else penstock.NotTaken
        if isinstance(given, Task):
            given.status, given.reason = item.status, item.reason

    ack = partialmethod(_settle, "ack")
    fail = partialmethod(_settle, "fail")
    release = partialmethod(_settle, "release")
    touch = partialmethod(_settle, "touch")
    bury = partialmethod(_settle, "bury")
    delete = partialmethod(_settle, "delete")

    def cancel(self, given: object, reason: str | None = None) -> bool:
        try:
            self._settle("cancel", given, reason)
        except penstock.NotFound:
            return False
        return True

    def ack_many(self, given: list[object]) -> list[object]:
        self.must_have("ack")
        for one in given:
            self._find(one)  # all are checked before one is acked
        acked = [self._settled("ack", one) for one in given]
        for one, item in zip(given, acked, strict=True):
            if isinstance(one, Task) and item is not None:
                one.status = Status.DONE
        return [bool(item) for item in acked] if self.stored.leased else [item.address for item in acked if item]

    def _counted(self, verb: str, *values: int) -> int:
        if verb != "truncate":
            self.must_have(verb)
        with self.step() as stored:
            if verb != "truncate":
                stored.advance()
            counted: int = getattr(stored, verb)(*values)
            return counted

    kick = partialmethod(_counted, "kick")
    release_all = partialmethod(_counted, "release_all")
    truncate = partialmethod(_counted, "truncate")

    def drop(self) -> None:
        self.catch_up()
        with self.step() as stored:
            stored.drop()

    def pause(self) -> None:
        with self.step() as stored:
            stored.paused = True

    def resume(self) -> None:
        with self.step() as stored:
            stored.paused = False

    # looking

    def on_change(self, callback: OnChange) -> None:
        self.session.broker.listeners[self.stored] = (self, callback)

    def stats(self) -> TubeStats:
        self.catch_up()
        tasks, counts = Counter(item.status.name.lower() for item in self.stored.items), self.stored.counts
        here = {name: tasks[name] for name in ("ready", "taken", "delayed", "buried")}
        calls = {name: counts[name] for name in CallCounts.__struct_fields__}
        total = len(self.stored.items)
        return TubeStats(TaskCounts(**here, done=counts["put"] - total, total=total), CallCounts(**calls))

    def _there(self, id: object) -> Item | None:
        item = self._find(id)
        return None if item is None or self.stored.expired(item) else item

    def peek(self, id: object) -> Task:
        """Apply what is due first, if anything can be due for this task."""
        item = self._there(id)
        if item is not None and (item.moment < inf or item.status == TAKEN or item.group is not None):
            self.catch_up()
            item = self._there(id)
        if item is None:
            raise penstock.NotFound
        return Task(item, self)

    def why(self, id: object) -> str:
        """The part of it that the machine compares."""
        task = self.peek(id)
        word = "delivered" if task.status == TAKEN and not self.stored.leased else task.status.name.lower()
        return f"task {task.id} is {word}" + (f" ({task.reason})" if task.status == BURIED and task.reason else "")

    def tasks(self, status: str | None = None, *, limit: int, after: int | str | None = None) -> list[Task]:
        known = None if after is None else self._there(after)
        if known is None and after is not None and not self.stored.leased:
            raise penstock.NotFound
        last = int(after or 0) if self.stored.leased else known.no if known else 0
        if status == Status.DONE:
            return []
        self.catch_up()
        found = [item for item in self.stored.items if item.no > last and status in (None, item.status)]
        return [Task(item, self) for item in found[:limit]]

    def recover(self, count: int, elapsed: float) -> list[Task]:
        self.must_have("recover")
        with self.step() as stored:
            return [Task(item, self) for item in stored.recover(count, elapsed)]

    def inspect(self, start: int, count: int, pending: bool = False) -> list[Task]:
        self.must_have("inspect")
        with self.step() as stored:
            listed = stored.delivered() if pending else stored.takeable()
            first = start + len(listed) if start < 0 else start
            return [Task(item, self) for item in listed[first : first + count]] if first >= 0 else []

    def wait(self, address: str, timeout: float) -> Outcome:
        self.must_have("wait")
        self.catch_up()
        if any(item.address == address for item in self.stored.items):
            raise TimeoutError
        return self.stored.outcomes.get(address, (Outcome("unknown"), 0))[0]

    def group(self, name: str) -> Group:
        self.must_have("group")
        with self.step() as stored:
            return Group(self, stored.open_group(name))


class Group:
    """A handle of one group, live or over."""

    def __init__(self, tube: Tube, stored: naive.Group) -> None:
        self.tube, self.stored = tube, stored

    def put_many(self, given: Sequence[tuple[object, dict[str, Any]]]) -> list[Task]:
        return self.tube.put_many(given, self.stored)

    def _set(self, state: str, data: object) -> None:
        with self.tube.step():
            if not self.stored.live:
                raise penstock.NotFound
            self.stored.works[state] = data

    def _turn(self, state: str) -> None:
        with self.tube.step() as stored:
            stored.turn_group(self.stored, state)

    on_end = partialmethod(_set, "started")
    on_cancel = partialmethod(_set, "cancelling")
    start = partialmethod(_turn, "started")
    cancel = partialmethod(_turn, "cancelling")

    def _look(self) -> None:
        self.tube.catch_up()
        if self.stored not in self.tube.stored.groups:
            raise penstock.NotFound

    def progress(self) -> Progress:
        self._look()
        left = len(self.tube.stored.members(self.stored))
        return Progress(self.stored.total - left, self.stored.total, self.stored.failed)

    def wait(self, timeout: float) -> str:
        self._look()
        if self.stored.state not in ("done", "cancelled"):
            raise TimeoutError
        return self.stored.state
