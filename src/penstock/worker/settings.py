"""What a worker is started with: its limits, and the app that `module:app` names."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping
from itertools import pairwise

import msgspec

from penstock.app.app import App
from penstock.core.names import name, shown
from penstock.core.values import span_ms, whole
from penstock.errors import BadValue

DEFAULT_CONCURRENCY = 16
DEFAULT_GRACE = 30.0


class Settings(msgspec.Struct, frozen=True):
    """`limits` is priority -> how many may run in total for work of that priority, or a less urgent one, to start."""

    tubes: tuple[str, ...] = ()  # none: all that the app's handlers name
    concurrency: int = DEFAULT_CONCURRENCY
    processes: int = os.cpu_count() or 1
    limits: tuple[tuple[int, int], ...] = ()
    grace: float = DEFAULT_GRACE


def make_settings(
    *, tubes: tuple[str, ...] = (), concurrency: int | None = None, processes: int | None = None,
    limits: Mapping[int, int] | None = None, grace: float = DEFAULT_GRACE,
) -> Settings:  # fmt: skip
    """The settings, everything checked. Without a concurrency, there is room for the largest limit."""
    ordered = check_limits(limits or {})
    if concurrency is None:
        concurrency = max([DEFAULT_CONCURRENCY, *(most for _, most in ordered)])
    return Settings(
        tuple(name("tube", tube) for tube in tubes),
        whole("concurrency", concurrency, 1, 100_000),
        whole("processes", Settings().processes if processes is None else processes, 1, 1000),
        ordered,
        span_ms("grace", grace) / 1000,
    )


def check_limits(limits: Mapping[int, int]) -> tuple[tuple[int, int], ...]:
    """The limits by priority; BadValue where a less urgent priority has a larger one than a more urgent one."""
    ordered = tuple(sorted((whole("priority", pri, 0), whole("limit", most)) for pri, most in limits.items()))
    for (urgent, most), (pri, more) in pairwise(ordered):
        if more > most:
            raise BadValue(
                f"limit {pri}={more} is larger than {urgent}={most} of the more urgent priority {urgent}: "
                "give less urgent work the same room or less"
            )
    return ordered


def load_app(target: str) -> App:
    """Import the module, as if from the current folder, and give its app; BadValue when it is not there."""
    module_name, _, attribute = target.partition(":")
    attribute = attribute or "app"
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name + ".").startswith(error.name + "."):
            raise  # a module that the app's own module asks for
        raise BadValue(f"module {shown(module_name)} is not found from {os.getcwd()}: give module:app") from None
    except ValueError:
        raise BadValue(f"{shown(target)} names no module: give module:app") from None
    found = getattr(module, attribute, None)
    if not isinstance(found, App):
        apps = [f"{module_name}:{name}" for name, value in vars(module).items() if isinstance(value, App)]
        remedy = f"give {' or '.join(apps)}" if apps else "make one there, app = penstock.App(url)"
        raise BadValue(f"{module_name} has no App named {attribute}: {remedy}")
    return found
