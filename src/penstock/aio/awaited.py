"""Turns blocking verbs into awaited ones: the executor runs the verb's operation, or the whole call in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from functools import partial, wraps
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Self, TypeVar, overload

from penstock.aio.executor import BatchExecutor
from penstock.broker import group_handle, session, tube
from penstock.core import task
from penstock.operations.operation import Call, Operation

if TYPE_CHECKING:
    from penstock.aio.handles import Group, Session, Task, Tube

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")
Awaited = Coroutine[Any, Any, R]


class Handle(Generic[S]):
    """A blocking handle and the executor that runs its verbs."""

    def __init__(self, executor: BatchExecutor, sync: S) -> None:
        self.executor = executor
        self.sync = sync

    def __repr__(self) -> str:
        return repr(self.sync)


@overload
def awaited(verb: Callable[Concatenate[Any, P], None]) -> Callable[Concatenate[Any, P], Awaited[None]]: ...
@overload
def awaited(verb: Callable[Concatenate[Any, P], task.Task]) -> Callable[Concatenate[Any, P], Awaited[Task]]: ...
@overload
def awaited(
    verb: Callable[Concatenate[Any, P], list[task.Task]],
) -> Callable[Concatenate[Any, P], Awaited[list[Task]]]: ...
@overload
def awaited(
    verb: Callable[Concatenate[Any, P], task.Task | None],
) -> Callable[Concatenate[Any, P], Awaited[Task | None]]: ...
@overload
def awaited(verb: Callable[Concatenate[Any, P], tube.Tube]) -> Callable[Concatenate[Any, P], Awaited[Tube]]: ...
@overload
def awaited(
    verb: Callable[Concatenate[Any, P], group_handle.Group],
) -> Callable[Concatenate[Any, P], Awaited[Group]]: ...
@overload
def awaited(
    verb: Callable[Concatenate[Any, P], session.Session],
) -> Callable[Concatenate[Any, P], Awaited[Session]]: ...
@overload
def awaited(verb: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], Awaited[R]]: ...
def awaited(verb: Callable[..., Any]) -> Callable[..., Awaited[Any]]:
    """Make the awaited form of a blocking verb. Handles and tasks that it returns have awaited verbs, too."""
    name = verb.__name__

    @wraps(verb)
    async def call(handle: Handle[Any], *args: Any, **kwargs: Any) -> Any:
        own = getattr(handle.sync, name)  # some kinds of tubes have additional verbs
        operation = getattr(own, "operation", None)
        run = handle.executor.run(
            whole(own, *args, **kwargs) if operation is None else operation(handle.sync, *args, **kwargs)
        )
        try:
            result = await run
        except asyncio.CancelledError:
            run.discard_result()
            raise
        kind = type(result)
        return (CONVERSIONS.get(kind) or _conversion_for(kind))(handle, result)

    return call


Conversion = Callable[[Handle[Any], Any], Any]
#: Return type of a blocking verb -> function that converts it for the awaited verb.
CONVERSIONS: dict[type, Conversion] = {}


def _conversion_for(kind: type) -> Conversion:
    known = (CONVERSIONS[base] for base in kind.__mro__ if base in CONVERSIONS)
    return CONVERSIONS.setdefault(kind, next(known, lambda handle, given: given))


def whole(verb: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> Operation[R]:
    """Run a whole blocking call in a thread. If its caller is cancelled, the handle that the call opened is closed."""
    result: R = yield Call(partial(verb, *args, **kwargs), compensate=_closing)
    return result


def _closing(opened: object) -> Call | None:
    close = getattr(opened, "close", None)
    return None if close is None else Call(close)


class Closing:
    """A handle that `async with` closes."""

    async def close(self) -> None:
        """Close the handle."""
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()


C = TypeVar("C", bound=Closing)


class Opening(Closing, Generic[C]):
    """A handle that is being opened: `await` it, or use it in `async with`, which also closes it."""

    def __init__(self, opening: Callable[[], Awaited[C]]) -> None:
        self._open = opening

    def __await__(self) -> Generator[Any, Any, C]:
        return self._open().__await__()

    async def __aenter__(self) -> C:  # type: ignore[override]
        self._opened = await self._open()
        return self._opened

    async def close(self) -> None:
        await self._opened.close()
