"""Puts and waits in an event loop, without blocking it; concurrent puts share a store call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Generic, ParamSpec, TypeVar, Unpack, cast

from penstock.app.app_connection import AppConnection
from penstock.app.arguments import CallOptions
from penstock.app.handle import Handle
from penstock.app.put_signature import with_options
from penstock.broker.outcome import Outcome
from penstock.core.names import task_id
from penstock.core.values import Seconds
from penstock.operations.operation import Call as Blocking
from penstock.operations.operation import Operation, operation_of

if TYPE_CHECKING:
    from penstock.app.call import Call
    from penstock.app.handler import Given, Handler

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class AwaitedHandler(Generic[P, R]):
    """Async versions of a handler's verbs. Usable from any event loop; each loop has its own threads."""

    def __init__(self, handler: Handler[P, R, object], options: CallOptions) -> None:
        self._handler = handler
        self._options = options

    @with_options
    async def put(self, /, *args: P.args, **kwargs: P.kwargs) -> AwaitedHandle[R]:
        """Like the handler's `put`."""
        return await self._handler.make_call(args, kwargs, self._options).aio.put()

    async def put_many(self, items: Iterable[object], **shared: Unpack[CallOptions]) -> list[AwaitedHandle[R]]:
        """Like the handler's `put_many`."""
        return await _put(self._handler, self._handler.calls(items, {**self._options, **shared}))

    def handle(self, id: int) -> AwaitedHandle[R]:
        """The handle of the task with that id, for programs that did not put it."""
        return AwaitedHandle(self._handler, task_id(id))


class AwaitedCall(Generic[R]):
    """A call, put in an event loop."""

    def __init__(self, call: Call[R]) -> None:
        self._call = call

    async def put(self) -> AwaitedHandle[R]:
        """Store a task that makes this call."""
        return (await _put(self._call.handler, [self._call.given]))[0]


class AwaitedHandle(Generic[R]):
    """Async version of `Handle`: waits for one task and reads how it ended."""

    def __init__(self, handler: Handler[..., R, object], id: int) -> None:
        self._handler = handler
        self.id = id

    def __repr__(self) -> str:
        return f"<Handle of {self._handler.name} {self.id}>"

    async def wait(self, timeout: Seconds | None = None) -> Outcome:  # noqa: ASYNC109 - as the blocking one
        """Like `Handle.wait`; it occupies no thread while it waits."""

        def operation() -> Operation[Outcome]:
            handle = Handle(self._handler, (yield from self._handler.find_tube()), self.id)
            return (yield from operation_of(handle.wait)(handle, timeout))

        return await _carried(self._handler.connection, operation())

    async def result(self, timeout: Seconds | None = None) -> R:  # noqa: ASYNC109 - as the blocking one
        """Wait for the result of the function. Raises TaskFailed if the task did not succeed."""
        return cast(R, (await self.wait(timeout)).unwrap())

    async def status(self) -> str:
        """Like `Handle.status`."""
        return await self._blocking(lambda: self._handler.handle(self.id).status)

    async def cancel(self, reason: str | None = None) -> bool:
        """End the task with the outcome `cancelled`. Returns False if it was not in its tube."""
        return await self._blocking(lambda: self._handler.handle(self.id).cancel(reason))

    async def outcome(self) -> Outcome | None:
        """How the task ended, also if it is buried; None while it is ready, delayed or taken."""
        return await self._blocking(lambda: self._handler.handle(self.id).outcome)

    async def progress(self) -> float | None:
        """The progress that the task's handler last reported."""
        return await self._blocking(lambda: self._handler.handle(self.id).progress)

    async def _blocking(self, call: Callable[[], T]) -> T:
        def operation() -> Operation[T]:
            answer: T = yield Blocking(call)
            return answer

        return await _carried(self._handler.connection, operation())


async def _put(handler: Handler[..., R, object], calls: list[Given]) -> list[AwaitedHandle[R]]:
    handles = await _carried(handler.connection, operation_of(handler.put_calls)(handler, calls))
    return [AwaitedHandle(handler, handle.id) for handle in handles]


async def _carried(connection: AppConnection, operation: Operation[T]) -> T:
    run = connection.executor().run(operation)
    try:
        return await run
    except asyncio.CancelledError:
        run.discard_result()
        raise
