"""Tasks of a Django app, which the tests put and run."""

from __future__ import annotations

import asyncio
from typing import Any

from django.db import connection

import penstock
from penstock.django.task_results import base

task = base.task
ran: list[tuple[tuple[Any, ...], dict[str, Any]]] = []


class Declined(Exception):
    """An exception that the project defines."""


@task
def note(*args: Any, **kwargs: Any) -> list[Any]:
    """Returns its arguments, which may have any name."""
    ran.append((args, kwargs))
    return [*args, kwargs]


@task(queue_name="mail", priority=10)
async def greet(name: str) -> str:
    await asyncio.sleep(0)
    return f"hello {name}"


@task
def decline(word: str = "card") -> None:
    raise Declined(f"no {word}\nat all")


@task
def leave() -> None:
    raise SystemExit("bye")


@task
def odd() -> object:
    return {1, 2}


@task
def give_up() -> None:
    raise penstock.Fail("no such customer", code=404)


@task
def once_more() -> Any:
    if penstock.current_task().attempts < 2:
        raise penstock.Retry(delay=60)
    return penstock.current_task().attempts


@task(takes_context=True)
def who(context: Any, suffix: str) -> str:
    result = context.task_result
    return f"{result.status} {result.id} {context.attempt} {result.args} {suffix}"


@task
def one() -> Any:
    with connection.cursor() as cursor:
        return cursor.execute("SELECT 1").fetchone()[0]


@task
def large(text: str) -> int:
    return len(text)
