"""The rules of penstock as the specification states them, written as simply as possible: the oracle of the model tests.

One thread, and lists that are searched from end to end. Times are whole milliseconds. As in every store, `advance`
applies what is due in a tube when the tube is used. `handles` makes these calls under penstock's own names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from math import inf
from typing import Any

import penstock
from penstock import Outcome, Status
from penstock.core.kind import find_kind

READY, TAKEN, DELAYED, BURIED, DONE = Status.READY, Status.TAKEN, Status.DELAYED, Status.BURIED, Status.DONE
ENDS = {"ack": "done", "fail": "failed", "delete": "deleted", "cancel": "cancelled", "ttl": "expired"}


def ms(seconds: float | None) -> int:
    return round((seconds or 0) * 1000)


@dataclass(eq=False)
class Session:
    """A session: the lapse time of each of its handles; without handles it ends at `until`."""

    ttr: int
    handles: dict[object, int] = field(default_factory=dict)
    until: float = inf
    last_seen: int = 0  # when the last handle lapsed, or would lapse

    def part(self, handle: object, moment: int) -> None:
        self.last_seen = self.handles.pop(handle)
        self.until = inf if self.handles else moment + self.ttr


@dataclass(eq=False)
class Group:
    """A group: open, then started or cancelling, then done or cancelled, and forgotten at `until`."""

    name: str
    state: str = "open"
    total: int = 0
    failed: int = 0
    works: dict[str, object] = field(default_factory=dict)  # the work to put at its end, by the state before
    until: float = inf

    @property
    def live(self) -> bool:
        return self.state in ("open", "started")


@dataclass(eq=False)
class Item:
    """One task."""

    data: object
    options: dict[str, Any]  # its own, and those of its tube
    address: str | None  # in kinds round and reliable, its id
    utube: str | None
    group: Group | None = None
    no: int = 0
    status: Status = DONE
    created: int = 0
    expires: float = inf
    due: float = inf  # the end of its delay or of its lease
    ranks: list[float] = field(default_factory=list)  # its place among the tasks of its tube; ids break all ties
    attempts: int = 0
    lease: int = 0
    taken: int = 0
    delivery: int = 0  # the number of its last delivery in its tube
    owner: Session | None = None
    reason: str | None = None

    @property
    def pri(self) -> int:
        return self.options.get("pri") or 0

    @property
    def unstarted(self) -> bool:
        return self.group is not None and self.group.state == "open"

    @property
    def moment(self) -> float:
        """Its deadline. A taken task does not end by its ttl."""
        return self.due if self.status == TAKEN else min(self.due, self.expires)


class Model:
    """Everything that a store holds. `on_change` is called with every change: the tube, the event and the task."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self.clock = clock
        self.on_change: Callable[[Tube, str, Item], object] = lambda tube, event, item: None
        self.tubes: dict[str, Tube] = {}
        self.sessions: list[Session] = []  # oldest first
        self.works: list[tuple[str, object]] = []  # replies and group work that this call must put: tube and data

    def put_works(self) -> None:
        """Put replies and group work at the end of a call, even into a full tube. A missing tube is created."""
        while self.works:
            name, data = self.works.pop(0)
            tube = self.tubes.setdefault(name, Tube(self, name, "fifottl", {}))
            tube.store(tube.item(data, {}))

    def end_sessions(self) -> None:
        """End the handles that lapsed, and release what ended sessions held."""
        for session in self.sessions:
            for handle, lapse in sorted(session.handles.items(), key=lambda known: known[1]):
                if lapse <= self.clock():
                    session.part(handle, lapse)
        over = [session for session in self.sessions if session.until <= self.clock()]
        for session in sorted(over, key=lambda session: session.until):
            self.sessions.remove(session)
            for _, tube in sorted(self.tubes.items()):
                for item in [item for item in tube.items if item.owner is session]:
                    tube.give_back(item, "release")


