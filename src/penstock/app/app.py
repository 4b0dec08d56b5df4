"""An application: its handlers, its schedules, and the store they share."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, Protocol, TypeVar, Unpack, cast, overload

from penstock.app.app_connection import AppConnection
from penstock.app.call_group import CallGroup
from penstock.app.handle import Handle
from penstock.app.handler import Handler, NamedHandler
from penstock.app.handler_options import HandlerOptions, TaskOptions, make_rules
from penstock.app.hooks import Around, Hooks, OnEnd, OnError, OnProcess, OnPut, OnStart, must_be_hook
from penstock.app.schedules import Schedules, declared
from penstock.broker.broker import Broker
from penstock.core import names
from penstock.core.values import Seconds, flag
from penstock.errors import BadValue
from penstock.schedule.plan import Cron, Every, Plan
from penstock.schedule.schedule_status import SCHEDULE_TUBE
from penstock.schedule.scheduler import Declared
from penstock.schedule.ticks import check_catch_up

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
F = TypeVar("F", bound=OnPut)
G = TypeVar("G", bound=OnStart)
H = TypeVar("H", bound=OnEnd)
E = TypeVar("E", bound=OnError)
S = TypeVar("S", bound=OnProcess)
A = TypeVar("A", bound=Around)

AnyHandler = Handler[..., Any, Any]


class Decorator(Protocol):
    """Turns a function, sync or async, into a handler."""

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Handler[P, R, Coroutine[Any, Any, R]]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Handler[P, R, R]: ...


class BatchDecorator(Protocol):
    """Turns a function of one list into a batch handler; `.put` takes one element."""

    @overload
    def __call__(
        self, function: Callable[[list[T]], Coroutine[Any, Any, R]], /
    ) -> Handler[[T], Any, Coroutine[Any, Any, R]]: ...
    @overload
    def __call__(self, function: Callable[[list[T]], R], /) -> Handler[[T], Any, R]: ...


class App:
    """The handlers of a program. Connects at the first put, and again in a forked child."""

    def __init__(self, url: str | None = None) -> None:
        self.handlers: dict[str, AnyHandler] = {}
        self.hooks = Hooks()
        self.connection = AppConnection(url)
        #: The schedules of decorators, and those that are set and deleted as data.
        self.schedules = Schedules(self.connection)

    def __repr__(self) -> str:
        return f"<App with {len(self.handlers)} handlers>"

    @overload
    def task(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Handler[P, R, Coroutine[Any, Any, R]]: ...
    @overload
    def task(self, function: Callable[P, R], /) -> Handler[P, R, R]: ...
    @overload
    def task(self, function: None = None, /, **options: Unpack[HandlerOptions]) -> Decorator: ...
    @overload
    def task(
        self, function: None = None, /, *, batch: int, linger: Seconds | None = None, **options: Unpack[HandlerOptions]
    ) -> BatchDecorator: ...
    def task(self, function: Callable[..., Any] | None = None, /, **options: Unpack[TaskOptions]) -> Any:
        """Turn a function into a handler: `.put(…)` stores a task, and a worker calls the function.

        `name` identifies the handler in tasks (default: the function's name). `executor` is thread, process or async
        (default: what the function needs). `backoff` is the wait after a failure, `time_limit` the longest run. With
        `batch`, the function receives a list of up to that many tasks, after waiting up to `linger` seconds for more.
        All other options are defaults for its puts.
        """
        if function is None:
            return lambda function: self._add(function, options)
        return self._add(function, options)

    def cron(
        self,
        expression: str,
        *,
        timezone: str | None = "UTC",
        catch_up: str | None = "none",
        overlap: bool | None = True,
        **options: Unpack[HandlerOptions],
    ) -> Decorator:
        """Run the function at the times of a cron expression in a time zone.

        catch_up decides about times that were missed because no worker ran or the tube was paused: run none of them,
        one for all, or all. With overlap=False, a tick is skipped while the last one is still in its tube. The other
        options are those of `task`.
        """
        return self._schedule(Cron(expression, "UTC" if timezone is None else timezone), catch_up, overlap, options)

    def every(
        self, seconds: Seconds, *, catch_up: str | None = "none", overlap: bool | None = True,
        **options: Unpack[HandlerOptions],
    ) -> Decorator:  # fmt: skip
        """Run the function at multiples of `seconds` since the Unix epoch."""
        return self._schedule(Every(seconds), catch_up, overlap, options)

    def _schedule(self, plan: Plan, catch_up: str | None, overlap: bool | None, options: HandlerOptions) -> Decorator:
        checked = check_catch_up("none" if catch_up is None else catch_up)
        overlaps = overlap is None or flag("overlap", overlap)
        tube = options.get("tube")
        where: HandlerOptions = {**options, "tube": SCHEDULE_TUBE if tube is None else tube}

        def decorate(function: Any) -> Any:
            handler = function if isinstance(function, Handler) else self._add(function, cast(TaskOptions, where))
            handler.arguments.must_need_none()
            declared(self.schedules).append(Declared(handler, plan, checked, overlaps))
            return handler

        return cast(Decorator, decorate)

    def _add(self, function: Callable[..., Any], options: TaskOptions) -> AnyHandler:
        if not callable(function):
            raise BadValue(f"{names.shown(function)} is not a function: put @app.task before a def or an async def")
        given = options.get("name")
        name = names.name("task name", getattr(function, "__name__", None) if given is None else given)
        if name in self.handlers:
            raise BadValue(f"this app has a task {name} already: give one of them another name=")
        rules = make_rules(name, function, options)
        handler: AnyHandler = Handler(self.connection, name, function, rules, self.hooks)
        self.handlers[name] = handler
        return handler

    def group(self, name: str, tube: str | None = None, *, on_failure: str = "hold") -> CallGroup:
        """Begin a group of calls that start together when the `with` block ends; `then` sets a call to follow them.

        on_failure decides what happens to a call that would be buried: `hold` buries it, and the group waits for it;
        `continue` fails it; `cancel` fails it and cancels the rest.
        """
        return CallGroup(self.connection, name, tube, on_failure)

    def handler(self, name: str, *, tube: str | None = None) -> NamedHandler:
        """A handler by its name, to put tasks for a function that this program does not import.

        The worker binds and checks the arguments; a task whose arguments do not fit is buried.
        """
        return NamedHandler(self.connection, name, tube, self.hooks)

    def put(self, name: str, /, *args: object, **kwargs: object) -> Handle[Any]:
        """Store a task for a handler in tube `default`, by its name; every keyword is an argument of it."""
        return self.handler(name).put_arguments(args, kwargs)

    def on_put(self, callback: F) -> F:
        """Register a callback that receives the handles of tasks after they are stored: `@app.on_put`."""
        must_be_hook("on_put", callback)
        self.hooks.put.append(callback)
        return callback

    def on_start(self, callback: G) -> G:
        """Register a callback that a worker calls with each task before its handler runs."""
        must_be_hook("on_start", callback)
        self.hooks.start.append(callback)
        return callback

    def on_end(self, callback: H) -> H:
        """Register a callback for the end of a handler: it receives the task, the error or None, and the seconds."""
        must_be_hook("on_end", callback)
        self.hooks.end.append(callback)
        return callback

    def on_retry(self, callback: E) -> E:
        """Register a callback for tasks that are about to be retried: it receives the task and the error."""
        must_be_hook("on_retry", callback)
        self.hooks.retry.append(callback)
        return callback

    def on_bury(self, callback: E) -> E:
        """Register a callback for tasks that are about to be buried: it receives the task and the error."""
        must_be_hook("on_bury", callback)
        self.hooks.bury.append(callback)
        return callback

    def on_startup(self, callback: S) -> S:
        """Register a function, plain or async, that every worker and child process runs before its first task."""
        must_be_hook("on_startup", callback, may_be_async=True)
        self.hooks.startup.append(callback)
        return callback

    def on_shutdown(self, callback: S) -> S:
        """Register a function, plain or async, that every worker and child process runs after its last task."""
        must_be_hook("on_shutdown", callback, may_be_async=True)
        self.hooks.shutdown.append(callback)
        return callback

    def around(self, function: A) -> A:
        """Run a generator function around every run of a handler: it is given the task and yields once.

        What the handler raises is raised at the yield. The first registered is the outermost. An async generator
        function is for async handlers only.
        """
        self.hooks.add_around(function)
        return function

    @property
    def broker(self) -> Broker:
        """The broker of the app's store; the first use connects."""
        return self.connection.broker

    def close(self) -> None:
        """Close the connection to the store. The next put connects again."""
        self.connection.close()
