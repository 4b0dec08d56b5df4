"""Sessions: the public handle, and the membership of one handle in one stored session behind it.

A session is joined when it is first needed and kept alive by the broker's heartbeat. It is the only place where a take
may block.

A take is one store call for one caller, or for all that ask at the same time. Blocked takes of one session on the same
tubes share a WaiterGroup: the store registers them as one waiter, so that drop and sessions see that someone waits, and
thousands of blocked takes cost no more than one.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import islice
from random import getrandbits
from types import TracebackType
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID, uuid4

import msgspec

from penstock.broker.tube import Tube, check_max_pri, release_untaken, taken_tasks
from penstock.broker.tube_factory import find_tube, open_tube
from penstock.core import values
from penstock.core.names import name as valid_name
from penstock.core.names import shown
from penstock.core.results import Blocked, Event, Joined, Presence, Taken
from penstock.core.task import Task, tube_of
from penstock.core.values import Seconds, several
from penstock.engine.store import Store
from penstock.errors import BadValue, NoSuchTube, NotFound, OutcomeUnknown, PenstockError, StoreError, StoreUnavailable
from penstock.operations.operation import Call, Failure, Operation, Sleep, StoreOp, blocking, copy_error
from penstock.runtime.wait_queue import Topic, Waiter, pauses

if TYPE_CHECKING:
    from penstock.runtime.runtime import BrokerRuntime

Stop = Callable[[], bool]
TakeResult = tuple[list[Task], Taken]
# What one task may add to the size of a call: its data is not known before.
_EACH = 4096


class SessionInfo(msgspec.Struct, frozen=True):
    """A live session: its process, its last heartbeat, what it holds and waits for."""

    id: str
    host: str
    pid: int
    heartbeat: float
    held: list[tuple[str, int]]
    waits: list[str]


class Session:
    """Owns leases, which end with it: at close, at the end of its process, or when its heartbeat lapses.

    A broker has an implicit one. `broker.session()` begins others; several handles may join one by its id, and it ends
    with the last of them.
    """

    def __init__(self, runtime: BrokerRuntime, session_handle: SessionHandle) -> None:
        #: Internal: what the handles of one broker share.
        self.runtime = runtime
        #: Internal: this handle's membership in the stored session.
        self.session_handle = session_handle

    @property
    def id(self) -> str:
        """The session's id, a UUID: another process may join it with `broker.session(id=…)`."""
        return self.session_handle.id

    def tube(self, name: str) -> Tube:
        """Open a tube, as broker.tube does, whose takes and settles belong to this session."""
        return open_tube(self.runtime, self.session_handle, name, None, {})

    @blocking
    def take(
        self, names: Iterable[str], timeout: Seconds | None = None, *, max_pri: int | None = None
    ) -> Operation[Task | None]:
        """Take the first ready task of the first of these tubes that has one; None if none came in time."""
        return (yield from self.session_handle.take_first(names, timeout, max_pri))

    def close(self) -> None:
        """End the session, unless another handle has joined it. Its tasks become ready again, after its ttr if any."""
        self.session_handle.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def session_id(value: object) -> str | None:
    """Validate the id of a session: a str, a UUID or None."""
    return None if value is None else valid_name("session id", str(value) if isinstance(value, UUID) else value)


