"""The options of a handler: its tube, how it runs, and the defaults of its puts."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

from penstock.app.arguments import PUT_OPTIONS
from penstock.core import names
from penstock.core.backoff import Backoff
from penstock.core.entry import make_entry
from penstock.core.kind import Kind
from penstock.core.options import PutOptions, Tube
from penstock.core.values import Seconds, positive_ms, span_ms, whole
from penstock.errors import BadValue

DEFAULT_TUBE = "default"
# Accepts every option that a task can have.
_ANY_KIND = Kind("any", frozenset({"pri", "ttl", "ttr", "delay", "utube", "rank"}), per_utube=True)
EXECUTORS = ("thread", "process", "async")
# The largest batch: what a worker takes at once.
MAX_BATCH = 1000


class HandlerOptions(PutOptions, total=False):
    """Options of `@app.cron`, `@app.every` and `@app.task`: those named here, and put options as defaults."""

    name: str | None
    tube: str | None
    executor: str | None
    backoff: Backoff | None
    time_limit: Seconds | None


class TaskOptions(HandlerOptions, total=False):
    """Options of `@app.task`."""

    batch: int | None
    linger: Seconds | None


class Rules(NamedTuple):
    """The validated options of a handler."""

    tube: str
    executor: str
    backoff: Backoff | None
    options: PutOptions
    time_limit: float | None = None  # seconds that one run may take
    batch: int | None = None  # the maximum number of tasks per call of a batch handler
    linger: float = 0.0  # seconds that a batch waits for more tasks


def make_rules(name: str, function: Callable[..., Any], options: TaskOptions) -> Rules:
    """Validate the options of a handler. Raises BadValue for an unknown one, or one that does not fit the function."""
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise BadValue(f"{name} is a generator function, so calling it would run nothing: return the values instead")
    own = ("name", "tube", "executor", "backoff", "time_limit", "batch", "linger")
    puts: PutOptions = {option: value for option, value in options.items() if option not in own}  # type: ignore[assignment]
    known = PUT_OPTIONS - {"timeout"}
    for option in puts:
        if option not in known:
            raise BadValue(f"option {option} of {name} is unknown: use {', '.join((*own, *sorted(known)))}")
    # Refuses bad values. An option that the tube's kind does not accept is refused at the put.
    make_entry(Tube(0, name, _ANY_KIND, {}), None, puts)
    backoff = options.get("backoff")
    if backoff is not None and not isinstance(backoff, Backoff):
        raise BadValue(f"backoff {names.shown(backoff)} of {name}: give a penstock.Backoff")
    tube = options.get("tube")
    name_of_tube = names.name("tube", DEFAULT_TUBE if tube is None else tube)
    limit = options.get("time_limit")
    seconds = None if limit is None else positive_ms("time_limit", limit) / 1000
    batch, linger = options.get("batch"), options.get("linger")
    if batch is None and linger is not None:
        raise BadValue(f"linger of {name} is how long its batch waits for more tasks: give batch=, too")
    return Rules(
        name_of_tube, _executor(name, function, options.get("executor")), backoff, puts, seconds,
        None if batch is None else whole("batch", batch, 1, MAX_BATCH),
        0.0 if linger is None else span_ms("linger", linger) / 1000,
    )  # fmt: skip


def _executor(name: str, function: Callable[..., Any], executor: str | None) -> str:
    is_async = inspect.iscoroutinefunction(function)
    if executor is None:
        return "async" if is_async else "thread"
    if executor not in EXECUTORS:
        raise BadValue(f"executor {names.shown(executor)} of {name} is unknown: give {', '.join(EXECUTORS)}")
    if is_async != (executor == "async"):
        what = "an async def" if is_async else "not an async def"
        raise BadValue(f"executor {executor} does not fit {name}, which is {what}: leave executor out")
    return executor
