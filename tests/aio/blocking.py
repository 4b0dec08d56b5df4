"""A pytest plugin that runs the behaviour suite through awaited verbs: `pytest -p tests.aio.blocking tests/behaviour`.

Brokers of `penstock.connect` are then aio ones in a loop of another thread, wrapped so that their verbs block.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

import penstock
from penstock import aio

_loop = asyncio.new_event_loop()
# Attributes of the blocking handles that are not part of their public interface.
_INTERNAL = ("runtime", "session_handle", "stored")
_HANDLES = (aio.Broker, aio.Group, aio.Session, aio.Task, aio.Tube)


class Blocking:
    """An aio handle whose verbs block."""

    def __init__(self, handle: Any) -> None:
        self.__dict__["_handle"] = handle

    def __getattr__(self, name: str) -> Any:
        if (name.startswith("_") or name in _INTERNAL) and hasattr(self._handle, "sync"):
            return getattr(self._handle.sync, name)
        found = getattr(self._handle, name)
        return partial(_call, found) if callable(found) and not isinstance(found, type) else found

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self._handle, name, value)

    def __enter__(self) -> Blocking:
        return self

    def __exit__(self, *error: Any) -> None:
        _wait(self._handle.__aexit__(*error))

    def __iter__(self) -> Iterator[object]:
        return iter(self._handle)

    def __len__(self) -> int:
        return len(getattr(self._handle, "sync", 0))  # type: ignore[arg-type]  # a task has none: TypeError

    def __bool__(self) -> bool:
        return True

    def __contains__(self, id: object) -> bool:
        return id in self._handle.sync

    def __repr__(self) -> str:
        return repr(self._handle)


def _wait(waiting: Any) -> Any:
    return asyncio.run_coroutine_threadsafe(waiting, _loop).result()


def _call(verb: Any, *args: Any, **kwargs: Any) -> Any:
    if verb.__name__ == "on_change" and callable(args[0]):
        args = (_BlockingCallback(args[0]),)
    answer = verb(*map(_given, args), **{name: _given(value) for name, value in kwargs.items()})
    return _got(_wait(_await(answer)) if hasattr(answer, "__await__") else answer)


async def _await(answer: Any) -> Any:
    return await answer


def _given(value: Any) -> Any:
    if isinstance(value, list):
        return [each._handle if isinstance(each, Blocking) else each for each in value]
    return value._handle if isinstance(value, Blocking) else value


class _BlockingCallback:
    """A callback that gets tasks whose verbs block."""

    def __init__(self, callback: Any) -> None:
        self.callback = callback

    def __call__(self, task: aio.Task, event: str) -> None:
        self.callback(Blocking(task), event)


def _got(value: Any) -> Any:
    if isinstance(value, list):
        return [_got(each) for each in value]
    if isinstance(value, _BlockingCallback):
        return value.callback
    return Blocking(value) if isinstance(value, _HANDLES) else value


def _connect(*args: Any, **kwargs: Any) -> Any:
    return Blocking(_wait(_await(aio.connect(*args, **kwargs))))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Deselect tests that block in a callback: callbacks run in the event loop's thread here."""
    blocking = ("test_the_callback_runs_after_the_change_is_stored", "test_the_callback_may_use_the_tube")
    items[:] = [item for item in items if not item.name.startswith(blocking)]


def pytest_configure() -> None:
    """Replace connect for the whole run."""
    threading.Thread(target=_loop.run_forever, daemon=True).start()
    penstock.connect = _connect