class SessionHandle:
    """One handle of one stored session.

    The implicit handle of a broker joins at the first take, and begins a new session after its session was lost.
    """

    def __init__(self, runtime: BrokerRuntime, *, ttr: int = 0, id: str | None = None, implicit: bool = False) -> None:
        #: What the handles of one broker share.
        self.runtime = runtime
        self._ttr = ttr
        self._wanted = id
        self._implicit = implicit
        self._lock = threading.Lock()
        self._joined: Joined | None = None
        self._waiters: set[Waiter] = set()
        self._tubes: dict[str, Tube] = {}
        #: The blocked takes that share a store call, by the key of their operations.
        self.waiter_groups: dict[Hashable, WaiterGroup] = {}
        self._closed = False
        self._lost = False
        #: The store's number of the session; 0 before its first take and once it is lost.
        self.number = 0
        #: The id of this handle in the store.
        self.handle = ""
        if not implicit:
            self.join()

    @property
    def id(self) -> str:
        """The session's id."""
        return (self._joined or self.join()).id

    @property
    def _ended(self) -> bool:
        """Whether the session was closed, or has lapsed and is not replaced, because it is not implicit."""
        return self._closed or (self._lost and not self._implicit)

    def close(self) -> None:
        """Leave the session and wake its blocked takes, which return nothing."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self.wake_blocked()
        if self._joined is not None:
            self.runtime.remove_session(self, leave=not self._lost)

    def join(self) -> Joined:
        """Join the session if this handle has not; an implicit session that lapsed is replaced by a new one."""
        store = self.runtime.store
        with self._lock:
            if self._ended:
                which = self._joined.id if self._joined else "of this broker"
                state = "closed" if self._closed else "lapsed"
                raise NotFound(f"session {which} is {state}: begin a new one with broker.session()")
            if self._joined is None or self._lost:
                self._joined = self._join(store)
                self._lost, self.number = False, self._joined.session
                self._wanted = self._joined.id if not self._implicit else None
            return self._joined

    def _join(self, store: Store) -> Joined:
        handle = uuid4().hex
        locks = self.runtime.locks
        locus = locks.hold(handle) if locks is not None else ""
        where = Presence(handle, socket.gethostname(), os.getpid(), locus)
        try:
            joined = store.join(where, self._wanted, self._ttr)
        except BaseException:
            if locks is not None:
                locks.release(handle)
            raise
        if self.handle and locks is not None:
            locks.release(self.handle)
        self.handle = handle
        self.runtime.add_session(self)
        return joined

    def lose(self, handle: str) -> None:
        """Record that the store has ended that handle: its leases are dead, and its blocked takes return nothing."""
        if self._mark_lost(handle):
            self.wake_blocked()

    def _mark_lost(self, handle: str) -> bool:
        """Mark the session as lost, unless another thread has joined a new one since. Returns whether it is lost."""
        with self._lock:
            if handle == self.handle:
                self._lost, self.number = True, 0
            return self._lost

    def after_fork(self) -> None:
        """In a forked child, replace an implicit session at the first take. An explicit one stays the parent's."""
        self._lock = threading.Lock()
        self._waiters = set()
        self.waiter_groups = {}
        self.number = 0
        if self._implicit:
            self._joined, self.handle = None, ""
        else:
            self._lost = True

    # Take.

    def take_first(self, names: Iterable[str], timeout: Seconds | None, max_pri: int | None) -> Operation[Task | None]:
        """Take the first ready task of the first of these tubes that has one."""
        wanted = [valid_name("tube", name) for name in several("tubes", names)]
        if isinstance(names, str) or not wanted:
            raise BadValue(f"tubes {shown(names)}: give a list of tube names, at least one")
        tubes = [self._tubes[name] for name in wanted if name in self._tubes]
        if len(tubes) < len(wanted):
            tubes = yield Call(lambda: [self._tubes.get(name) or self._find_tube(name) for name in wanted])
        for tube in tubes:
            check_max_pri(tube.stored, max_pri)
        try:
            tasks = yield from self.take_tasks(tubes, 1, timeout, max_pri)
        except NoSuchTube:
            if not self._tubes:
                raise
            self._tubes.clear()  # dropped since it was found, and perhaps created again
            return (yield from self.take_first(wanted, timeout, max_pri))
        self._tubes.update((tube.name, tube) for tube in tubes)
        return tasks[0] if tasks else None

    def _find_tube(self, name: str) -> Tube:
        return find_tube(self.runtime, self, name)

    def take_tasks(
        self,
        tubes: Sequence[Tube],
        count: int,
        timeout: Seconds | None,
        max_pri: int | None,
        stop: Stop | None = None,
    ) -> Operation[list[Task]]:
        """Take up to count tasks of the first tube that has any, waiting up to timeout seconds for the first.

        `stop` is called before and after each sleep, which `wake_blocked` ends; True ends the waiting.
        """
        usual = timeout is None or (type(timeout) is int and timeout == 0)  # and so in order
        limit = cast("int | None", timeout) if usual else values.timeout(timeout)
        op = TakeOp(self, tubes, count, max_pri)
        tasks: list[Task]
        tasks, _ = yield op
        if tasks or limit == 0:
            return tasks
        deadline = None if limit is None else time.monotonic() + limit
        return (yield from self._take_blocked(op, deadline, stop or _never))

    def wake_blocked(self) -> None:
        """Wake the blocked takes, which then call their `stop`."""
        self.runtime.wait_queue.wake_waiters(list(self._waiters))

    def _take_blocked(self, op: TakeOp, deadline: float | None, stop: Stop) -> Operation[list[Task]]:
        queue = self.runtime.wait_queue
        topics: tuple[Topic, ...] = tuple(("ready", tube.stored.no) for tube in op.tubes)
        waiter = self.runtime.wait_queue.add(topics, op.max_pri)
        self._waiters.add(waiter)
        found: Topic | None = None
        op.blocks = True
        try:
            while True:
                tasks, taken = yield from self._take_patiently(op, waiter, deadline, stop)
                if tasks and taken.tube is not None:
                    found = ("ready", taken.tube.no)
                if tasks or not taken.alive:
                    return tasks
                self.runtime.note_deadline(topics, taken.wait_ms)
                left = None if deadline is None else deadline - time.monotonic()
                if self._closed or stop() or (left is not None and left <= 0):
                    return []
                queue.requeue(waiter)
                yield Sleep(waiter, left)  # at the deadline it tries one last time
                if stop() or self._closed:
                    return []
        except PenstockError:
            # A take that was blocked when its session lapsed returns nothing, whichever call noticed it.
            if self._closed or self.runtime.closed or (self._ended and op.registered):
                return []
            raise
        except GeneratorExit:
            op.registered = False  # no caller is left to unregister it: the end of the session does
            raise
        finally:
            self._waiters.discard(waiter)
            queue.remove(waiter, found)
            if op.registered:
                with contextlib.suppress(PenstockError):
                    yield op.leave()

    def _take_patiently(self, op: TakeOp, waiter: Waiter, deadline: float | None, stop: Stop) -> Operation[TakeResult]:
        """Try one take; while the server is unavailable, retry with growing pauses until the deadline."""
        between = pauses()
        while True:
            pause = next(between)
            try:
                result: TakeResult = yield op
                return result
            except (StoreUnavailable, OutcomeUnknown) as error:
                late = stop() or (deadline is not None and time.monotonic() + pause > deadline)
                # The failed call may have registered it, and it must not be registered twice.
                unsure = isinstance(error, OutcomeUnknown) and not op.registered
                if late or unsure or not self.may_retry(error):
                    raise
            yield Sleep(waiter, pause)

    def may_retry(self, error: StoreError) -> bool:
        """Whether to retry a call that raised this error, because its server may come back."""
        if self._closed or self.runtime.closed or not self.runtime.store.remote:
            return False
        self.runtime.note_outage(error)
        return True

    def pause(self, seconds: float) -> Operation[None]:
        """Sleep for some seconds, or until the session is closed."""
        waiter = self.runtime.wait_queue.add(())
        self._waiters.add(waiter)
        try:
            yield Sleep(waiter, seconds)
        finally:
            self._waiters.discard(waiter)

    def unregister(self, tubes: Sequence[Tube], waiter: int) -> None:
        """Tell the store that no take of a WaiterGroup is blocked on these tubes any more."""
        if not self._closed and not self._lost:
            stored = [tube.stored for tube in tubes]
            with contextlib.suppress(PenstockError):  # then the registration goes with the session
                self.runtime.store.take(stored, 0, self.handle, blocked="unregister", waiter=waiter)

    def take_now(
        self, tubes: Sequence[Tube], count: int, max_pri: int | None, blocked: Blocked, waiter: int = 0
    ) -> TakeResult:
        """Take in one store call. Repeat it if the session had lapsed, or if none of the tasks can be decoded."""
        stored = [tube.stored for tube in tubes]
        while True:
            if not self.number or self._closed:
                self.join()
            handle = self.handle
            taken = self.runtime.store.take(stored, count, handle, max_pri=max_pri, blocked=blocked, waiter=waiter)
            if taken.tube is not None and self.runtime.has_listener(taken.tube):
                taken.effects.events += [Event(taken.tube.no, "take", record) for record in taken.records]
            self.runtime.publish(taken.effects, taken.tube, taken.records)
            if taken.alive:
                tasks = _tasks(tubes, taken)
                if tasks or not taken.records:
                    return tasks, taken
            else:
                self._mark_lost(handle)
                if not self._implicit:
                    return [], taken
            if blocked == "unregister_if_found":  # unregistered with the task that came, or with the old session
                blocked = "register"


