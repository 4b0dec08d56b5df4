"""A tube as programs hold it: every verb, for one session."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Unpack

from penstock import why
from penstock.core import codec, names
from penstock.core.ending import encode_code
from penstock.core.kind import kinds_with, must_have, unsupported
from penstock.core.lifecycle import Move
from penstock.core.numbers import MAX_SECONDS, positive_ms, span_ms, whole
from penstock.core.numbers import timeout as check_timeout
from penstock.core.options import PutOptions, encode_payload, make_entry, refuse_option
from penstock.core.options import Tube as StoredTube
from penstock.core.shards import refuse_group
from penstock.core.task import Entry, Facts, Place, Record, Status, Task, make_task
from penstock.errors import BadValue, NotFound, NotTaken, PenstockError, TubeFull, UnsupportedOption
from penstock.flow import Flow, Step, verb, verb_with
from penstock.group import Group
from penstock.outcome import Outcome, await_outcome
from penstock.stats import TubeStats, make_stats
from penstock.steps import Moves, Puts

if TYPE_CHECKING:
    from penstock.hub import Hub, OnChange
    from penstock.seat import Seat

log = logging.getLogger("penstock")

# put_many stores up to so many tasks in one step.
CHUNK = 10_000
MAX_PAGE = 10_000

_NOTHING = (None,) * 11
# Data of these types is its own decoded form.
_ATOMS = frozenset({str, int, float, bool, bytes, type(None)})

TaskOrId = Facts[Place] | int | str


class Tube:
    """A named queue of one kind. Safe to use from several threads."""

    def __init__(self, hub: Hub, seat: Seat, stored: StoredTube) -> None:
        self._hub = hub
        self._seat = seat
        self._stored = stored
        self._plain = hub.plain_put(stored)

    @property
    def name(self) -> str:
        """The tube's name."""
        return self._stored.name

    @property
    def kind(self) -> str:
        """The name of the tube's kind."""
        return self._stored.kind.name

    def __repr__(self) -> str:
        return f"<Tube {self.name} ({self.kind})>"

    # putting

    def _put_plain(self, data: object) -> Task | None:
        """Store one task without options by the store's own short way; None where it has none for this tube."""
        record = self._plain and self._plain(encode_payload(self._stored, "data", data))
        if record is None:
            return None
        self._hub.arrived(self._stored, record)
        return Task(record, self, data) if type(data) in _ATOMS else make_task(record, self)

    @verb_with(_put_plain)
    def put(
        self, data: object, *, pri: int | None = None, ttl: float | None = None, ttr: float | None = None,
        delay: float | None = 0, utube: str | int | None = None, id: str | None = None, rank: float | None = None,
        address: str | None = None, on_duplicate: str = "error", group: str | None = None,
        callback: str | None = None, reply_to: str | None = None, max_attempts: int | None = None,
        timeout: float | None = 0,
    ) -> Flow[Task]:  # fmt: skip
        """Store one task; when this returns, it is stored as durably as the store promises.

        A full tube makes it wait up to timeout (None: for ever), then raises TubeFull.
        """
        options: PutOptions = {}
        rare = (pri, ttl, ttr, utube, id, rank, address, group, callback, reply_to, max_attempts)
        if rare != _NOTHING or type(delay) is not int or delay or on_duplicate != "error":
            options = {
                "pri": pri, "ttl": ttl, "ttr": ttr, "delay": delay, "utube": utube, "id": id, "rank": rank,
                "address": address, "on_duplicate": on_duplicate, "group": group, "callback": callback,
                "reply_to": reply_to, "max_attempts": max_attempts,
            }  # fmt: skip
        record = (yield from self._store([make_entry(self._stored, data, options)], timeout))[0]
        same = type(data) in _ATOMS and address is id is None  # with one, it may be the task that was there
        return Task(record, self, data) if same else make_task(record, self)

    @verb
    def put_many(
        self, items: Iterable[object], *, timeout: float | None = 0, **shared: Unpack[PutOptions]
    ) -> Flow[list[Task]]:
        """Store many tasks in order, each `data` or `(data, {"pri": 1})`; atomic up to 10,000, then in such chunks."""
        return (yield from self._put_many(items, timeout, shared, None))

    def _put_many(
        self, items: Iterable[object], timeout: float | None, shared: PutOptions, bind: Callable[[Entry], Entry] | None
    ) -> Flow[list[Task]]:
        """As put_many; `bind` ties each entry to a group."""
        records: list[Record] = []
        feed = iter(items)
        while chunk := [self._entry(item, shared) for item in islice(feed, CHUNK)]:
            records += yield from self._store(chunk if bind is None else [bind(entry) for entry in chunk], timeout)
        return [make_task(record, self) for record in records]

    def _entry(self, item: object, shared: PutOptions) -> Entry:
        data, own = item if isinstance(item, tuple) and len(item) == 2 and isinstance(item[1], dict) else (item, {})
        return make_entry(self._stored, data, {**shared, **own} if own else shared)

    def _store(self, entries: Sequence[Entry], timeout: float | None) -> Flow[list[Record]]:
        limit, put = check_timeout(timeout), Puts(self, entries)
        try:
            records: list[Record] = yield put
        except TubeFull:
            if len(entries) > (self._stored.capacity or 0):
                raise
            return (yield from self._hub.put_when_room(self._stored, put, limit))
        return records

    def _put_now(self, entries: Sequence[Entry]) -> list[Record]:
        hub = self._hub
        stored = hub.store.put(self._stored, entries)
        hub.after(stored.effects)
        hub.note_records(self._stored, stored.records)
        return stored.records

    # taking

    @verb
    def take(self, timeout: float | None = None, *, max_pri: int | None = None) -> Flow[Task | None]:
        """The first ready task in the tube's order, leased to this session alone; None when nothing came.

        timeout None waits for ever, 0 never waits.
        """
        check_max_pri(self._stored, max_pri)
        tasks = yield from self._seat.take_tasks((self,), 1, timeout, max_pri)
        return tasks[0] if tasks else None

    @verb
    def take_many(self, count: int, timeout: float | None = 0, *, max_pri: int | None = None) -> Flow[list[Task]]:
        """Up to count ready tasks, in order; waits up to timeout for the first."""
        check_max_pri(self._stored, max_pri)
        return (yield from self._seat.take_tasks((self,), whole("count", count), timeout, max_pri))

    def _handed_out(self, records: Iterable[Record]) -> list[Task]:
        """What was taken, for people; a task whose data cannot be decoded is set aside and left out."""
        tasks = []
        for record in records:
            try:
                tasks.append(Task(record, self, codec.decode(record.payload), leased=True))
            except BadValue as error:
                self._set_aside(record, error)
        return tasks

    # settling

    @verb
    def ack(self, task_or_id: TaskOrId, result: object = None) -> Flow[None]:
        """Done: the task leaves the tube. NotTaken unless this session holds its live lease.

        The result is kept for whoever waits for the task's address, and goes into its reply.
        """
        payload = None if result is None else encode_payload(self._stored, "result", result)
        yield from self._settle_leased(task_or_id, self._move("ack", task_or_id, result=payload))

    @verb
    def ack_many(self, tasks: Iterable[TaskOrId]) -> Flow[list[bool] | list[str]]:
        """Ack each that this session still holds, in one step; a bool for each, in order.

        In kind reliable the ids that were really removed.
        """
        must_have(self._stored.kind, "ack")
        given = list(tasks)
        records: list[Record | None] = yield Moves(self, [self._move("ack", task) for task in given])
        for task, record in zip(given, records, strict=True):
            if isinstance(task, Facts) and record is not None:
                task.status = Status.DONE
        return self._acked(records)

    def _acked(self, records: Iterable[Record | None]) -> list[bool] | list[str]:
        return [record is not None for record in records]

    @verb
    def fail(self, task_or_id: TaskOrId, error: str, code: str | int | None = None) -> Flow[None]:
        """Failed for good: the task leaves the tube. NotTaken unless this session holds its live lease.

        Error and code are kept as ack's result is.
        """
        reason = names.text("error", error)
        if reason is None:
            raise BadValue("error is None: give a str that says what failed")
        move = self._move("fail", task_or_id, reason=reason, code=encode_code(code))
        yield from self._settle_leased(task_or_id, move)

    @verb
    def release(self, task_or_id: TaskOrId, delay: float | None = 0) -> Flow[None]:
        """Back to its old place, after delay seconds if the kind has delays. NotTaken unless held."""
        extra = span_ms("delay", 0 if delay is None else delay)
        if extra and "delay" not in self._stored.kind.accepts:
            refuse_option(self._stored.kind, "delay")
        yield from self._settle_leased(task_or_id, self._move("release", task_or_id, extra))

    @verb
    def touch(self, task_or_id: TaskOrId, seconds: float) -> Flow[None]:
        """So many seconds more for this hand-out; nothing happens when it has no deadline. NotTaken unless held."""
        if not self._stored.kind.timed:
            raise UnsupportedOption(f"kind {self.kind} has no ttr to touch: these have it: {kinds_with('ttr')}")
        extra = positive_ms("seconds", seconds)
        yield from self._settle_leased(task_or_id, self._move("touch", task_or_id, extra))

    @verb
    def bury(self, task_or_id: TaskOrId, reason: str | None = None) -> Flow[None]:
        """Aside, until kicked; by anyone, in any state. A Task from take must still be leased."""
        yield from self._settle_any("bury", task_or_id, reason=names.text("reason", reason))

    @verb
    def delete(self, task_or_id: TaskOrId) -> Flow[None]:
        """Gone; by anyone, in any state. A Task from take must still be leased."""
        yield from self._settle_any("delete", task_or_id)

    def kick(self, count: int = 1) -> int:
        """Un-bury up to count tasks, in take order; how many it were."""
        settled = self._hub.store.kick(self._stored, whole("count", count))
        self._hub.after(settled.effects)
        return len(settled.records)

    def release_all(self) -> int:
        """Release every taken task, whoever holds it; how many it were."""
        settled = self._hub.store.release_all(self._stored)
        self._hub.after(settled.effects)
        return len(settled.records)

    def truncate(self) -> int:
        """Remove every task, leases too; how many it were."""
        settled = self._hub.store.truncate(self._stored)
        self._hub.after(settled.effects)
        return len(settled.records)

    def drop(self) -> None:
        """Remove the tube with all its tasks. TubeBusy while tasks are taken or someone waits in take."""
        self._hub.tend()
        self._hub.catch_up(self._stored)  # told here: the drop itself may be refused, and then tells nothing
        effects = self._hub.store.drop_tube(self._stored)
        if effects is not None:
            self._hub.after(effects)
        self._hub.hint_waiters()

    @verb
    def _give_back(self, task: Facts[Place], error: BaseException) -> Flow[None]:
        """Release a task whose `with` block raised, after the tube's back-off if it has one."""
        backoff = self._stored.backoff
        delay = 0.0 if backoff is None else backoff.delay(task.attempts, random.random())
        reason = names.text("reason", f"{type(error).__name__}: {error}")
        try:
            extra = span_ms("delay", min(delay, MAX_SECONDS))
            yield from self._settle_leased(task, self._move("release", task, extra, reason))
        except PenstockError as lost:
            # The block's own error matters more than that the task could not be given back.
            log.warning("%s", lost)

    def _set_aside(self, record: Record, error: BadValue) -> None:
        """Bury a task that was handed out and cannot be decoded."""
        self._settle_now([Move("bury", record.id, lease=record.lease, reason=str(error))])

    def _untaken(self, tasks: Iterable[Task]) -> Step | None:
        """What gives back tasks that were handed out to a caller who never saw them."""
        session = self._seat.number
        return Moves(self, [Move("release", task.id, session, task.lease, unstarted=True) for task in tasks])

    def _settle_now(self, moves: Sequence[Move]) -> list[Record | None]:
        """Guarded moves; of each the task afterwards, or None where the guard failed."""
        brief = not self._hub.is_listened(self._stored)
        settled = self._hub.store.settle(self._stored, moves, brief=brief)
        self._hub.after(settled.effects)
        self._hub.note_records(self._stored, [record for record in settled.records if record is not None])
        return settled.records

    def _move(
        self, verb: str, task: TaskOrId, extra: int = 0, reason: str | None = None, *, result: bytes | None = None,
        code: str | None = None,
    ) -> Move:  # fmt: skip
        session = self._seat.number
        if isinstance(task, Facts):
            record = self._own(task)
            lease = record.lease if record.state == "t" else None
            return Move(verb, record.id, session, lease, extra, reason, False, result, code)
        return Move(verb, names.task_id(task), session, None, extra, reason, False, result, code)

    def _own(self, task: Facts[Place]) -> Record:
        if task.tube != self.name:
            raise BadValue(f"task {task.id} is of tube {task.tube}, not {self.name}: settle it there")
        if task._home._stored.no != self._stored.no:
            raise NotTaken(f"task {task.id} was of an earlier tube {self.name}, which was dropped: forget it")
        return task._record

    def _settle_leased(self, task: TaskOrId, move: Move) -> Flow[None]:
        record: Record | None = (yield Moves(self, (move,)))[0]
        if record is None:
            raise self._not_taken(move)
        _told(task, record)

    def _not_taken(self, move: Move) -> NotTaken:
        return NotTaken(
            f"task {move.id} of tube {self.name} is not held by this session (any more), so it cannot "
            f"{move.verb} it: its lease lapsed, was settled, or is another's; drop the result"
        )

    def _free_move(self, verb: str, task: TaskOrId, reason: str | None) -> Move:
        if isinstance(task, Facts):
            record = self._own(task)
            return Move(verb, record.id, lease=record.lease if task._leased else None, reason=reason)
        return Move(verb, names.task_id(task), reason=reason)

    def _settle_any(self, verb: str, task: TaskOrId, reason: str | None = None) -> Flow[None]:
        move = self._free_move(verb, task, reason)
        after: Record | None = (yield Moves(self, (move,)))[0]
        if after is None and move.lease is not None:
            raise NotTaken(
                f"task {move.id} of tube {self.name} is not held any more: its lease is dead; peek before you {verb}"
            )
        if after is None:
            raise self._not_found(move.shown)
        _told(task, after)

    # looking

    def peek(self, id: TaskOrId) -> Task:
        """The task as it stands, whoever has it; NotFound when it is not in the tube."""
        record = self._current(id)
        if record is None:
            raise self._not_found(id.id if isinstance(id, Facts) else id)
        return make_task(record, self)

    def _not_found(self, id: object) -> NotFound:
        return NotFound(f"task {id} is not in tube {self.name}: it was never put, or has left it")

    def _current(self, id: TaskOrId) -> Record | None:
        """The task as it stands after everything that is due has been done to it."""
        self._hub.tend()
        record = self._get(id)
        if record is None or (record.at is None and record.state != "t" and record.group is None):
            return record
        self._hub.catch_up(self._stored)
        return self._get(id)

    def _get(self, id: TaskOrId) -> Record | None:
        number = self._own(id).id if isinstance(id, Facts) else names.task_id(id)
        return self._hub.store.get(self._stored, [number])[0]

    def _number(self, id: TaskOrId) -> int:
        """The store's own number of a task, which orders them."""
        return id._record.id if isinstance(id, Facts) else names.task_id(id)

    def tasks(
        self, status: Status | str | None = None, *, limit: int = 100, after: TaskOrId | None = None
    ) -> list[Task]:
        """Up to limit tasks in id order, of one status if given; go on with `after` the last one's id."""
        if status is not None and status not in list(Status):
            raise BadValue(f"status {names.shown(status)} is unknown: use one of {', '.join(map(repr, Status))}")
        whole("limit", limit, 1, MAX_PAGE)
        last = None if after is None else self._number(after)
        if status == Status.DONE:
            return []
        self._hub.tend()
        self._hub.catch_up(self._stored)
        letter = None if status is None else str(status)
        return [make_task(record, self) for record in self._hub.store.find(self._stored, letter, last, limit)]

    def stats(self) -> TubeStats:
        """The tube's counters now, exact; what is due is done first."""
        self._hub.tend()
        self._hub.catch_up(self._stored)
        return make_stats(self._hub.store.count(self._stored))

    def __len__(self) -> int:
        return self.stats().tasks.total

    def __bool__(self) -> bool:
        return True  # an empty tube is still a tube

    def __contains__(self, id: object) -> bool:
        return self._current(id) is not None  # type: ignore[arg-type]

    def why(self, id: TaskOrId) -> str:
        """Why this task is not running: what holds it back, who, since when, until when."""
        return why.explain(self._hub.store, self._stored, self.peek(id)._record)

    # addresses and groups

    @verb
    def wait(self, address: str, timeout: float | None = None) -> Flow[Outcome]:
        """How the task ends that holds the address now; TimeoutError when that does not come in time.

        An address without a task gives its last outcome, or done without a result when none is known (any more).
        """
        return (yield from await_outcome(self._hub, self._stored, address, timeout))

    def group(self, name: str) -> Group:
        """The live group of that name, or a new one."""
        refuse_group(self.name, self._stored.shards)
        return Group(self, name)

    # steering

    def pause(self) -> None:
        """From now on take returns nothing, everywhere; puts go on."""
        self._hub.store.pause_tube(self._stored, True)

    def resume(self) -> None:
        """End a pause, and wake those who wait."""
        self._hub.store.pause_tube(self._stored, False)
        self._hub.room.wake(("ready", self._stored.no), hint=True)

    def on_change(self, callback: OnChange | None) -> OnChange | None:
        """Call callback(task, event) after each change this broker makes to the tube; the previous one.

        It belongs to the tube in this broker, whichever handle set it; None ends it.
        """
        if callback is not None and not callable(callback):
            raise BadValue(f"on_change callback {names.shown(callback)} cannot be called: give a function or None")
        return self._hub.listen(self._stored, self, callback)

    # kind reliable

    def recover(self, count: int, elapsed: float) -> list[Task]:
        """Hand out again what was delivered at least elapsed seconds ago and never acked (kind reliable)."""
        raise unsupported(self._stored.kind, "recover")

    def inspect(self, start: int, count: int, pending: bool = False) -> list[Task]:
        """Read the undelivered or the delivered list (kind reliable)."""
        raise unsupported(self._stored.kind, "inspect")


def _told(task: TaskOrId, record: Record) -> None:
    if isinstance(task, Facts):
        task._after(record)


def check_max_pri(tube: StoredTube, max_pri: int | None) -> None:
    """UnsupportedOption where pri does not lead the order."""
    if max_pri is None:
        return
    whole("max_pri", max_pri, 0)
    if tube.kind.order[0] != "pri" or tube.aging is not None:
        raise UnsupportedOption(f"tube {tube.name} is not ordered by pri first, so it has no max_pri: leave it out")
