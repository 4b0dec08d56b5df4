"""Runs handlers: with their trace span, the hooks around them, and the task's id in log records."""

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
    return None  # an `around` hook suppressed the exception: the run succeeded


async def call_async(handler: AnyHandler, run: Run, stored: object, traced: Mapping[str, object] | None) -> object:
    """Like `call`, for a coroutine function."""
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
    """Like `call`; a coroutine function runs to its end in a new event loop."""
    if not inspect.iscoroutinefunction(handler.function):
        return call(handler, run, stored, traced)
    coroutine = call_async(handler, run, stored, traced)
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    with ThreadPoolExecutor(1) as other:  # this thread already runs an event loop
        return other.submit(copy_context().run, asyncio.run, coroutine).result()


def log_tasks() -> None:
    """Add the current task to every log record: `penstock_id`, `penstock_task` (its name), `penstock_tube`.

    All are None outside a handler. The prefix avoids clashes with a program's own `extra=`.
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