def _tasks(tubes: Sequence[Tube], taken: Taken) -> list[Task]:
    for tube in tubes:
        if taken.tube is not None and tube.stored.no == taken.tube.no:  # its options may have been altered meanwhile
            return taken_tasks(tube, taken.records)
    return []


def _never() -> bool:
    return False


class WaiterGroup:
    """The blocked takes of one session on the same tubes: their number, and the store's registration of them."""

    __slots__ = ("handle", "number", "waiting")

    def __init__(self) -> None:
        self.waiting = 0
        self.handle = ""
        self.number = getrandbits(63)


class TakeOp(StoreOp):
    """Take up to count tasks of the first of these tubes that has any; the same operation may be repeated.

    Returns the leased tasks and the store's answer. With `blocks`, its caller sleeps if nothing came; with `leaving`,
    it only unregisters the caller, and there is no answer.
    """

    __slots__ = ("_group", "blocks", "count", "leaving", "max_pri", "registered", "session", "tubes")

    def __init__(self, session: SessionHandle, tubes: Sequence[Tube], count: int, max_pri: int | None) -> None:
        self.session = session
        self.tubes = tubes
        self.count = count
        self.max_pri = max_pri
        self.blocks = False
        self.registered = False  # counted in its WaiterGroup
        self.leaving = False
        self._group: WaiterGroup | None = None

    @property
    def key(self) -> tuple[object, ...]:
        return "take", self.session, self.max_pri, *(tube.stored.no for tube in self.tubes)

    @property
    def size(self) -> int:
        return self.count * _EACH

    @property
    def run_if_cancelled(self) -> bool:
        return self.leaving

    def leave(self) -> TakeOp:
        """Turn this into an operation that only unregisters its caller."""
        self.blocks, self.leaving = False, True
        return self

    def run(self) -> TakeResult:
        if self.blocks or self.leaving:
            self._group = self._group or WaiterGroup()
            result: TakeResult = _run_group(self._group, [self])[0]
            return result
        while True:
            tasks, taken = self.session.take_now(self.tubes, self.count, self.max_pri, None)
            if tasks or not _try_again(None, [self], tasks, taken):
                return tasks, taken

    def run_batch(self, ops: Sequence[TakeOp]) -> list[Any]:
        groups = self.session.waiter_groups
        group = groups.setdefault(self.key, WaiterGroup())
        try:
            return _run_group(group, ops)
        finally:
            if not group.waiting:
                groups.pop(self.key, None)

    def compensate(self, answer: TakeResult | None) -> StoreOp | None:
        tasks = answer[0] if answer else []
        if not tasks:
            return None
        return release_untaken(cast(Tube, tube_of(tasks[0])), tasks)


