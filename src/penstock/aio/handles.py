"""The handles of penstock.aio: verbs that are awaited. A new verb of a blocking handle is one line here."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from functools import partial, wraps
from inspect import isawaitable
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from penstock.aio.awaited import CONVERSIONS, Closing, Handle, Opening, awaited, whole
from penstock.aio.executor import BatchExecutor
from penstock.broker import broker, group_handle, session, tube
from penstock.broker.outcome import Outcome
from penstock.broker.unleased import ReliableTube, UnleasedTube
from penstock.core import task
from penstock.core.options import Tube as StoredTube
from penstock.core.task import is_leased, record_of, tube_of
from penstock.core.values import Seconds

log = logging.getLogger("penstock")

P = ParamSpec("P")
V = TypeVar("V", bound=Callable[..., Coroutine[Any, Any, "Task"]])


def _submit_plain(put: V) -> V:
    """Submit a put without options as one store operation, at half the cost of an operation."""

    @wraps(put)
    async def call(own: Tube, /, *args: Any, **kwargs: Any) -> Task:
        plain = len(args) == 1 and not kwargs and not own.sync.runtime.is_stale
        step = tube.plain_put_op(own.sync, args[0]) if plain else None
        if step is None:
            return await put(own, *args, **kwargs)
        [record] = await own.executor.submit(step)
        data = args[0]
        return (
            Task(record, own, data) if type(data) in tube.ATOMS else _as_aio_task(own, task.make_task(record, own.sync))
        )

    return cast(V, call)


class Tube(Handle[tube.Tube]):
    """A named queue of one kind, like `penstock.Tube`, in one event loop."""

    @property
    def name(self) -> str:
        """The tube's name."""
        return self.sync.name

    @property
    def kind(self) -> str:
        """The name of the tube's kind."""
        return self.sync.kind

    #: Internal: the tube as the store has it, always that of the blocking handle.
    stored: StoredTube

    def __getattr__(self, name: str) -> StoredTube:
        if name == "stored":
            return self.sync.stored
        raise AttributeError(f"{type(self).__name__} has no attribute {name}")

    put = _submit_plain(awaited(tube.Tube.put))
    put_many = awaited(tube.Tube.put_many)
    take = awaited(tube.Tube.take)
    take_many = awaited(tube.Tube.take_many)
    ack = awaited(tube.Tube.ack)
    ack_many = awaited(tube.Tube.ack_many)
    fail = awaited(tube.Tube.fail)
    release = awaited(tube.Tube.release)
    touch = awaited(tube.Tube.touch)
    bury = awaited(tube.Tube.bury)
    delete = awaited(tube.Tube.delete)
    cancel = awaited(tube.Tube.cancel)
    kick = awaited(tube.Tube.kick)
    release_all = awaited(tube.Tube.release_all)
    truncate = awaited(tube.Tube.truncate)
    drop = awaited(tube.Tube.drop)
    alter = awaited(tube.Tube.alter)
    peek = awaited(tube.Tube.peek)
    tasks = awaited(tube.Tube.tasks)
    stats = awaited(tube.Tube.stats)
    why = awaited(tube.Tube.why)
    wait = awaited(tube.Tube.wait)
    group = awaited(tube.Tube.group)
    pause = awaited(tube.Tube.pause)
    resume = awaited(tube.Tube.resume)
    recover = awaited(tube.Tube.recover)
    inspect = awaited(tube.Tube.inspect)
    _finish = awaited(tube.Tube._finish)
    _release_failed = awaited(tube.Tube._release_failed)

    async def on_change(self, callback: OnChange | None) -> OnChange | None:
        """Like `penstock.Tube.on_change`, but called in the event loop, and awaited if it is a coroutine function."""
        listener = callback if not callable(callback) else _Listener(self, callback)
        previous = self.sync.on_change(listener)
        return previous.callback if isinstance(previous, _Listener) else None


class Group(Handle[group_handle.Group]):
    """Tasks that cannot be taken before `start`, like `penstock.Group`."""

    @property
    def name(self) -> str:
        """The group's name."""
        return self.sync.name

    put = awaited(group_handle.Group.put)
    put_many = awaited(group_handle.Group.put_many)
    on_end = awaited(group_handle.Group.on_end)
    on_cancel = awaited(group_handle.Group.on_cancel)
    start = awaited(group_handle.Group.start)
    cancel = awaited(group_handle.Group.cancel)
    progress = awaited(group_handle.Group.progress)
    wait = awaited(group_handle.Group.wait)

    async def status(self) -> str:
        """Like `penstock.Group.status`."""
        found: str = await self.executor.run(whole(lambda: self.sync.status))
        return found

    async def results(self) -> AsyncIterator[tuple[int, Outcome]]:
        """Like `penstock.Group.results`, for `async for`."""
        found = self.sync.results()
        while (one := await self.executor.run(whole(next, found, None))) is not None:
            yield one


def _task_verb(
    verb: Callable[Concatenate[task.Task, P], None],
) -> Callable[Concatenate[Task, P], Coroutine[Any, Any, None]]:
    """A verb of a task: calls the tube's verb of that name with the task."""
    name = verb.__name__

    @wraps(verb)
    async def call(own: Task, /, *args: P.args, **kwargs: P.kwargs) -> None:
        await getattr(tube_of(own), name)(own, *args, **kwargs)

    return call


