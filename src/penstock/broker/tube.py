"""The handle of a tube: every verb, for one session.

The functions at the end are for other modules of penstock; they are not part of the public interface.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Unpack, cast

import msgspec

from penstock.broker import why
from penstock.broker.group_handle import Group
from penstock.broker.outcome import Outcome, await_outcome
from penstock.broker.stats import TubeStats, make_stats
from penstock.core import codec, names
from penstock.core.ending import encode_code
from penstock.core.entry import encode_payload, make_entry, plain_entry
from penstock.core.kind import kinds_with, must_have, unsupported
from penstock.core.lease import HandOut
from penstock.core.lifecycle import Move
from penstock.core.options import AlterOptions, PutOptions, TimedOptions, check_changes, refuse_option
from penstock.core.options import Tube as StoredTube
from penstock.core.select import Find, Sweep
from penstock.core.shards import refuse_sharded
from penstock.core.task import (
    Entry,
    Facts,
    Record,
    Status,
    Task,
    TubeRef,
    is_leased,
    make_task,
    record_of,
    show_change,
    tube_of,
)
from penstock.core.values import MAX_SECONDS, Seconds, positive_ms, several, span_ms, whole
from penstock.engine.store import load_tube
from penstock.errors import (
    BadValue,
    NotFound,
    NotTaken,
    OutcomeUnknown,
    PenstockError,
    StoreUnavailable,
    UnsupportedOption,
)
from penstock.operations.operation import Call, Operation, StoreOp, blocking, blocking_with_fast_path
from penstock.operations.store_ops import PutOp, SettleOp, put_entries, put_items, settle
from penstock.runtime.failures import local_failure
from penstock.runtime.wait_queue import pauses

if TYPE_CHECKING:
    from penstock.broker.session import SessionHandle
    from penstock.runtime.runtime import BrokerRuntime, OnChange

log = logging.getLogger("penstock")

TaskOrId = Facts[TubeRef] | HandOut | int | str

# Default limit of tasks(); one store call reads at most MAX_PAGE.
PAGE, MAX_PAGE = 100, 10_000
# One store call reads at most this many bytes, if every task is as large as its tube allows.
READ_BYTES = 32 * 1024 * 1024
# What a task may contain besides its data: a reason, and the errors of its last attempts.
TEXT_BYTES = 128 * 1024
# For this many seconds the end of a `with` block retries while the server is unavailable. A session without heartbeats
# lapses after 15.
PATIENCE = 10.0

_NOTHING = (None,) * 11
# Data of these types is its own decoded form.
ATOMS = frozenset({str, int, float, bool, bytes, type(None)})


class Tube:
    """A named queue of one kind. Safe to use from several threads."""

    def __init__(self, runtime: BrokerRuntime, session_handle: SessionHandle, stored: StoredTube) -> None:
        #: Internal: what the handles of one broker share.
        self.runtime = runtime
        #: Internal: the session that takes and settles here.
        self.session_handle = session_handle
        self._use(stored)
        runtime.add_tube(self)

    def _use(self, stored: StoredTube) -> None:
        """Use altered options from now on."""
        #: Internal: the tube as the store has it.
        self.stored = stored
        self._plain = fast_put(self, plain_entry(stored, b""))

    @property
    def name(self) -> str:
        """The tube's name."""
        return self.stored.name

    @property
    def kind(self) -> str:
        """The name of the tube's kind."""
        return self.stored.kind.name

    def __repr__(self) -> str:
        return f"<Tube {self.name} ({self.kind})>"

    # Put.

    def _put_plain(self, data: object) -> Task | None:
        """Put one task without options by the store's fast path; None if it has none for this tube."""
        if self.runtime.is_stale:
            self.runtime.refresh_tubes()
        record = self._plain and self._plain(data)
        if record is None:
            return None
        return Task(record, self, data) if type(data) in ATOMS else make_task(record, self)

    @blocking_with_fast_path(_put_plain)
    def put(
        self, data: object, *, pri: int | None = None, ttl: Seconds | None = None, ttr: Seconds | None = None,
        delay: Seconds | None = 0, at: datetime | None = None, utube: str | int | None = None, id: str | None = None,
        rank: float | None = None, address: str | None = None, on_duplicate: str = "error", group: str | None = None,
        callback: str | None = None, reply_to: str | None = None, max_attempts: int | None = None,
        timeout: Seconds | None = 0,
    ) -> Operation[Task]:  # fmt: skip
        """Store one task. When this returns, it is as durable as the store promises.

        Seconds may be a timedelta. `at`, an aware datetime, is used instead of a delay; one in the past means now.
        If the tube is full, waits up to timeout seconds (None: forever), then raises TubeFull.
        """
        if self.runtime.is_stale:
            yield Call(self.runtime.refresh_tubes)
        options: PutOptions = {}
        rare = (pri, ttl, ttr, utube, id, rank, address, group, callback, reply_to, max_attempts)
        if rare != _NOTHING or type(delay) is not int or delay or on_duplicate != "error":
            options = {
                "pri": pri, "ttl": ttl, "ttr": ttr, "delay": delay, "utube": utube, "id": id, "rank": rank,
                "address": address, "on_duplicate": on_duplicate, "group": group, "callback": callback,
                "reply_to": reply_to, "max_attempts": max_attempts,
            }  # fmt: skip
        if at is not None:
            timed: TimedOptions = {**options, "at": at}
            [record] = yield from put_items(self.runtime, self.stored, [(data, timed)], timeout, {})
            return make_task(record, self)
        entry = make_entry(self.stored, data, options)
        record = (yield from put_entries(self.runtime, self.stored, [entry], timeout))[0]
        same = type(data) in ATOMS and address is id is None  # with one, it may be the existing task
        return Task(record, self, data) if same else make_task(record, self)

    @blocking
    def put_many(
        self, items: Iterable[object], *, timeout: Seconds | None = 0, **shared: Unpack[TimedOptions]
    ) -> Operation[list[Task]]:
        """Store many tasks in order, each `data` or `(data, {"pri": 1})`; atomic up to 10,000, then in such chunks."""
        if self.runtime.is_stale:
            yield Call(self.runtime.refresh_tubes)
        records = yield from put_items(self.runtime, self.stored, items, timeout, shared)
        return [make_task(record, self) for record in records]

    # Take.

    @blocking
    def take(self, timeout: Seconds | None = None, *, max_pri: int | None = None) -> Operation[Task | None]:
        """Take the first ready task in the tube's order, leased to this session alone; None if none came in time.

        timeout None waits forever, 0 never waits.
        """
        check_max_pri(self.stored, max_pri)
        tasks = yield from self.session_handle.take_tasks((self,), 1, timeout, max_pri)
        return tasks[0] if tasks else None

    @blocking
    def take_many(
        self, count: int, timeout: Seconds | None = 0, *, max_pri: int | None = None
    ) -> Operation[list[Task]]:
        """Take up to count ready tasks, in order; waits up to timeout seconds for the first."""
        check_max_pri(self.stored, max_pri)
        return (yield from self.session_handle.take_tasks((self,), whole("count", count), timeout, max_pri))

    def _set_aside(self, record: Record, error: BadValue) -> None:
        """Bury a taken task that cannot be decoded."""
        move = Move("bury", record.id, lease=record.lease, reason=str(error), seen=record)
        settle(self.runtime, self.stored, [move])

    def _release_untaken(self, tasks: Iterable[Task]) -> StoreOp | None:
        """Return the operation that releases tasks whose caller never received them."""
        session = self.session_handle.number
        moves = [Move("release", task.id, session, record_of(task).lease, unstarted=True) for task in tasks]
        return SettleOp(self.runtime, self.stored, moves)

    # Settle one or several tasks.

    @blocking
    def ack(self, task_or_id: TaskOrId, result: object = None) -> Operation[None]:
        """Mark a task as done: it leaves the tube. NotTaken unless this session holds its live lease.

        The result is kept for callers that wait for the task's address, and goes into its reply.
        """
        payload = None if result is None else encode_payload(self.stored, "result", result)
        yield from self._settle_leased(task_or_id, self._move("ack", task_or_id, result=payload))

    @blocking
    def ack_many(self, tasks: Iterable[TaskOrId]) -> Operation[list[bool] | list[str]]:
        """Ack each task that this session still holds, in one store call. Returns a bool for each, in order.

        In kind reliable, returns the ids that were really removed.
        """
        must_have(self.stored.kind, "ack")
        given = list(several("tasks", tasks))
        records: list[Record | None] = yield self._settle_op([self._move("ack", task) for task in given])
        for task, record in zip(given, records, strict=True):
            if isinstance(task, Facts) and record is not None:
                task.status = Status.DONE
        return self._acked(records)

    def _acked(self, records: Iterable[Record | None]) -> list[bool] | list[str]:
        return [record is not None for record in records]

    @blocking
    def fail(self, task_or_id: TaskOrId, error: str, code: str | int | None = None) -> Operation[None]:
        """Mark a task as failed for good: it leaves the tube. NotTaken unless this session holds its live lease.

        Error and code are kept like the result of an ack.
        """
        reason = names.text("error", error)
        if reason is None:
            raise BadValue("error is None: give a str that says what failed")
        move = self._move("fail", task_or_id, reason=reason, code=encode_code(code))
        move = msgspec.structs.replace(move, failure=local_failure(reason))
        yield from self._settle_leased(task_or_id, move)

    @blocking
    def release(self, task_or_id: TaskOrId, delay: Seconds | None = 0) -> Operation[None]:
        """Put a task back at its old place, after delay seconds if the kind has delays. NotTaken unless held."""
        extra = span_ms("delay", 0 if delay is None else delay)
        if extra and "delay" not in self.stored.kind.accepts:
            refuse_option(self.stored.kind, "delay")
        yield from self._settle_leased(task_or_id, self._move("release", task_or_id, extra))

    @blocking
    def touch(self, task_or_id: TaskOrId, seconds: Seconds) -> Operation[None]:
        """Extend this lease by some seconds; does nothing if it has no deadline. NotTaken unless held."""
        if not self.stored.kind.timed:
            raise UnsupportedOption(f"kind {self.kind} has no ttr to touch: use one of {kinds_with('ttr')}")
        extra = positive_ms("seconds", seconds)
        yield from self._settle_leased(task_or_id, self._move("touch", task_or_id, extra))

    @blocking
    def bury(self, task_or_id: TaskOrId, reason: str | None = None) -> Operation[None]:
        """Set a task aside until it is kicked. With an id, in any state; a Task from take must still be leased."""
        yield from self._settle_any("bury", task_or_id, reason=names.text("reason", reason))

    @blocking
    def delete(self, task_or_id: TaskOrId | None = None, *, address: str | None = None) -> Operation[None]:
        """Remove a task, or the one that holds an address, in any state.

        A Task from take must still be leased.
        """
        yield from self._settle_any("delete", task_or_id, address=address)

    @blocking
    def cancel(
        self, task_or_id: TaskOrId | None = None, reason: str | None = None, *, address: str | None = None
    ) -> Operation[bool]:
        """End the task, or the one that holds an address, with the outcome `cancelled`, in any state.

        Returns False if it is not in the tube. A handler that runs it loses its lease. A Task from take must still be
        leased, otherwise NotTaken.
        """
        try:
            yield from self._settle_any("cancel", task_or_id, names.text("reason", reason), address)
        except NotFound:
            return False
        return True

    @blocking
    def _finish(self, task: Facts[TubeRef]) -> Operation[None]:
        """Ack a task whose `with` block has ended."""
        yield from self._settle_patiently(task, self._move("ack", task))

    @blocking
    def _release_failed(self, task: Facts[TubeRef], error: BaseException) -> Operation[None]:
        """Release a task whose `with` block raised, after the tube's back-off if it has one."""
        backoff = self.stored.backoff
        delay = 0.0 if backoff is None else backoff.delay(task.attempts, random.random())
        reason = names.text("reason", names.failure(error))
        try:
            extra = span_ms("delay", min(delay, MAX_SECONDS))
            yield from self._settle_patiently(task, self._move("release", task, extra, reason))
        except PenstockError as lost:
            # The block's own error matters more than the failed release.
            log.warning("could not release task %s of tube %s: %s", task.id, self.name, lost)

    def _settle_patiently(self, task: Facts[TubeRef], move: Move) -> Operation[None]:
        """Settle at the end of a `with` block, where no caller can retry. The lease makes a repeated move safe."""
        apply: Callable[[Facts[TubeRef], Move], Operation[None]] = self._settle_leased
        unknown, ends = None, float("inf")
        for pause in pauses():
            try:
                return (yield from apply(task, move))
            except (StoreUnavailable, OutcomeUnknown) as error:
                if isinstance(error, OutcomeUnknown):
                    apply, unknown = self._settle_again, error
                ends = min(ends, time.monotonic() + PATIENCE)
                if time.monotonic() >= ends or not self.session_handle.may_retry(error):
                    raise unknown or error from error.__cause__
            yield from self.session_handle.pause(pause)

    def _settle_again(self, task: Facts[TubeRef], move: Move) -> Operation[None]:
        """Like _settle_leased, but a move that was applied already counts as a success."""
        try:
            yield from self._settle_leased(task, move)
        except NotTaken:
            record: Record | None = yield Call(lambda: self._get(task))
            if move.verb == "ack" and record is None:
                task.status = Status.DONE
            elif move.verb == "release" and record is not None and record.lease == move.lease:
                _update(task, record)
            else:  # the lease has ended, and the move was never applied
                raise

    def _move(
        self, verb: str, task: TaskOrId, extra: int = 0, reason: str | None = None, *, result: bytes | None = None,
        code: str | None = None,
    ) -> Move:  # fmt: skip
        session = self.session_handle.number
        if isinstance(task, Facts):
            record = self._own(task)
            lease = record.lease if record.state == "t" else None
            return Move(verb, record.id, session, lease, extra, reason, False, result, code, seen=record)
        id, known = task if isinstance(task, HandOut) else (task, None)
        return Move(verb, names.task_id(id), session, known, extra, reason, False, result, code)

    def _own(self, task: Facts[TubeRef]) -> Record:
        if tube_of(task) is self:
            return record_of(task)
        if task.tube != self.name:
            raise BadValue(f"task {task.id} is of tube {task.tube}, not {self.name}: settle it there")
        if tube_of(task).stored.no != self.stored.no:
            raise NotTaken(f"task {task.id} belongs to an earlier tube {self.name}, which was dropped: discard it")
        return record_of(task)

    def _settle_op(self, moves: Sequence[Move]) -> SettleOp:
        return SettleOp(self.runtime, self.stored, moves)

    def _settle_leased(self, task: TaskOrId, move: Move) -> Operation[None]:
        record: Record | None = (yield self._settle_op((move,)))[0]
        if record is None:
            raise self._not_taken(move)
        _update(task, record)

    def _not_taken(self, move: Move) -> NotTaken:
        return NotTaken(
            f"cannot {move.verb} task {move.id} of tube {self.name}: it is not held by this session, because its lease "
            "expired, was settled or belongs to another session; discard the result"
        )

    def _free_move(self, verb: str, task: TaskOrId, reason: str | None) -> Move:
        if isinstance(task, Facts):
            record = self._own(task)
            lease = record.lease if is_leased(task) else None
            return Move(verb, record.id, lease=lease, reason=reason, seen=record)
        id, known = task if isinstance(task, HandOut) else (task, None)
        return Move(verb, names.task_id(id), lease=known, reason=reason)

    def _settle_any(
        self, verb: str, task: TaskOrId | None, reason: str | None = None, address: str | None = None
    ) -> Operation[None]:
        if address is not None:
            return (yield from self._settle_address(verb, task, reason, address))
        move = self._free_move(verb, cast(TaskOrId, task), reason)
        after: Record | None = (yield self._settle_op((move,)))[0]
        if after is None and move.lease is not None:
            raise NotTaken(
                f"task {move.id} of tube {self.name} is no longer held: its lease has ended; peek before you {verb}"
            )
        if after is None:
            raise self._not_found(move.shown)
        _update(cast(TaskOrId, task), after)

    def _settle_address(self, verb: str, task: TaskOrId | None, reason: str | None, address: str) -> Operation[None]:
        """Settle the task that holds the address, by its id. If that task has just left, settle its successor."""
        settled: Record | None = None
        while settled is None:
            record: Record | None = yield Call(lambda: self._get(task, address))
            if record is None:
                raise self._not_found(f"of address {address}")
            settled = (yield self._settle_op((Move(verb, record.id, reason=reason),)))[0]

    # Settle many tasks.

    def kick(self, count: int | None = 1) -> int:
        """Kick up to `count` buried tasks, in take order. Returns how many were kicked."""
        return self._sweep(Sweep("kick", 1 if count is None else whole("count", count)))

    def release_all(self) -> int:
        """Release every taken task, whichever session holds it. Returns how many were released."""
        return self._sweep(Sweep("release"))

    def truncate(self) -> int:
        """Remove every task, leases too. Returns how many were removed."""
        return self._sweep(Sweep("delete"))

    def _sweep(self, sweep: Sweep) -> int:
        settled = self.runtime.store.sweep(self.stored, sweep)
        self.runtime.publish(settled.effects)
        return len(settled.records)

    def drop(self) -> None:
        """Remove the tube with all its tasks. Raises TubeBusy while tasks are taken or a take is blocked on it."""
        self.runtime.reap_if_due()
        self.runtime.apply_due(self.stored)  # published here: a drop that is refused publishes nothing
        effects = self.runtime.store.drop_tube(self.stored)
        if effects is not None:
            self.runtime.publish(effects)
        self.runtime.hint_waiters()

    # Look at tasks.

    def peek(self, id: TaskOrId | None = None, *, address: str | None = None) -> Task:
        """Read a task, or the one that holds an address, whichever session holds it; NotFound if it has left."""
        record = current_record(self, id, address)
        if record is None:
            raise self._not_found(id.id if isinstance(id, Facts) else f"of address {address}" if id is None else id)
        return make_task(record, self)

    def _get(self, id: TaskOrId | None, address: str | None = None) -> Record | None:
        """The stored record of an id or an address; None if the task is not in the tube."""
        if address is not None:
            must_have(self.stored.kind, "address")
            if id is not None:
                raise BadValue("an id and an address are given: give one of them")
            return self.runtime.store.get(self.stored, [names.label("address", address)])[0]
        number = self._own(id).id if isinstance(id, Facts) else names.task_id(id)
        return self.runtime.store.get(self.stored, [number])[0]

    def _number(self, id: TaskOrId) -> int:
        """The store's own number of a task, which orders them."""
        return record_of(id).id if isinstance(id, Facts) else names.task_id(id)

    def _not_found(self, id: object) -> NotFound:
        return NotFound(f"task {id} is not in tube {self.name}: it was never put, or has left it")

    def tasks(
        self, status: Status | str | None = None, *, limit: int | None = PAGE, after: TaskOrId | None = None
    ) -> list[Task]:
        """List up to limit tasks in id order, of one status if given. `after` the last one's id continues the list."""
        most = PAGE if limit is None else whole("limit", limit)
        last = 0 if after is None else self._number(after)
        return [make_task(record, self) for record in find_records(self, status, most, last)]

    def stats(self) -> TubeStats:
        """Read the tube's counters, which are exact; everything due is applied first."""
        self.runtime.reap_if_due()
        self.runtime.apply_due(self.stored)
        return make_stats(self.runtime.store.counters(self.stored).counts)

    def __len__(self) -> int:
        return self.stats().tasks.total

    def __bool__(self) -> bool:
        return True  # an empty tube is still a tube

    def __contains__(self, id: object) -> bool:
        if isinstance(id, str) and self.stored.kind.leased:
            return current_record(self, None, id) is not None
        return current_record(self, id) is not None  # type: ignore[arg-type]

    def why(self, id: TaskOrId | None = None, *, address: str | None = None) -> str:
        """Explain why this task is not running: what holds it back, who, since when, until when."""
        return why.explain(self.runtime.store, self.stored, record_of(self.peek(id, address=address)))

    # Addresses and groups.

    @blocking
    def wait(self, address: str, timeout: Seconds | None = None) -> Operation[Outcome]:
        """Wait for the task that holds the address now. Returns its outcome; TimeoutError if it does not end in time.

        An address without a task gives its last outcome, or `unknown` if none is kept.
        """
        return (yield from await_outcome(self.runtime, self.stored, address, timeout))

    def group(self, name: str, *, create: bool = True) -> Group:
        """Open the live group of that name, or begin a new one.

        With create=False, returns the live one, else the one that ended last; NotFound if there is neither.
        """
        refuse_sharded("groups", self.name, self.stored.shards)
        return Group(self, name, create=create)

    # Control.

    def pause(self) -> None:
        """Pause the tube: take returns nothing, in every process; puts are still accepted."""
        self.runtime.store.write_tube(self.stored, paused=True)

    def resume(self) -> None:
        """End the pause of the tube, and wake blocked takes."""
        self.runtime.store.write_tube(self.stored, paused=False)
        self.runtime.wait_queue.wake(("ready", self.stored.no), hint=True)

    @blocking
    def alter(self, **options: Unpack[AlterOptions]) -> Operation[None]:
        """Change options of the tube for later puts and takes; None resets an option to its default.

        Handles in other processes notice within a second. Tasks keep the values that they were put with.
        """
        yield Call(lambda: self._alter(options))

    def _alter(self, options: Mapping[str, object]) -> None:
        runtime, stored = self.runtime, load_tube(self.runtime.store, self.name)
        changes = check_changes(self.stored if stored is None else stored, options)
        runtime.share_tube(runtime.store.write_tube(self.stored, changes=changes))
        for topic in ("ready", "room"):  # a larger utube_limit or capacity
            runtime.wait_queue.wake((topic, self.stored.no), hint=True)

    def on_change(self, callback: OnChange | None) -> OnChange | None:
        """Call callback(task, event) after each change that this broker makes to the tube. Returns the previous one.

        It belongs to the tube in this broker, whichever handle set it; None removes it.
        """
        if callback is not None and not callable(callback):
            raise BadValue(f"on_change callback {names.shown(callback)} cannot be called: give a function or None")
        return self.runtime.set_listener(self.stored, self, callback)

    # Kind reliable.

    def recover(self, count: int, elapsed: Seconds) -> list[Task]:
        """Deliver messages again that were delivered at least `elapsed` seconds ago and never acked (kind reliable)."""
        raise unsupported(self.stored.kind, "recover")

    def inspect(self, start: int, count: int, pending: bool | None = False) -> list[Task]:
        """Read a range of the undelivered or, with `pending`, of the delivered messages (kind reliable)."""
        raise unsupported(self.stored.kind, "inspect")


