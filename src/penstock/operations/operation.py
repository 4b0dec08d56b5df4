"""Verbs written once, for threads and for asyncio.

A verb is a flow: a generator that checks its arguments, yields the steps it needs of the store and is sent their
answers. A sync verb carries its steps out in the caller's thread; `bridge` carries out those of many callers at once.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Sequence
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from penstock.runtime.wait_queue import Waiter

P = ParamSpec("P")
R = TypeVar("R")


class Step:
    """One thing that a flow waits for: by itself `run`, or `together` with others of its key in one store call."""

    __slots__ = ()

    @property
    def key(self) -> Hashable:
        """Steps of equal keys that are asked for at one moment become one call; None: never."""
        return None

    @property
    def size(self) -> int:
        """What it adds to the size of that call, in bytes or thereabouts."""
        return 0

    @property
    def binding(self) -> bool:
        """Whether it is carried out although its caller has gone before it began."""
        return False

    def run(self) -> Any:
        """Carry it out, here and now."""
        raise NotImplementedError

    def together(self, steps: Sequence[Any]) -> list[Any]:
        """Carry out these, of which it is the first; an answer, or a Failure, for each.

        When this raises, nothing has happened.
        """
        return [step.run() for step in steps]

    def undo(self, answer: Any) -> Step | None:
        """What takes the answer back that its caller has not waited for."""
        return None


Flow = Generator[Step, Any, R]


class Failure:
    """An answer that is to be raised."""

    __slots__ = ("error",)

    def __init__(self, error: BaseException) -> None:
        self.error = error


def _no(answer: object) -> None:
    """Nothing to undo."""


class Call(Step):
    """Any call that blocks: by itself, or one after the other with those of its key."""

    __slots__ = ("_call", "_key", "_undo")

    def __init__(
        self, call: Callable[[], Any], key: Hashable = None, *, undo: Callable[[Any], Step | None] = _no
    ) -> None:
        self._call = call
        self._key = key
        self._undo = undo

    @property
    def key(self) -> Hashable:
        return self._key

    def run(self) -> Any:
        return self._call()

    def undo(self, answer: Any) -> Step | None:
        return self._undo(answer)


class Sleep(Step):
    """Until the waiter is woken or the time is over; no store is asked."""

    __slots__ = ("seconds", "waiter")

    def __init__(self, waiter: Waiter, seconds: float | None) -> None:
        self.waiter = waiter
        self.seconds = seconds

    def run(self) -> bool:
        return self.waiter.sleep(self.seconds)


def verb(flow: Callable[P, Flow[R]]) -> Callable[P, R]:
    """The flow as a plain function that blocks. `penstock.aio` finds the flow itself in its attribute `flow`."""

    @wraps(flow)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        steps = flow(*args, **kwargs)
        try:
            step = steps.send(None)
            while True:
                try:
                    answer = step.run()
                except BaseException as error:  # KeyboardInterrupt too: the flow may have to clean up
                    step = steps.throw(error)
                else:
                    step = steps.send(answer)
        except StopIteration as end:
            result: R = end.value
            return result

    call.flow = flow  # type: ignore[attr-defined]
    return call


def flow_of(blocking: Callable[..., R]) -> Callable[..., Flow[R]]:
    """The flow of a bound verb, as a function of its handle and its arguments."""
    found: Callable[..., Flow[R]] = blocking.flow  # type: ignore[attr-defined]
    return found


def verb_with(short: Callable[..., R | None]) -> Callable[[Callable[P, Flow[R]]], Callable[P, R]]:
    """As verb, but a blocking call that gives no options first tries this short way; None: there is none."""

    def made(flow: Callable[P, Flow[R]]) -> Callable[P, R]:
        whole = verb(flow)

        @wraps(whole)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            if not kwargs and len(args) == 2:
                answer = short(*args)
                if answer is not None:
                    return answer
            return whole(*args, **kwargs)

        return call

    return made