class Task(task.Facts[Tube]):
    """One task with awaited verbs, like `penstock.Task`. `async with task:` acks or releases it."""

    __slots__ = ()

    ack = _task_verb(task.Task.ack)
    fail = _task_verb(task.Task.fail)
    release = _task_verb(task.Task.release)
    bury = _task_verb(task.Task.bury)
    touch = _task_verb(task.Task.touch)

    async def __aenter__(self) -> Task:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        if self.status is not task.Status.TAKEN:
            return
        if error is None:
            await self._tube._finish(self)
        else:
            await self._tube._release_failed(self, error)


OnChange = Callable[[Task, str], object]


class _Listener:
    """An on_change callback of a program's loop, as the runtime calls it from any thread."""

    def __init__(self, tube_handle: Tube, callback: OnChange) -> None:
        self.callback = callback
        self._tube = tube_handle
        self._notifying: set[asyncio.Future[None]] = set()

    def __call__(self, changed: task.Task, event: str) -> None:
        self._tube.executor.post(partial(self._notify, _as_aio_task(self._tube, changed), event))

    def _notify(self, changed: Task, event: str) -> None:
        try:
            answer = self.callback(changed, event)
        except Exception:
            _failed(changed, event)
            return
        if isawaitable(answer):
            notifying = asyncio.ensure_future(_await(answer, changed, event))
            self._notifying.add(notifying)  # the loop itself holds on to no task
            notifying.add_done_callback(self._notifying.discard)


async def _await(answer: Awaitable[object], changed: Task, event: str) -> None:
    try:
        await answer
    except Exception:
        _failed(changed, event)


def _failed(changed: Task, event: str) -> None:
    log.exception("on_change of tube %s failed at %s of task %s", changed.tube, event, changed.id)


def _as_aio_task(handle: Handle[Any], given: task.Task) -> Task:
    own = handle if isinstance(handle, Tube) else Tube(handle.executor, cast(tube.Tube, tube_of(given)))
    return Task(record_of(given), own, given.data, leased=is_leased(given))


CONVERSIONS[task.Task] = _as_aio_task
CONVERSIONS[list] = lambda handle, given: [
    _as_aio_task(handle, one) if isinstance(one, task.Task) else one for one in given
]
CONVERSIONS |= dict.fromkeys(
    (tube.Tube, UnleasedTube, ReliableTube), lambda handle, given: Tube(handle.executor, given)
)
CONVERSIONS[group_handle.Group] = lambda handle, given: Group(handle.executor, given)


# Threads for a store behind a network, where calls on different tubes need not wait for each other. The others have
# one writer at a time, so a second thread would only wait.
REMOTE_THREADS = 4


class Session(Handle[session.Session], Closing):
    """Owns leases, which end with it, like `penstock.Session`."""

    @property
    def id(self) -> str:
        """The session's id, a UUID."""
        return self.sync.id

    tube = awaited(session.Session.tube)
    take = awaited(session.Session.take)
    close = awaited(session.Session.close)


class Broker(Handle[broker.Broker], Closing):
    """Opens tubes and sessions on one store, like `penstock.Broker`. Usable only in the event loop that opened it."""

    def __init__(self, executor: BatchExecutor, sync: broker.Broker) -> None:
        super().__init__(executor, sync)
        self._closing: asyncio.Future[None] | None = None

    tube = awaited(broker.Broker.tube)
    create_tube = awaited(broker.Broker.create_tube)
    tubes = awaited(broker.Broker.tubes)
    take = awaited(broker.Broker.take)
    sessions = awaited(broker.Broker.sessions)
    check = awaited(broker.Broker.check)
    _session = awaited(broker.Broker.session)

    def session(self, ttr: Seconds = 0, id: str | None = None) -> Opening[Session]:
        """Like `penstock.Broker.session`: await it, or use it in `async with`."""
        return Opening(partial(self._session, ttr, id))

    async def close(self) -> None:
        """Finish the calls in progress, release what its sessions hold, and close the store.

        Blocked takes return None. Closing continues to the end even if its awaiter is cancelled.
        """
        self.executor.check_loop()
        if self._closing is None:
            self._closing = asyncio.ensure_future(self.executor.close(self.sync.close))
        await asyncio.shield(self._closing)


def _opening(connect: Callable[P, broker.Broker]) -> Callable[P, Opening[Broker]]:
    @wraps(connect)
    def call(*args: P.args, **kwargs: P.kwargs) -> Opening[Broker]:
        return Opening(partial(_open, partial(connect, *args, **kwargs)))

    return call


async def _open(connect: Callable[[], broker.Broker]) -> Broker:
    executor = BatchExecutor()
    run = executor.run(whole(connect))
    try:
        opened = await run
    except BaseException:
        run.discard_result()
        executor.abandon()
        raise
    if opened.runtime.store.remote:
        executor.threads = REMOTE_THREADS
    return Broker(executor, opened)


#: Open a store as `penstock.connect` does: `async with connect(url) as broker`, or `broker = await connect(url)`.
connect = _opening(broker.connect)

CONVERSIONS[session.Session] = lambda handle, given: Session(handle.executor, given)