Answers = dict[TakeOp, TakeResult | Failure]


def _run_group(group: WaiterGroup, ops: Sequence[TakeOp]) -> list[Any]:
    """Answer each operation: first those that were blocked, then the others in order of arrival."""
    for op in ops:
        if op.leaving:
            _register(group, op, waits=False)
    unserved = [op for op in ops if op.blocks]
    unserved += [op for op in ops if not (op.blocks or op.leaving)]
    try:
        answers = _take_for(group, unserved)
        for op, answer in answers.items():
            if not isinstance(answer, Failure):
                _register(group, op, waits=op.blocks and not answer[0] and answer[1].alive)
    finally:
        _unregister_empty(group, ops[0])
    return [answers.get(op) for op in ops]


def _take_for(group: WaiterGroup, unserved: list[TakeOp]) -> Answers:
    """Take for all waiting operations, in as few store calls as possible."""
    answers: Answers = {}
    while unserved:
        try:
            tasks, taken = _take_once(group, unserved)
        except PenstockError as error:
            if not answers:
                raise
            answers |= {op: Failure(copy_error(error)) for op in unserved}  # the others have their tasks
            break
        unserved = _distribute(tasks, taken, unserved, answers)
        if not unserved or not _try_again(group, unserved, tasks, taken):
            answers |= dict.fromkeys(unserved, ([], taken))
            break
    return answers


