"""Runs operations for an event loop: the calls of many coroutines become few store calls, on few threads.

`executor.run(operation)` starts a verb's operation at once and returns the future of its result; `executor.submit(op)`
that of one store operation. Store operations of equal key that are submitted in one turn of the loop, or while the
previous ones of that key are running, become one store call. An error belongs to the caller whose operation is bad: a
batch that is refused is halved until each has its own answer. A cancelled future takes nothing: an operation that has
not begun is dropped, and a take that was carried out is undone.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Hashable
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar, cast

from penstock.errors import PenstockError, StoreUnavailable
from penstock.operations.operation import Call, Failure, Operation, Sleep, StoreOp, run_ops
from penstock.system.forks import reset_in_child

log = logging.getLogger("penstock")

R = TypeVar("R")
# Who submitted a store operation: a Run, or the plain future of `submit`.
Caller = asyncio.Future[Any]
# The most bytes for one store call: a long batch delays the others, and servers refuse huge statements.
BATCH_SIZE = 4 * 1024 * 1024


class BatchExecutor:
    """Runs operations for the event loop that it was made in. A forked child must make its own."""

    def __init__(self, threads: int = 1) -> None:
        #: The most threads it may have; each starts when it is first needed.
        self.threads = threads
        self._loop = asyncio.get_running_loop()
        self._queues: dict[Hashable, _OpQueue] = {}
        self._due: list[_OpQueue] = []  # queues whose next batch is sent at the end of this turn of the loop
        self._batches: SimpleQueue[_Batch | None] = SimpleQueue()
        self._workers: list[threading.Thread] = []
        self._inbox: deque[Callable[[], object]] = deque()
        self._inbox_scheduled = False
        self._in_threads = 0  # batches that the threads have
        self._pending_ops = 0  # store operations submitted and not answered
        self._pending_runs = 0  # operations not ended, and store operations submitted separately
        self._closing = self._abandoned = self._forked = False
        self._progress = asyncio.Event()
        reset_in_child(self)

    def run(self, operation: Operation[R]) -> Run[R]:
        """Start an operation; its arguments are checked and its first store operation is submitted on return.

        A caller that is cancelled while it awaits the future must call `discard_result` on it; cancelling the future
        itself is enough.
        """
        self.check_loop()
        return self._start(operation, refused=self._closing)

    def submit(self, op: StoreOp) -> asyncio.Future[Any]:
        """Run one store operation. Costs half as much as `run`, but undoes nothing if it is cancelled."""
        self.check_loop()
        if self._closing:
            raise _closed()
        future: asyncio.Future[Any] = asyncio.Future(loop=self._loop)
        self._pending_runs += 1
        self.enqueue(future, op)
        return future

    def check_loop(self) -> None:
        """Raise StoreUnavailable in any other event loop or process than its own."""
        if self._forked or asyncio.get_running_loop() is not self._loop:
            raise StoreUnavailable("this broker belongs to another event loop or process: connect again in this one")

    def call(self, call: Callable[[], R]) -> Run[R]:
        """Run any blocking call on one of the threads."""
        return self.run(_single(call))

    def post(self, call: Callable[[], object]) -> bool:
        """Have the loop make a call soon, in order. Safe from any thread. Returns False if the loop is closed."""
        if self._loop.is_closed():
            return False
        self._inbox.append(call)
        if not self._inbox_scheduled:  # one wake-up of the loop for everything posted until it runs
            self._inbox_scheduled = True
            try:
                self._loop.call_soon_threadsafe(self._drain_inbox)
            except RuntimeError:
                return False
        return True

    async def close(self, last: Callable[[], object]) -> None:
        """Refuse new operations, answer what was submitted, make the last call, and end the threads."""
        self._closing = True
        await self._wait_until(lambda: self._pending_ops == 0)
        try:
            await self._start(_single(last))
        finally:
            await self._wait_until(lambda: self._pending_runs == 0)
            self._stop_threads()
            for worker in self._workers:
                worker.join()

    def abandon(self) -> None:
        """Refuse new operations and let the threads end after the running ones, without waiting."""
        self._closing = self._abandoned = True
        if not self._pending_runs or self._loop.is_closed():  # nothing continues in a closed loop
            self._stop_threads()

    def after_fork(self) -> None:
        """Forget the event loop and the threads, which do not exist in a forked child."""
        self._forked = True

    # For Run, in the loop.

    def enqueue(self, caller: Caller, op: StoreOp) -> _OpQueue:
        """Queue a store operation for the next batch of its key."""
        self._pending_ops += 1
        key = op.key
        queue = None if key is None else self._queues.get(key)
        if queue is None:
            queue = _OpQueue(key)
            if key is not None:
                self._queues[key] = queue
        queue.waiting[caller] = op
        if not queue.busy:
            queue.busy = True
            self._schedule(queue)
        return queue

    def dequeue(self, caller: Caller, queue: _OpQueue) -> None:
        """Remove a cancelled caller's store operation, which has not begun."""
        self._pending_ops -= 1
        del queue.waiting[caller]

    def compensate(self, op: StoreOp) -> None:
        """Undo an answer that a cancelled caller never received."""
        self._start(_compensating(op))

    def ended(self) -> None:
        """Forget an operation that has ended."""
        self._pending_runs -= 1
        if self._closing:
            self._progress.set()
        if self._abandoned and not self._pending_runs:
            self._stop_threads()

    # In the loop.

    def _start(self, operation: Operation[R], *, refused: bool = False) -> Run[R]:
        run: Run[R] = Run(self, operation, loop=self._loop)
        if refused:
            run.refusal = _closed()
        self._pending_runs += 1
        run.resume(None)
        return run

    def _schedule(self, queue: _OpQueue) -> None:
        """Send its next batch at the end of this turn of the loop, with everything submitted until then."""
        if not self._due:
            self._loop.call_soon(self._flush)
        self._due.append(queue)

    def _flush(self) -> None:
        due, self._due = self._due, []
        for queue in due:
            batch = self._next_batch(queue)
            if batch.callers:
                self._send(batch)
            elif queue.waiting:
                self._schedule(queue)
            else:
                queue.busy = False
                self._queues.pop(queue.key, None)

    def _next_batch(self, queue: _OpQueue) -> _Batch:
        batch = _Batch(queue)
        for caller, op in queue.cut().items():
            if isinstance(caller, Run):
                caller.queue = None  # a cancelled one has removed itself
            elif caller.done():
                self._pending_ops -= 1
                self.ended()
                continue
            batch.callers.append(caller)
            batch.ops.append(op)
        return batch

    def _send(self, batch: _Batch) -> None:
        if self._in_threads == len(self._workers) < self.threads:
            worker = threading.Thread(target=self._work, name="penstock-aio", daemon=True)
            self._workers.append(worker)
            worker.start()
        self._in_threads += 1
        self._batches.put(batch)

    def _answer(self, batch: _Batch, answers: list[Any]) -> None:
        """Resume each operation with its answer after a batch has run."""
        self._in_threads -= 1
        self._pending_ops -= len(batch.callers)
        for caller, op, answer in zip(batch.callers, batch.ops, answers, strict=True):
            if isinstance(caller, Run):
                caller.receive(op, answer)
            else:
                self._set_answer(caller, answer)
        self._schedule(batch.queue)
        if self._closing:
            self._progress.set()

    def _set_answer(self, future: Caller, answer: Any) -> None:
        if not future.done():  # otherwise it was cancelled
            if isinstance(answer, Failure):
                future.set_exception(answer.error)
            else:
                future.set_result(answer)
        self.ended()

    def _stop_threads(self) -> None:
        for _ in self._workers:
            self._batches.put(None)

    def _drain_inbox(self) -> None:
        self._inbox_scheduled = False  # before reading them: what is posted from now on schedules another call
        for _ in range(len(self._inbox)):
            self._loop.call_soon(self._inbox.popleft())

    async def _wait_until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._progress.clear()
            await self._progress.wait()

    # In the threads.

    def _work(self) -> None:
        while (batch := self._batches.get()) is not None and self._run_batch(batch):
            del batch  # an idle thread keeps no reference to a caller's data

    def _run_batch(self, batch: _Batch) -> bool:
        answers = run_ops(batch.ops)
        if self.post(partial(self._answer, batch, answers)):
            return True
        for op, answer in zip(batch.ops, answers, strict=True):  # the loop is closed: no caller is left
            back = None if isinstance(answer, Failure) else op.compensate(answer)
            if back is not None:
                run_ops([back])
        return False


