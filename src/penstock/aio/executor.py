"""Where threads meet the loop: the calls of many coroutines become few store calls, on few threads.

`bridge.run(flow)` begins a verb's flow at once and gives the future of its result; `bridge.ask(step)` that of one step.
Steps of one key that are asked for in one turn of the loop, or while the last ones of that key are carried out, become
one store call. An error belongs to the caller whose step is bad: a batch that is refused is halved until each has its
own answer. A cancelled future takes nothing: a step not begun is dropped, a take that was carried out is undone.
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

from penstock.aio.future import Caller, Run
from penstock.errors import PenstockError, StoreUnavailable
from penstock.operations.batch import Lane, carry_out
from penstock.operations.operation import Call, Failure, Flow, Sleep, Step
from penstock.store.forks import reset_in_child

log = logging.getLogger("penstock")

R = TypeVar("R")


class Bridge:
    """Carries out flows for one event loop, in which it is made and used. A forked child must make its own."""

    def __init__(self, threads: int = 1) -> None:
        #: How many threads it may have; each begins when it is first needed.
        self.threads = threads
        self._loop = asyncio.get_running_loop()
        self._lanes: dict[Hashable, Lane[Caller]] = {}
        self._fresh: list[Lane[Caller]] = []
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._workers: list[threading.Thread] = []
        self._inbox: deque[Callable[[], object]] = deque()
        self._called = False
        self._away = 0  # jobs with the threads
        self._steps = 0  # steps asked for and not answered
        self._runs = 0  # flows not ended, and steps asked for by themselves
        self._closing = self._abandoned = self._forked = False
        self._moved = asyncio.Event()
        reset_in_child(self)

    def run(self, flow: Flow[R]) -> Run[R]:
        """Begin a flow; its arguments are checked and its first step is asked for before this returns.

        Whoever awaits the future and is cancelled must call its `forsake`; cancelling the future itself is enough.
        """
        self.must_be_here()
        return self._begin(flow, refused=self._closing)

    def ask(self, step: Step) -> asyncio.Future[Any]:
        """Carry out one step; the future of its answer. It costs half of what a flow does, and undoes nothing."""
        self.must_be_here()
        if self._closing:
            raise _closed()
        future: asyncio.Future[Any] = asyncio.Future(loop=self._loop)
        self._runs += 1
        self._queue(future, step)
        return future

    def must_be_here(self) -> None:
        """StoreUnavailable in any other loop or process than its own."""
        if self._forked or asyncio.get_running_loop() is not self._loop:
            raise StoreUnavailable("this broker belongs to another event loop or process: connect anew in this one")

    def call(self, call: Callable[[], R]) -> Run[R]:
        """Carry out any blocking call on one of the threads."""
        return self.run(_alone(call))

    def post(self, call: Callable[[], object]) -> bool:
        """From any thread: let the loop make a call, soon; False when the loop is closed. Calls keep their order."""
        if self._loop.is_closed():
            return False
        self._inbox.append(call)
        if not self._called:  # one wake-up of the loop for all that is posted until it comes
            self._called = True
            try:
                self._loop.call_soon_threadsafe(self._open_inbox)
            except RuntimeError:
                return False
        return True

    async def close(self, last: Callable[[], object]) -> None:
        """Refuse new flows, answer what was asked for, make the last call, and end the threads with the flows."""
        self._closing = True
        await self._until(lambda: self._steps == 0)
        try:
            await self._begin(_alone(last))
        finally:
            await self._until(lambda: self._runs == 0)
            self._dismiss()
            for worker in self._workers:
                worker.join()

    def abandon(self) -> None:
        """Refuse new flows, and end the threads when those under way have ended; nobody waits for that."""
        self._closing = self._abandoned = True
        if not self._runs or self._loop.is_closed():  # of a closed loop none goes on
            self._dismiss()

    def after_fork(self) -> None:
        """In a child: neither the loop nor the threads are its own."""
        self._forked = True

    # in the loop

    def _begin(self, flow: Flow[R], *, refused: bool = False) -> Run[R]:
        run: Run[R] = Run(self, flow, loop=self._loop)
        if refused:
            run._refused = True
        self._runs += 1
        run._go(None)
        return run

    def _ask(self, run: Run[Any], step: Step) -> None:
        """A flow wants this step."""
        if run._refused:
            run._go(Failure(_closed()))
            return
        if isinstance(step, Sleep):
            run._sleep(step)
            return
        run._lane = self._queue(run, step)

    def _queue(self, caller: Caller, step: Step) -> Lane[Caller]:
        self._steps += 1
        key = step.key
        lane = None if key is None else self._lanes.get(key)
        if lane is None:
            lane = Lane(key)
            if key is not None:
                self._lanes[key] = lane
        lane.waiting[caller] = step
        if not lane.busy:
            lane.busy = True
            self._refresh(lane)
        return lane

    def _refresh(self, lane: Lane[Caller]) -> None:
        """Its next batch goes off at the end of this turn of the loop, with all that is asked for until then."""
        if not self._fresh:
            self._loop.call_soon(self._flush)
        self._fresh.append(lane)

    def _flush(self) -> None:
        fresh, self._fresh = self._fresh, []
        for lane in fresh:
            job = self._next_job(lane)
            if job.callers:
                self._send(job)
            elif lane.waiting:
                self._refresh(lane)
            else:
                lane.busy = False
                self._lanes.pop(lane.key, None)

    def _next_job(self, lane: Lane[Caller]) -> _Job:
        job = _Job(lane)
        for caller, step in lane.cut().items():
            if isinstance(caller, Run):
                caller._lane = None  # it left by itself when it was cancelled
            elif caller.done():
                self._steps -= 1
                self._ended()
                continue
            job.callers.append(caller)
            job.steps.append(step)
        return job

    def _send(self, job: _Job) -> None:
        if self._away == len(self._workers) < self.threads:
            worker = threading.Thread(target=self._work, name="penstock-bridge", daemon=True)
            self._workers.append(worker)
            worker.start()
        self._away += 1
        self._jobs.put(job)

    def _answer(self, job: _Job, answers: list[Any]) -> None:
        """A batch is back: each flow goes on with its answer."""
        self._away -= 1
        self._steps -= len(job.callers)
        for caller, step, answer in zip(job.callers, job.steps, answers, strict=True):
            if isinstance(caller, Run):
                caller._receive(step, answer)
            else:
                self._settle(caller, answer)
        self._refresh(job.lane)
        if self._closing:
            self._moved.set()

    def _settle(self, future: Caller, answer: Any) -> None:
        if not future.done():  # else it was cancelled
            if isinstance(answer, Failure):
                future.set_exception(answer.error)
            else:
                future.set_result(answer)
        self._ended()

    def _ended(self) -> None:
        self._runs -= 1
        if self._closing:
            self._moved.set()
        if self._abandoned and not self._runs:
            self._dismiss()

    def _dismiss(self) -> None:
        for _ in self._workers:
            self._jobs.put(None)

    def _undo(self, step: Step) -> None:
        self._begin(_undoing(step))

    def _open_inbox(self) -> None:
        self._called = False  # before the look: what is posted from now on calls again
        for _ in range(len(self._inbox)):
            self._loop.call_soon(self._inbox.popleft())

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._moved.clear()
            await self._moved.wait()

    # in the threads

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None and self._carry(job):
            del job  # an idle thread holds on to nobody's data

    def _carry(self, job: _Job) -> bool:
        answers = carry_out(job.steps)
        if self.post(partial(self._answer, job, answers)):
            return True
        for step, answer in zip(job.steps, answers, strict=True):  # nobody is left to tell
            back = None if isinstance(answer, Failure) else step.undo(answer)
            if back is not None:
                carry_out([back])
        return False


class _Job:
    """One batch on its way to a thread and back."""

    __slots__ = ("callers", "lane", "steps")

    def __init__(self, lane: Lane[Caller]) -> None:
        self.lane = lane
        self.callers: list[Caller] = []
        self.steps: list[Step] = []


def _closed() -> StoreUnavailable:
    return StoreUnavailable("this broker is closed: connect again")


def _alone(call: Callable[[], R]) -> Flow[R]:
    return cast(R, (yield Call(call)))


def _undoing(step: Step) -> Flow[None]:
    try:
        yield step
    except PenstockError as error:
        # It comes back all the same: at its ttr, or with the end of the session.
        log.warning("what a cancelled caller was given could not be given back now: %s", error)
