"""A call of a handler as a value, to be put alone, by a schedule, in a group or as a link of a chain."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Unpack

from penstock.app.arguments import CallOptions
from penstock.broker.tube import Tube
from penstock.core.names import shown
from penstock.core.options import TimedOptions
from penstock.errors import BadValue

if TYPE_CHECKING:
    from penstock.app.async_handler import AwaitedCall
    from penstock.app.handle import Handle
    from penstock.app.handler import Given, Handler

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Call(Generic[R]):
    """A call, made by `send.call(…)`. Its arguments are checked when it is put."""

    handler: Handler[..., R, object]
    args: tuple[object, ...]
    kwargs: Mapping[str, object]
    put_options: CallOptions
    #: Whether the previous result in a chain becomes the first positional argument.
    takes_result: bool = True

    def options(self, **options: Unpack[CallOptions]) -> Call[R]:
        """The same call with more put options."""
        self.handler.must_be_options("call.options", options)
        return replace(self, put_options={**self.put_options, **options})

    def without_result(self) -> Call[R]:
        """The same call, but in a chain it does not receive the result of the previous link."""
        return replace(self, takes_result=False)

    @property
    def given(self) -> Given:
        """The arguments, keywords and put options, as `Handler.put_calls` accepts them."""
        return self.args, {**self.kwargs}, {**self.put_options}

    def put(self) -> Handle[R]:
        """Store a task that makes this call."""
        return self.handler.put_calls([self.given])[0]

    @property
    def aio(self) -> AwaitedCall[R]:
        """The async version of this call: `handle = await send.call(…).aio.put()`."""
        from penstock.app.async_handler import AwaitedCall  # imports asyncio, which most programs do not need

        return AwaitedCall(self)

    def item(self, tube: Tube, *result: object) -> tuple[dict[str, Any], TimedOptions]:
        """The item of tube.put_many for this call; `result`, if given and wanted, is its first positional argument."""
        args = (*result, *self.args) if self.takes_result else self.args
        return self._item(tube, self.handler.arguments.store(args, self.kwargs))

    def pending_item(self, tube: Tube) -> tuple[dict[str, Any], TimedOptions]:
        """Like `item`, before the previous result is known: `core.chain` adds it to the data's `args`."""
        if not self.takes_result:
            return self.item(tube)
        return self._item(tube, self.handler.arguments.store_rest(self.args, self.kwargs))

    def _item(self, tube: Tube, stored: dict[str, object]) -> tuple[dict[str, Any], TimedOptions]:
        return self.handler.make_item(tube, stored, {**self.put_options})


def must_be_call(given: object) -> None:
    """Raise BadValue for anything but a call."""
    if not isinstance(given, Call):
        raise BadValue(f"{shown(given)} is not a call of a handler: give handler.call(…)")


def new_address() -> str:
    """A new address for a task whose outcome must be kept; outcomes are kept only for addressed tasks.

    It begins with the time in milliseconds, so that tasks put at the same time are adjacent in indexes: with random
    addresses, a worker on SQLite that keeps results had half the throughput, because commits wrote many more pages.
    """
    return f"{time.time_ns() // 1_000_000:x}{secrets.token_urlsafe(9)}"
