"""The settings of a worker, and loading the app that `module:app` names."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping
from itertools import pairwise

import msgspec

from penstock.app.app import App
from penstock.core.names import failure, label, shown
from penstock.core.names import name as tube_name
from penstock.core.values import span_ms, whole
from penstock.errors import BadValue

DEFAULT_CONCURRENCY = 16
DEFAULT_GRACE = 30.0


class Settings(msgspec.Struct, frozen=True):
    """Worker settings. `limits` maps a priority to a number: tasks of it, or less urgent ones, start below that many.

    The number counts all running tasks.
    """

    tubes: tuple[str, ...] = ()  # empty: the tubes of the app's handlers
    concurrency: int = DEFAULT_CONCURRENCY
    processes: int = os.cpu_count() or 1
    limits: tuple[tuple[int, int], ...] = ()
    grace: float = DEFAULT_GRACE
    max_tasks: int | None = None  # stop after this many tasks
    max_memory: int | None = None  # stop above this many resident bytes
    name: str = ""  # shown in the dashboard


def make_settings(
    *, tubes: tuple[str, ...] = (), concurrency: int | None = None, processes: int | None = None,
    limits: Mapping[int, int] | None = None, grace: float = DEFAULT_GRACE, max_tasks: int | None = None,
    max_memory: int | None = None, name: str | None = None,
) -> Settings:  # fmt: skip
    """Validate the settings. The default concurrency is at least the largest limit."""
    ordered = check_limits(limits or {})
    if concurrency is None:
        concurrency = max([DEFAULT_CONCURRENCY, *(most for _, most in ordered)])
    return Settings(
        tuple(tube_name("tube", tube) for tube in tubes),
        whole("concurrency", concurrency, 1, 100_000),
        whole("processes", Settings().processes if processes is None else processes, 1, 1000),
        ordered,
        span_ms("grace", grace) / 1000,
        None if max_tasks is None else whole("max_tasks", max_tasks),
        None if max_memory is None else whole("max_memory", max_memory),
        "" if name is None else label("name", name),
    )


def check_limits(limits: Mapping[int, int]) -> tuple[tuple[int, int], ...]:
    """Validate the limits by priority: a less urgent priority may not have a larger limit than a more urgent one."""
    ordered = tuple(sorted((whole("priority", pri, 0), whole("limit", most)) for pri, most in limits.items()))
    for (urgent, most), (pri, more) in pairwise(ordered):
        if more > most:
            raise BadValue(
                f"limit {pri}={more} is larger than {urgent}={most} of the more urgent priority {urgent}: "
                "give the less urgent priority the same limit or a lower one"
            )
    return ordered


class ImportFailed(Exception):
    """Importing the app's module raised an exception, which is `__cause__`."""


def load_app(target: str) -> App:
    """Import the module, with the current folder on the path, and return its app. Raises BadValue if there is none.

    An exception of the module itself is wrapped in ImportFailed.
    """
    module_name, _, attribute = target.partition(":")
    attribute = attribute or "app"
    if not all(module_name.split(".")):
        raise BadValue(f"{shown(target)} names no module: give module:app")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name and f"{module_name}.".startswith(f"{error.name}."):
            given = module_name.removesuffix(".py").replace("/", ".")
            meant = "module:app" if given == module_name else f"{given}:{attribute}"
            raise BadValue(f"module {shown(module_name)} was not found from {os.getcwd()}: give {meant}") from None
        raise ImportFailed(f"module {shown(module_name)} cannot be imported: {failure(error)}") from error
    found = getattr(module, attribute, None)
    if not isinstance(found, App):
        apps = [f"{module_name}:{name}" for name, value in vars(module).items() if isinstance(value, App)]
        remedy = f"give {' or '.join(apps)}" if apps else "make one there, app = penstock.App(url)"
        raise BadValue(f"{module_name} has no App named {attribute}: {remedy}")
    return found
