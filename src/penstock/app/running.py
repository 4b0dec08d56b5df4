"""One run of a handler: its span, the hooks around it, and its task in every log record."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, AsyncExitStack, ExitStack
from contextvars import copy_context
from typing import TYPE_CHECKING, Any

from penstock.app.current import Run, find_task
from penstock.app.tracing import continued

if TYPE_CHECKING:
    from penstock.app.app import AnyHandler


def call(handler: AnyHandler, run: Run, stored: object, traced: Mapping[str, object] | None) -> object:
    """Run the handler. Returns its result. `traced`: the task's data, if it carries a trace context."""
    if traced is None and not handler.hooks.around:
        return handler.arguments.call(handler.function, stored)
    task = run.current_tasks()[0]
    with continued(traced or {}, task.tube, task.id), ExitStack() as stack:
        for around in handler.hooks.around:
            context = around(task)
            if not isinstance(context, AbstractAsyncContextManager):
                stack.enter_context(context)
        return handler.arguments.call(handler.function, stored)
    return None  # a hook has caught the exception: the run is done


async def call_async(handler: AnyHandler, run: Run, stored: object, traced: Mapping[str, object] | None) -> object:
    """As `call`, for a coroutine function."""
    if traced is None and not handler.hooks.around:
        return await handler.arguments.call(handler.function, stored)
    task = run.current_tasks()[0]
    with continued(traced or {}, task.tube, task.id):
        async with AsyncExitStack() as stack:
            for around in handler.hooks.around:
                context = around(task)
                if isinstance(context, AbstractAsyncContextManager):
                    await stack.enter_async_context(context)
                else:
                    stack.enter_context(context)
            return await handler.arguments.call(handler.function, stored)
    return None


def call_here(handler: AnyHandler, run: Run, stored: object, traced: Mapping[str, object] | None) -> object:
    """As `call`; a coroutine runs to its end in a new event loop."""
    if not inspect.iscoroutinefunction(handler.function):
        return call(handler, run, stored, traced)
    coroutine = call_async(handler, run, stored, traced)
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    with ThreadPoolExecutor(1) as other:  # this thread is in a loop already
        return other.submit(copy_context().run, asyncio.run, coroutine).result()


def log_tasks() -> None:
    """Give every log record the task that is handled where it is made: `penstock_id`, `_task` (its name), `_tube`.

    All are None outside of a handler. The names have a prefix, so that `extra=` of a program's own cannot clash.
    """
    before = logging.getLogRecordFactory()
    if getattr(before, "of_penstock", False):
        return

    def make(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record, task = before(*args, **kwargs), find_task()
        data = {} if task is None or not isinstance(task.data, dict) else task.data
        record.penstock_id = None if task is None else task.id
        record.penstock_tube = None if task is None else task.tube
        record.penstock_task = data.get("task")
        return record

    make.of_penstock = True  # type: ignore[attr-defined]
    logging.setLogRecordFactory(make)