def _take_once(group: WaiterGroup, unserved: Sequence[TakeOp]) -> TakeResult:
    """Take for all these operations in one store call."""
    first, mode = unserved[0], _blocked_mode(group, unserved)
    count = sum(op.count for op in unserved)
    tasks, taken = first.session.take_now(first.tubes, count, first.max_pri, mode, group.number)
    if mode is not None:
        group.handle = "" if tasks or not taken.alive else first.session.handle
    return tasks, taken


def _blocked_mode(group: WaiterGroup, unserved: Sequence[TakeOp]) -> Blocked:
    blocked = [op for op in unserved if op.blocks]
    if not blocked:
        return None
    if group.handle != blocked[0].session.handle:
        return "register"
    alone = group.waiting == len(blocked) == 1 and blocked[0].registered
    return "unregister_if_found" if alone else None


def _distribute(tasks: Sequence[Task], taken: Taken, unserved: Sequence[TakeOp], answers: Answers) -> list[TakeOp]:
    """Give the tasks to the operations in order. Returns the operations that got none."""
    left = iter(tasks)
    for op in unserved:
        own = list(islice(left, op.count))
        if own:
            answers[op] = own, taken
    return [op for op in unserved if op not in answers]


def _try_again(group: WaiterGroup | None, unserved: Sequence[TakeOp], tasks: Sequence[Task], taken: Taken) -> bool:
    """Whether another store call may get tasks for the operations without one, or must be made before they sleep."""
    first = unserved[0]
    if not taken.alive:
        return False
    if group is not None and first.blocks and group.handle != first.session.handle:
        return True
    if tasks and len(first.tubes) > 1:  # the next tube may have some
        return True
    if all(op.blocks for op in unserved):
        return False
    # What is still due may make a task ready, and so may the end of a dead peer.
    return taken.wait_ms == 0 or (not tasks and first.session.runtime.reap_if_due())


def _register(group: WaiterGroup, op: TakeOp, *, waits: bool) -> None:
    if waits != op.registered:
        op.registered = waits
        group.waiting += 1 if waits else -1


def _unregister_empty(group: WaiterGroup, op: TakeOp) -> None:
    """Unregister the group in the store when nobody in it waits any more."""
    if not group.waiting and group.handle:
        if group.handle == op.session.handle:
            op.session.unregister(op.tubes, group.number)
        group.handle = ""
