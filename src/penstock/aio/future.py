"""The future of a flow, which goes on with each answer that the bridge brings; it sleeps and is cancelled here."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.operations.batch import Lane
from penstock.operations.operation import Failure, Flow, Sleep, Step

if TYPE_CHECKING:
    from penstock.aio.executor import Bridge

R = TypeVar("R")
# Whose step it is: a flow's, or one that is asked for by itself.
Caller = asyncio.Future[Any]


class Run(asyncio.Future[R]):
    """A flow on its way, and the future of its result."""

    # On the class, because most runs never set them.
    _asleep: Sleep | None = None
    _timer: asyncio.TimerHandle | None = None
    _back: Step | None = None  # what takes back what it was given
    _quit = False  # its flow knows that it was cancelled
    _refused = False

    def __init__(self, bridge: Bridge, flow: Flow[R], *, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop=loop)
        self._bridge = bridge
        self._flow = flow
        self._lane: Lane[Caller] | None = None  # where its step waits to go off

    def cancel(self, msg: object = None) -> bool:
        """As any future's; what it is given from now on goes back."""
        if not super().cancel(msg):
            return False
        if self._asleep is not None:
            self._awake()
            self._go(Failure(asyncio.CancelledError()))
        elif self._lane is not None and not self._lane.waiting[self].binding:
            self._bridge._steps -= 1
            del self._lane.waiting[self]
            self._lane = None
            self._go(Failure(asyncio.CancelledError()))
        return True

    def forsake(self) -> None:
        """Its awaiter was cancelled: if the result had come by then, nobody got it, and what it gave goes back."""
        if self.done() and not self.cancelled() and self.exception() is None and self._back is not None:
            self._bridge._undo(self._back)

    def _receive(self, step: Step, answer: Any) -> None:
        back = None if isinstance(answer, Failure) else step.undo(answer)
        if back is not None:
            if self.cancelled():
                self._bridge._undo(back)
                answer = Failure(asyncio.CancelledError())
            else:
                self._back = back
        self._go(answer)

    def _go(self, answer: Any) -> None:
        """The flow goes on with this answer. A cancelled one may end, or clean up, and asks for nothing else."""
        step = self._next(answer)
        if step is not None and not self._quit and self.cancelled():
            step = self._next(Failure(asyncio.CancelledError()))
        if step is not None:
            self._bridge._ask(self, step)

    def _next(self, answer: Any) -> Step | None:
        try:
            if not isinstance(answer, Failure):
                return self._flow.send(answer)
            self._quit = self._quit or isinstance(answer.error, asyncio.CancelledError)
            return self._flow.throw(answer.error)
        except StopIteration as end:
            if not self.cancelled():
                self.set_result(end.value)
        except (Exception, asyncio.CancelledError) as error:
            if not self.cancelled():
                self.set_exception(error)
        self._bridge._ended()
        return None

    def _sleep(self, step: Sleep) -> None:
        self._asleep = step
        if step.seconds is not None:
            self._timer = self._loop.call_later(step.seconds, self._wake)
        if step.waiter.call_when_woken(partial(self._bridge.post, self._wake)):
            self._loop.call_soon(self._wake)

    def _wake(self) -> None:
        if self._asleep is not None:
            self._awake()
            self._go(None)

    def _awake(self) -> None:
        if self._asleep is not None:
            self._asleep.waiter.call_when_woken(None)
        self._asleep = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