class Run(asyncio.Future[R]):
    """A running operation; as a future, its result."""

    # On the class, because most runs never set them.
    _sleep: Sleep | None = None
    _timer: asyncio.TimerHandle | None = None
    _compensation: StoreOp | None = None  # undoes what it received
    _cancel_known = False  # its operation knows that it was cancelled
    #: Raised in the operation instead of running anything.
    refusal: StoreUnavailable | None = None

    def __init__(self, executor: BatchExecutor, operation: Operation[R], *, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop=loop)
        self._executor = executor
        self._operation = operation
        #: Where its store operation waits for a batch.
        self.queue: _OpQueue | None = None

    def cancel(self, msg: object = None) -> bool:
        """Cancel the operation. What it still receives, such as taken tasks, is given back."""
        if not super().cancel(msg):
            return False
        if self._sleep is not None:
            self._end_sleep()
            self.resume(Failure(asyncio.CancelledError()))
        elif self.queue is not None and not self.queue.waiting[self].run_if_cancelled:
            self._executor.dequeue(self, self.queue)
            self.queue = None
            self.resume(Failure(asyncio.CancelledError()))
        return True

    def discard_result(self) -> None:
        """Undo what the operation received, because its awaiter was cancelled, perhaps after the result had come."""
        if self.done() and not self.cancelled() and self.exception() is None and self._compensation is not None:
            self._executor.compensate(self._compensation)

    def receive(self, op: StoreOp, answer: Any) -> None:
        """Continue with the answer of a store operation."""
        compensation = None if isinstance(answer, Failure) else op.compensate(answer)
        if compensation is not None:
            if self.cancelled():
                self._executor.compensate(compensation)
                answer = Failure(asyncio.CancelledError())
            else:
                self._compensation = compensation
        self.resume(answer)

    def resume(self, answer: Any) -> None:
        """Continue the operation. A cancelled one may clean up and end, but cannot submit anything else."""
        op = self._advance(answer)
        if op is not None and not self._cancel_known and self.cancelled():
            op = self._advance(Failure(asyncio.CancelledError()))
        if op is None:
            return
        if self.refusal is not None:
            self.resume(Failure(self.refusal))
        elif isinstance(op, Sleep):
            self._begin_sleep(op)
        else:
            self.queue = self._executor.enqueue(self, op)

    def _advance(self, answer: Any) -> StoreOp | None:
        try:
            if not isinstance(answer, Failure):
                return self._operation.send(answer)
            self._cancel_known = self._cancel_known or isinstance(answer.error, asyncio.CancelledError)
            return self._operation.throw(answer.error)
        except StopIteration as end:
            if not self.cancelled():
                self.set_result(end.value)
        except (Exception, asyncio.CancelledError) as error:
            if not self.cancelled():
                self.set_exception(error)
        self._executor.ended()
        return None

    def _begin_sleep(self, op: Sleep) -> None:
        self._sleep = op
        if op.seconds is not None:
            self._timer = self._loop.call_later(op.seconds, self._wake)
        if op.waiter.call_when_woken(partial(self._executor.post, self._wake)):
            self._loop.call_soon(self._wake)

    def _wake(self) -> None:
        if self._sleep is not None:
            self._end_sleep()
            self.resume(None)

    def _end_sleep(self) -> None:
        if self._sleep is not None:
            self._sleep.waiter.call_when_woken(None)
        self._sleep = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class _OpQueue:
    """Store operations of one key, by caller: those submitted while a batch of that key is running wait here."""

    __slots__ = ("busy", "key", "waiting")

    def __init__(self, key: Hashable) -> None:
        self.key = key
        self.waiting: dict[Caller, StoreOp] = {}
        self.busy = False

    def cut(self) -> dict[Caller, StoreOp]:
        """Remove and return the operations of the next store call."""
        size = sum(op.size for op in self.waiting.values())
        batch, left = self.waiting, list[tuple[Caller, StoreOp]]()
        while size > BATCH_SIZE and len(batch) > 1:
            left.append(batch.popitem())
            size -= left[-1][1].size
        self.waiting = dict(reversed(left))
        return batch


class _Batch:
    """Store operations on their way to a thread and back."""

    __slots__ = ("callers", "ops", "queue")

    def __init__(self, queue: _OpQueue) -> None:
        self.queue = queue
        self.callers: list[Caller] = []
        self.ops: list[StoreOp] = []


def _closed() -> StoreUnavailable:
    return StoreUnavailable("this broker is closed: connect again")


def _single(call: Callable[[], R]) -> Operation[R]:
    return cast(R, (yield Call(call)))


def _compensating(op: StoreOp) -> Operation[None]:
    try:
        yield op
    except PenstockError as error:
        # The tasks become ready again at their ttr, or with the end of the session.
        log.warning("could not release tasks taken for a cancelled caller (%s); their leases lapse", error)
