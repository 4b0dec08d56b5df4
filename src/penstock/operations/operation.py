"""Verbs, written once for threads and asyncio.

A verb is an operation: a generator that checks its arguments, yields the store operations it needs, and is sent their
answers. `@blocking` runs them in the caller's thread; `aio/executor.py` runs those of many callers in shared batches.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Sequence
from copy import copy
from functools import wraps
from inspect import signature
from typing import Any, ParamSpec, TypeVar

from penstock.errors import NoSuchTube, PenstockError, StoreError
from penstock.runtime.wait_queue import Waiter

P = ParamSpec("P")
R = TypeVar("R")


class StoreOp:
    """One thing that an operation waits for. `run` does it alone, `run_batch` together with others of equal key."""

    __slots__ = ()

    @property
    def key(self) -> Hashable:
        """Operations of equal keys that are submitted at the same time share a store call; with None, it never does."""
        return None

    @property
    def size(self) -> int:
        """The approximate number of bytes that the operation adds to a shared store call."""
        return 0

    @property
    def run_if_cancelled(self) -> bool:
        """Whether the operation still runs if its caller is cancelled before it has begun."""
        return False

    def run(self) -> Any:
        """Run the operation in the calling thread."""
        raise NotImplementedError

    def run_batch(self, ops: Sequence[Any]) -> list[Any]:
        """Run these operations, of which this is the first. Returns an answer or a Failure for each.

        If this raises, nothing has been stored.
        """
        return [op.run() for op in ops]

    def compensate(self, answer: Any) -> StoreOp | None:
        """The operation that undoes an answer which its cancelled caller never received."""
        return None


Operation = Generator[StoreOp, Any, R]


class Failure:
    """An answer that the operation receives as an exception."""

    __slots__ = ("error",)

    def __init__(self, error: BaseException) -> None:
        self.error = error


def _nothing(answer: object) -> None:
    """Do nothing: there is nothing to compensate."""


class Call(StoreOp):
    """Any blocking call. Calls of equal key run one after the other in the same thread."""

    __slots__ = ("_call", "_compensate", "_key")

    def __init__(
        self, call: Callable[[], Any], key: Hashable = None, *, compensate: Callable[[Any], StoreOp | None] = _nothing
    ) -> None:
        self._call = call
        self._key = key
        self._compensate = compensate

    @property
    def key(self) -> Hashable:
        return self._key

    def run(self) -> Any:
        return self._call()

    def compensate(self, answer: Any) -> StoreOp | None:
        return self._compensate(answer)


class Sleep(StoreOp):
    """Sleep until the waiter is woken or the time is over. Makes no store call."""

    __slots__ = ("seconds", "waiter")

    def __init__(self, waiter: Waiter, seconds: float | None) -> None:
        self.waiter = waiter
        self.seconds = seconds

    def run(self) -> bool:
        return self.waiter.sleep(self.seconds)


def blocking(operation: Callable[P, Operation[R]]) -> Callable[P, R]:
    """Make a blocking function of an operation. `penstock.aio` finds the operation in its attribute `operation`."""

    @wraps(operation)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        steps = operation(*args, **kwargs)
        try:
            step = steps.send(None)
            while True:
                try:
                    answer = step.run()
                except BaseException as error:  # KeyboardInterrupt too: the operation may have to clean up
                    step = steps.throw(error)
                else:
                    step = steps.send(answer)
        except StopIteration as end:
            result: R = end.value
            return result

    call.operation = operation  # type: ignore[attr-defined]
    _show_result(call, operation)
    return call


def _show_result(call: Callable[..., object], operation: Callable[..., object]) -> None:
    """Make `help` and other tools show what the blocking function returns, not the generator behind it."""
    shown = signature(operation)
    result = str(shown.return_annotation).removeprefix("Operation[").removesuffix("]")
    call.__annotations__ = {**operation.__annotations__, "return": result}
    call.__signature__ = shown.replace(return_annotation=result)  # type: ignore[attr-defined]


def operation_of(verb: Callable[..., R]) -> Callable[..., Operation[R]]:
    """The operation of a blocking verb, as a function of the handle and the verb's arguments."""
    found: Callable[..., Operation[R]] = verb.operation  # type: ignore[attr-defined]
    return found


def blocking_with_fast_path(fast: Callable[..., R | None]) -> Callable[[Callable[P, Operation[R]]], Callable[P, R]]:
    """Like `blocking`, but a call without options tries `fast` first; None from it means that it does not apply."""

    def decorate(operation: Callable[P, Operation[R]]) -> Callable[P, R]:
        general = blocking(operation)

        @wraps(general)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            if not kwargs and len(args) == 2:
                answer = fast(*args)
                if answer is not None:
                    return answer
            return general(*args, **kwargs)

        return call

    return decorate


def run_ops(ops: Sequence[StoreOp]) -> list[Any]:
    """Run store operations of one key. Returns an answer or a Failure for each. Blocks.

    A batch that is refused because of one operation is halved until each has its own answer.
    """
    try:
        return ops[0].run_batch(ops)
    except BaseException as error:
        # An error of the store or the tube is the same for all, and some of it may have been stored.
        if len(ops) == 1 or not isinstance(error, PenstockError) or isinstance(error, (StoreError, NoSuchTube)):
            return [Failure(copy_error(error)) for _ in ops]
    middle = len(ops) // 2
    return run_ops(ops[:middle]) + run_ops(ops[middle:])


def copy_error(error: BaseException) -> BaseException:
    """A copy of the error for each caller, because a raised error carries its caller's traceback."""
    if not isinstance(error, PenstockError):
        return error
    copied = copy(error).with_traceback(error.__traceback__)
    copied.__cause__ = error.__cause__
    return copied
