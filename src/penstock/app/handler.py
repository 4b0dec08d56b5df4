"""Handlers: functions of an application that can be called directly, or put to be called by a worker."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar, Unpack, overload

from penstock.app import arguments, tracing
from penstock.app.app_connection import AppConnection
from penstock.app.arguments import PUT_OPTIONS, Arguments, CallOptions, UnknownArguments
from penstock.app.call import Call, new_address
from penstock.app.handle import Handle
from penstock.app.handler_options import DEFAULT_TUBE, Rules
from penstock.app.hooks import Hooks
from penstock.app.put_signature import with_options
from penstock.broker.tube import Tube, fast_put
from penstock.core import names
from penstock.core.ending import KEEP_EXPIRY
from penstock.core.entry import make_entry
from penstock.core.names import task_id
from penstock.core.options import TimedOptions
from penstock.core.task import Record, Task
from penstock.core.values import items as check_items
from penstock.errors import BadValue, NoSuchTube
from penstock.operations.operation import Call as Blocking
from penstock.operations.operation import Operation, blocking, operation_of

if TYPE_CHECKING:
    from penstock.app.async_handler import AwaitedHandler
    from penstock.app.transaction import BoundHandler


R = TypeVar("R")
P = ParamSpec("P")
Q = ParamSpec("Q")
C = TypeVar("C", covariant=True)  # what a direct call returns: the result, or a coroutine

# The arguments, the keywords and the options of one put.
Given = tuple[tuple[object, ...], dict[str, object], dict[str, object]]
# A tube and its fast put, or None if the fast path does not apply.
_Short = tuple[Tube | None, Callable[[object], Record | None] | None]
# Used if neither put, handler nor tube sets max_attempts. With the default back-off, 20 attempts take over an hour.
DEFAULT_ATTEMPTS = 20


class Handler(Generic[P, R, C]):
    """A function decorated with `@app.task`. Calling it runs the function here; `put` stores a task for a worker."""

    #: max_attempts if neither put nor tube sets it; None leaves the decision to the worker's handler.
    default_attempts: int | None = DEFAULT_ATTEMPTS

    def __init__(
        self, connection: AppConnection, name: str, function: Callable[P, C], rules: Rules, hooks: Hooks
    ) -> None:
        self.connection = connection
        self.name = name
        self.function = function
        self.rules = rules
        self.hooks = hooks
        self.arguments = Arguments(name, function, batch=rules.batch is not None)
        self._short: _Short = (None, None)
        functools.update_wrapper(self, function)

    def __repr__(self) -> str:
        return f"<Handler {self.name} of tube {self.rules.tube}>"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> C:
        return self.function(*args, **kwargs)

    @with_options
    def put(self, /, *args: P.args, **given: P.kwargs) -> Handle[R]:
        """Store a task that calls the function with these arguments. The keywords may include put options."""
        handle = self._put_short(args, given)
        return self.put_calls([(args, *self.arguments.split(given))])[0] if handle is None else handle

    def put_many(self, items: Iterable[object], **shared: Unpack[CallOptions]) -> list[Handle[R]]:
        """Store many tasks in one step, like tube.put_many; the put options in `shared` apply to all.

        An item is a tuple of arguments, a dict of keywords (which may include put options), a pair of both, or else
        the single argument.
        """
        return self.put_calls(self.calls(items, shared))

    def calls(self, items: Iterable[object], shared: CallOptions) -> list[Given]:
        """The calls that the items of put_many describe."""
        self.must_be_options("put_many", shared)
        found = []
        for args, given in map(_parts, check_items(items)):
            keywords, own = self.arguments.split(given)
            found.append((args, keywords, {**shared, **own}))
        return found

    @property
    def aio(self) -> AwaitedHandler[P, R]:
        """Async versions of these verbs: `handle = await send.aio.put(…)`, `await handle.result(10)`."""
        return _awaited(self, {})

    def options(self, **options: Unpack[CallOptions]) -> Prepared[P, R]:
        """The same handler with put options: `send.options(delay=10).put(…)`, where type checkers see all arguments."""
        self.must_be_options("options", options)
        return Prepared(self, options)

    @overload
    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]: ...
    @overload
    def call(self: Handler[Concatenate[Any, Q], R, C], *args: Q.args, **kwargs: Q.kwargs) -> Call[R]: ...
    def call(self, *args: Any, **given: Any) -> Call[R]:
        """Describe a call, to be put later: `send.call("ada").options(delay=5).put()`.

        In a chain, leave out the first argument: it is the result of the previous call.
        """
        return self.make_call(args, given, {})

    def make_call(self, args: tuple[object, ...], given: dict[str, object], options: CallOptions) -> Call[R]:
        """A call with these arguments and put options; the keywords may include put options, too."""
        keywords, own = self.arguments.split(given)
        return Call(self, args, keywords, {**options, **own})  # type: ignore[typeddict-item]

    def bind(self, connection: object) -> BoundHandler[P, R]:
        """The same handler inside the caller's own transaction, on SQL stores: `send.bind(connection).put(…)`."""
        from penstock.app.transaction import BoundHandler  # it imports this module

        return BoundHandler(self, connection, {})

    def must_be_options(self, verb: str, given: Iterable[str]) -> None:
        """Raise BadValue for a name that is not a put option."""
        for name in given:
            if name not in PUT_OPTIONS:
                raise BadValue(
                    f"{self.name}.{verb}: {name} is not a put option: give one of {', '.join(sorted(PUT_OPTIONS))}"
                )

    def handle(self, id: int | None = None, *, address: str | None = None) -> Handle[R]:
        """The handle of a task by id or address, for programs that did not put it."""
        tube = self.connection.tube(self.rules.tube)
        if (id is None) == (address is None):
            raise BadValue(f"{self.name}.handle needs either an id or an address")
        if address is not None:
            from penstock.app.call_chain import ChainHandle  # it imports this module

            return ChainHandle(self, tube, address)
        return Handle(self, tube, task_id(id))

    def read_result(self, stored: object) -> object:
        """Convert a stored result to the type that the function's annotation names."""
        return arguments.read(f"the result of {self.name}", stored, self.arguments.hints.get("return", Any))

    def store_result(self, result: object) -> object:
        """Convert a result to JSON types; None if results are not kept."""
        if not self.keeps:
            return None
        return arguments.store(f"the result of {self.name}", result, self.arguments.hints.get("return", Any))

    @functools.cached_property
    def keeps(self) -> bool:
        """Whether results are kept: not if the function is annotated `-> None`."""
        return self.arguments.hints.get("return", Any) is not type(None)

    def _put_short(self, args: tuple[object, ...], given: Mapping[str, object]) -> Handle[R] | None:
        """Put one call by the store's fast path; None if the fast path does not apply."""
        tube = self.connection.opened(self.rules.tube)
        if tube is None or self.connection.eager is not None or not self.arguments.options.isdisjoint(given):
            return None
        if self._short[0] is not tube:
            self._short = tube, self._fast_path(tube)
        short = self._short[1]
        if short is None:
            return None
        stored = self.arguments.store(args, given)
        try:
            with tracing.PutSpan(self.name, tube.name, 1) as span:
                record = short(self._data(stored, span.fields))
        except NoSuchTube:  # dropped; put_calls opens it again
            return None
        if record is None:
            return None
        handle = Handle(self, tube, record.id)
        self.hooks.was_put([handle])
        return handle

    def _fast_path(self, tube: Tube) -> Callable[[object], Record | None] | None:
        _, options = self.make_item(tube, {}, {})
        return None if "address" in options else fast_put(tube, make_entry(tube.stored, None, options))

    @blocking
    def put_calls(self, calls: list[Given]) -> Operation[list[Handle[R]]]:
        """Store a task for each of these calls, in one step."""
        # Read the current span before the first yield: an event loop resumes in another context.
        with tracing.PutSpan(self.name, self.rules.tube, len(calls)) as span:
            try:
                handles = yield from self._put_into((yield from self.find_tube()), calls, span.fields)
            except NoSuchTube:  # dropped since it was opened
                self.connection.forget_tubes()
                handles = yield from self._put_into((yield from self.find_tube()), calls, span.fields)
        if self.connection.eager is not None:
            yield Blocking(self.connection.eager)
        return handles

    def find_tube(self) -> Operation[Tube]:
        """The handler's tube, opened on first use."""
        name = self.rules.tube
        tube = self.connection.opened(name)
        if tube is None:
            tube = yield Blocking(lambda: self.connection.tube(name), ("tube", name))
        return tube

    def _put_into(self, tube: Tube, calls: list[Given], more: Mapping[str, object]) -> Operation[list[Handle[R]]]:
        timeout: Any = calls[0][2].get("timeout", 0) if calls else 0
        items = [self.make_call_item(tube, call, more) for call in calls]
        tasks: list[Task] = yield from operation_of(tube.put_many)(tube, items, timeout=timeout)
        handles = [Handle(self, tube, task.id) for task in tasks]
        self.hooks.was_put(handles)
        return handles

    def make_call_item(self, tube: Tube, call: Given, more: Mapping[str, object]) -> tuple[object, TimedOptions]:
        """The item of tube.put_many for a call; `more` is added to its data."""
        args, keywords, options = call
        return self.make_item(tube, self.arguments.store(args, keywords), options, **more)

    def make_item(
        self, tube: Tube, stored: dict[str, object], given: dict[str, object], **more: object
    ) -> tuple[dict[str, Any], TimedOptions]:
        """The item of tube.put_many for a task that calls the function with stored arguments."""
        options: Any = {**self.rules.options, **given}
        options.pop("timeout", None)
        if self.connection.eager is not None:  # it runs at once, in a tube of the default kind
            options = {"address": options.get("address")}
        if "ttr" in self.rules.options and "ttr" not in given and "ttr" not in tube.stored.kind.accepts:
            del options["ttr"]
        if given.get("at") is not None and given.get("delay") is None:
            options.pop("delay", None)  # the handler's default, which `at` overrides
        if options.get("max_attempts") is None and tube.stored.max_attempts is None and self.default_attempts:
            options["max_attempts"] = self.default_attempts
        if options.get("address") is None:
            if self.keeps:
                options["address"] = new_address()
            elif options.get("reply_to") is None and (options.get("ttl") or tube.stored.ttl) is not None:
                options["reply_to"] = KEEP_EXPIRY  # so that a handle can tell that the task has expired
        return self._data(stored, more), options

    def _data(self, stored: dict[str, object], more: Mapping[str, object]) -> dict[str, Any]:
        """The data of a task that calls the function."""
        return {"task": self.name, "args": stored, **more}