def _update(task: TaskOrId, record: Record) -> None:
    if isinstance(task, Facts):
        show_change(task, record)


def find_records(
    tube: Tube, status: Status | str | None, limit: int, after: int = 0, *, advance: bool = True
) -> Iterator[Record]:
    """The records of tasks whose number is above `after`, in id order, read few at a time.

    `advance`: apply everything due first. A caller that lists several states needs that only once.
    """
    if status is not None and status not in list(Status):
        raise BadValue(f"status {names.shown(status)} is unknown: use one of {', '.join(map(repr, Status))}")
    if status == Status.DONE:
        return
    if advance:
        tube.runtime.reap_if_due()
        tube.runtime.apply_due(tube.stored)
    letter = None if status is None else str(status)
    while limit > 0:
        want = min(limit, per_call(tube.stored))
        page = tube.runtime.store.find(tube.stored, Find(letter, max(after, 0), want))
        yield from page
        if len(page) < want:
            return
        after, limit = page[-1].id, limit - want


def task_number(tube: Tube, id: TaskOrId) -> int:
    """The store's own number of a task, by which `find_records` continues."""
    return tube._number(id)


def per_call(tube: StoredTube, size: int = READ_BYTES) -> int:
    """How many tasks one store call may return, so that they have at most `size` bytes together."""
    return max(1, min(MAX_PAGE, size // (tube.max_payload + TEXT_BYTES)))


def check_max_pri(tube: StoredTube, max_pri: int | None) -> None:
    """Raise UnsupportedOption if pri does not lead the tube's order."""
    if max_pri is None:
        return
    whole("max_pri", max_pri, 0)
    if tube.kind.order[0] != "pri" or tube.aging is not None:
        raise UnsupportedOption(f"tube {tube.name} is not ordered by pri first, so it has no max_pri: leave it out")


def fast_put(tube: Tube, entry: Entry) -> Callable[[object], Record | None] | None:
    """Return a function that puts data by the store's fast path, with everything else as in the entry.

    Returns None if there is no fast path for it. If the function returns None, put the task the general way.
    """
    runtime, stored, plain = tube.runtime, tube.stored, tube.runtime.plain_put(tube.stored, entry)
    if plain is None:
        return None

    def put(data: object) -> Record | None:
        record = plain(encode_payload(stored, "data", data))
        if record is not None:
            runtime.publish_put(stored, record)
        return record

    return put


def plain_put_op(tube: Tube, data: object) -> PutOp | None:
    """The single store operation of a put without options; None if the tube has a capacity, because it may be full."""
    stored = tube.stored
    return PutOp(tube.runtime, stored, (make_entry(stored, data, {}),)) if stored.capacity is None else None


def taken_tasks(tube: Tube, records: Iterable[Record]) -> list[Task]:
    """Make tasks of taken records. Buries and leaves out tasks whose data cannot be decoded."""
    tasks = []
    for record in records:
        payload = record.payload
        try:
            data = payload[1:] if payload[:1] == codec.RAW else codec.decode_json(payload)
        except codec.UNREADABLE as error:
            tube._set_aside(record, codec.unreadable(error))
        else:
            tasks.append(Task(record, tube, data, leased=True))
    return tasks


def release_untaken(tube: Tube, tasks: Iterable[Task]) -> StoreOp | None:
    """The operation that releases tasks whose caller never received them; None if nothing is leased."""
    return tube._release_untaken(tasks)


def current_record(tube: Tube, id: TaskOrId | None, address: str | None = None) -> Record | None:
    """Apply everything due, and return the record of an id or an address; None if the task is not in the tube."""
    tube.runtime.reap_if_due()
    record = tube._get(id, address)
    if record is None or (record.at is None and record.state != "t" and record.group is None):
        return record
    tube.runtime.apply_due(tube.stored)
    return tube._get(id, address)