class Tube:
    """A tube: its tasks in the order of their ids, and every operation on them."""

    def __init__(self, model: Model, name: str, kind: str, options: dict[str, Any]) -> None:
        self.model, self.name, self.kind, self.options = model, name, kind, options
        declared = find_kind(kind)  # tests/core/test_kind.py has the declarations of the built-in kinds
        self.accepts, self.order, self.per_utube = declared.accepts, declared.order, declared.per_utube
        self.leased = kind not in ("round", "reliable")
        self.retention = ms(options.get("retention", 7 * 24 * 3600))
        self.items: list[Item] = []
        self.groups: list[Group] = []
        self.outcomes: dict[str | None, tuple[Outcome, float]] = {}  # by address, each until a time
        self.turns: Counter[str | None] = Counter()  # of fair micro-queues
        self.counts: Counter[str] = Counter()
        self.last_mark = (0, 0)  # of kind reliable
        self.paused = False

    @property
    def now(self) -> int:
        return self.model.clock()

    def item(self, data: object, given: dict[str, Any]) -> Item:
        """A new task, with the tube's options as defaults."""
        options = {**self.options, **given}
        if "ttl" in options:
            options.setdefault("ttr", options["ttl"])
        utube = str(options["utube"]) if "utube" in options else None
        return Item(data, options, options.get("address", options.get("id")), utube)

    # putting

    def put(self, items: Sequence[Item]) -> list[Item]:
        """Put all tasks or, if this raises, none."""
        wanted = {item.address for item in items} - {None}
        lapsed = [item for item in self.items if item.address in wanted and self.expired(item)]
        there: dict[object, Item] = {item.address: item for item in self.items if item not in lapsed}
        fresh: list[Item] = []
        renewed: dict[Item, Item] = {}
        answer: list[Item] = []
        for item in items:
            known = there.setdefault(item if item.address is None else item.address, item)
            then = item.options.get("on_duplicate", "error")
            if known is item:
                fresh.append(item)
            elif then == "replace" and (known in fresh or known.status in (READY, DELAYED)):
                renewed[known] = item
            elif then != "ignore" and self.kind != "round":
                raise penstock.DuplicateAddress
            answer.append(known)
        if any(item.group is not None and not item.group.live for item in fresh):
            raise penstock.NotFound
        if fresh:
            self.must_hold(len(fresh) - len(lapsed))
        for item in lapsed:
            self.remove(item, "ttl")
        for known, item in renewed.items():
            known.data = item.data
            if self.kind != "round":  # which replaces only the data
                known.options |= {name: item.options.get(name) for name in ("pri", "ttl", "delay")}
        for item in fresh:
            self.store(item)
        for known in [known for known in renewed if known not in fresh]:
            if self.kind != "round":
                self.settle_in(known)
            self.model.on_change(self, "put", known)
        return answer

    def must_hold(self, more: int) -> None:
        if len(self.items) + more > self.options.get("capacity", inf):
            raise penstock.TubeFull

    def store(self, item: Item) -> None:
        item.no = self.counts["put"] + 1
        if self.kind == "round" and item.address is None:  # a reply
            item.address = f"reply-{item.no}"
        if self.kind == "reliable":
            last, seq = self.last_mark
            self.last_mark = last, seq = max((self.now, 1), (last, seq + 1))
            item.address = f"{last}-{seq}"
        if "group" in item.options:
            item.group = self.open_group(item.options["group"])
        if item.group is not None:
            item.group.total += 1
        self.items.append(item)
        self.settle_in(item)
        self.tell(item, "put")

    def settle_in(self, item: Item) -> None:
        """Count its delay and ttl and compute its place from now."""
        ttl, delay = item.options.get("ttl"), ms(item.options.get("delay"))
        item.created = self.now
        item.expires = inf if ttl is None else self.now + ms(ttl) + delay
        pri = item.pri * ms(self.options["aging"]) + self.now if "aging" in self.options else item.pri
        keys = {"pri": pri, "-id": -item.no, "expires": item.expires}
        item.ranks = [keys.get(key, 0) for key in self.order]
        self.move(item, DELAYED if delay else READY, delay)

    # changes of a task

    def move(self, item: Item, status: Status, lasts: int = 0) -> None:
        """Change a status: a task that would be ready waits for its group, and fair micro-queues take turns."""
        busy = any(other.utube == item.utube and other.status in (READY, TAKEN) for other in self.items)
        if status == READY and item.unstarted:
            status = DELAYED
        item.status, item.due = status, self.now + lasts if lasts else inf
        item.owner = None
        if "fair" in self.options and (status == TAKEN or (status == READY and not busy)):
            self.turns[item.utube] = max(self.now, self.turns[item.utube] + 1)

    def tell(self, item: Item, *events: str) -> None:
        for event in events:
            self.counts[event] += 1
            self.model.on_change(self, event, item)

    def expired(self, item: Item) -> bool:
        return item.status != TAKEN and item.expires <= self.now

    def remove(self, item: Item, verb: str, value: Any = None) -> None:
        """Remove a task: store its outcome, queue its reply, and perhaps end its group."""
        self.items.remove(item)
        self.move(item, DONE)
        item.reason = None
        self.tell(item, "delete" if verb == "cancel" else verb)
        ended = Outcome(ENDS[verb], value) if verb == "ack" else Outcome(ENDS[verb], error=value)
        self.outcomes[item.address] = (ended, self.now + self.retention)
        self.reply(item, ended)
        if item.group is not None:
            item.group.failed += verb == "fail"
            self.end_group(item.group)

    def reply(self, item: Item, ended: Outcome) -> None:
        if "reply_to" in item.options:
            reply: dict[str, object] = {"id": item.no, "address": item.address, "status": ended.status}
            reply |= {"result": ended.result} if ended.status == "done" else {"error": ended.error}
            self.model.works.append((item.options["reply_to"], reply))

    def give_back(self, item: Item, event: str, delay: int = 0) -> None:
        """End a lease, by release, ttr or the end of its session."""
        if item.expires <= self.now:
            self.remove(item, "ttl")
            self.tell(item, event)
        elif item.attempts >= item.options.get("max_attempts", inf):
            item.reason = item.reason or f"handed out {item.attempts} times without an ack"
            self.move(item, BURIED)
            self.tell(item, *(("ttr", "bury") if event == "ttr" else ("bury",)))
        else:
            item.expires += delay
            self.move(item, DELAYED if delay else READY, delay)
            self.tell(item, event)

    def advance(self) -> None:
        """Apply what is due, in the order of the deadlines."""
        self.model.end_sessions()
        due = [item for item in self.items if item.moment <= self.now]
        for item in sorted(due, key=lambda item: item.moment):
            if item.status == TAKEN:
                self.give_back(item, "ttr")
            elif self.expired(item):
                self.remove(item, "ttl")
            elif item.unstarted:
                item.due = inf
            else:
                self.move(item, READY)
                self.tell(item, "delay")
        self.outcomes = {address: kept for address, kept in self.outcomes.items() if kept[1] > self.now}
        self.groups = [group for group in self.groups if group.until > self.now]

    def settle(self, item: Item, verb: str, session: Session | None, lease: int | None, value: Any) -> bool:
        """Settle as the holder of the live lease. Bury, delete and cancel need no lease; a given one must be live."""
        if self.expired(item):
            self.remove(item, "ttl")
            return False
        alive = item.status == TAKEN and item.due > self.now and lease in (None, item.lease)
        mine = item.owner is session or self.kind == "reliable"
        if not ((alive or lease is None) if verb in ("bury", "delete", "cancel") else (alive and mine)):
            return False
        if verb in ENDS:
            self.remove(item, verb, value)
        elif verb == "release":
            self.give_back(item, "release", ms(value))
        else:
            if verb == "bury":
                item.reason = value or item.reason
                self.move(item, BURIED)
            else:  # touch
                item.due += ms(value)
            self.tell(item, verb)
        return True

    def kick(self, count: int) -> int:
        kicked = sorted((item for item in self.items if item.status == BURIED), key=lambda item: item.ranks)[:count]
        for item in kicked:
            item.attempts, item.reason = 0, None
            self.move(item, READY)
            self.tell(item, "kick")
        return len(kicked)

    def release_all(self) -> int:
        taken = [item for item in self.items if item.status == TAKEN]
        for item in taken:
            self.give_back(item, "release")
        return len(taken)

    def truncate(self) -> int:
        """Remove all tasks; those that wait behind the heads of a micro-queue first."""
        deleted, heads = 0, self.takeable()
        for item in sorted(self.items, key=lambda item: item.status != READY or item in heads):
            deleted += not self.expired(item)
            self.remove(item, "ttl" if self.expired(item) else "delete")
        return deleted

    def drop(self) -> None:
        if any(item.status == TAKEN for item in self.items):
            raise penstock.TubeBusy
        del self.model.tubes[self.name]
        for item in self.items:
            if item.options.get("reply_to") != self.name:
                self.reply(item, Outcome("deleted"))

    # taking

    def takeable(self) -> list[Item]:
        """All tasks that may be handed out, in order; of each micro-queue the first ones within its limit."""
        ready = [item for item in self.items if item.status == READY]
        if self.kind == "round":
            rested = [item for item in ready if item.taken + ms(self.options["period"]) <= self.now]
            return sorted(rested, key=lambda item: item.taken)
        busy = Counter(item.utube for item in self.items if item.status == TAKEN)
        heads = []
        for item in sorted(ready, key=lambda item: (item.ranks[0], self.turns[item.utube], item.ranks)):
            busy[item.utube] += 1
            if not self.per_utube or busy[item.utube] <= self.options.get("utube_limit", 1):
                heads.append(item)
        return heads

    def take(self, count: int, session: Session, max_pri: float) -> list[Item]:
        taken: list[Item] = []
        while len(taken) < count and not self.paused and (heads := self.takeable()) and heads[0].pri <= max_pri:
            taken.append(self.hand_out(heads[0], session))
        return taken

    def hand_out(self, item: Item, session: Session | None) -> Item:
        item.attempts += 1
        item.taken, item.delivery = self.now, self.counts["take"]
        if self.kind != "round":
            self.move(item, TAKEN, ms(item.options.get("ttr")))
        if self.leased:
            item.lease, item.owner = item.lease + 1, session
        self.tell(item, "take")
        return item

    def delivered(self) -> list[Item]:
        return sorted((item for item in self.items if item.status == TAKEN), key=lambda item: item.delivery)

    def recover(self, count: int, elapsed: float) -> list[Item]:
        old = takewhile(lambda item: item.taken + ms(elapsed) <= self.now, self.delivered())
        return [self.hand_out(item, None) for item in list(old)[: 0 if self.paused else count]]

    # groups

    def open_group(self, name: str) -> Group:
        """The live group of that name, or a new one."""
        if not any(group.live and group.name == name for group in self.groups):
            self.groups.append(Group(name))
        return next(group for group in self.groups if group.live and group.name == name)

    def members(self, group: Group) -> list[Item]:
        return [item for item in self.items if item.group is group]

    def turn_group(self, group: Group, to: str) -> None:
        """Start or cancel a group; a second time does nothing."""
        if not group.live or group.state == to:
            return
        members = self.members(group)
        if to in group.works and not members:
            self.must_hold(1)
        group.state = to
        for item in members if to == "cancelling" else sorted(members, key=lambda item: item.ranks):
            if to == "cancelling":
                self.remove(item, "cancel")
            elif item.status == DELAYED and not self.now < item.due < inf:
                self.move(item, READY)
        self.end_group(group)

    def end_group(self, group: Group) -> None:
        """End a group that has no tasks left, and queue its work."""
        if group.state in ("started", "cancelling") and not self.members(group):
            if group.state in group.works:
                self.model.works.append((self.name, group.works[group.state]))
            group.state = "done" if group.state == "started" else "cancelled"
            group.until = self.now + self.retention