class NamedHandler(Handler[..., Any, Any]):
    """A handler by name, made by `app.handler("name")`; only workers import its function."""

    default_attempts = None

    def __init__(self, connection: AppConnection, name: str, tube: str | None, hooks: Hooks) -> None:
        self.connection = connection
        self.name = names.name("task name", name)
        self.rules = Rules(names.name("tube", DEFAULT_TUBE if tube is None else tube), "thread", None, {})
        self.hooks = hooks
        self.arguments = UnknownArguments(self.name)
        self.function = self._refuse
        self._short = (None, None)

    def _refuse(self, *args: object, **kwargs: object) -> Any:
        raise BadValue(f"{self.name} was made by app.handler(name) and has no function here: put it, or import it")

    def put_arguments(self, args: tuple[object, ...], kwargs: dict[str, object]) -> Handle[Any]:
        """Store a task with these arguments; all keywords are arguments, none is a put option."""
        return self.put_calls([(args, kwargs, {})])[0]

    def _data(self, stored: dict[str, object], more: Mapping[str, object]) -> dict[str, Any]:
        return {"task": self.name, **stored, **more}


class Prepared(Generic[P, R]):
    """A handler with put options, for one put or many."""

    def __init__(self, handler: Handler[P, R, object], options: CallOptions) -> None:
        self._handler = handler
        self._options = options

    def put(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Store a task that calls the function with these arguments."""
        return self._handler.make_call(args, kwargs, self._options).put()

    def put_many(self, items: Iterable[object]) -> list[Handle[R]]:
        """Like the handler's `put_many`, with these options."""
        return self._handler.put_many(items, **self._options)

    @overload
    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]: ...
    @overload
    def call(self: Prepared[Concatenate[Any, Q], R], *args: Q.args, **kwargs: Q.kwargs) -> Call[R]: ...
    def call(self, *args: Any, **given: Any) -> Call[R]:
        """Like the handler's `call`, with these options."""
        return self._handler.make_call(args, given, self._options)

    @property
    def aio(self) -> AwaitedHandler[P, R]:
        """Async versions of these verbs."""
        return _awaited(self._handler, self._options)


def _awaited(handler: Handler[P, R, object], options: CallOptions) -> AwaitedHandler[P, R]:
    from penstock.app.async_handler import AwaitedHandler  # imports asyncio, which most programs do not need

    return AwaitedHandler(handler, options)


def _parts(item: object) -> tuple[tuple[object, ...], dict[str, object]]:
    if isinstance(item, tuple):
        if len(item) == 2 and isinstance(item[0], tuple) and isinstance(item[1], dict):
            return item
        return item, {}
    if isinstance(item, dict):
        return (), item
    return (item,), {}
