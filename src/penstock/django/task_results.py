"""Makes Django's TaskResult objects from stored tasks and outcomes.

The record of a task in its tube has everything. Of a successful task only the outcome is left, so a worker stores
the same facts along with the return value (`Facts`).
"""

from __future__ import annotations

import re
import sys
from datetime import UTC, datetime
from typing import Any

import msgspec
from django.apps import apps
from django.conf import settings
from django.utils import timezone
from django.utils.module_loading import autodiscover_modules

from penstock.app.arguments import Positional, stored_arguments
from penstock.core import codec
from penstock.core.attempts import Attempt, read_attempts
from penstock.core.task import Record

try:
    from django.tasks import DEFAULT_TASK_BACKEND_ALIAS, base, exceptions, signals, task_backends
    from django.tasks.backends.base import BaseTaskBackend
    from django.utils.json import normalize_json
except ImportError:
    try:  # Django 5
        from django_tasks import DEFAULT_TASK_BACKEND_ALIAS, base, exceptions, signals, task_backends
        from django_tasks.backends.base import BaseTaskBackend
        from django_tasks.utils import normalize_json
    except ImportError as error:
        raise ImportError(
            f"penstock.django needs the tasks of Django 6, or of the package django-tasks ({error}): "
            "pip install 'penstock[django]' django-tasks"
        ) from error

__all__ = [
    "DEFAULT_TASK_BACKEND_ALIAS", "BaseTaskBackend", "base", "exceptions", "normalize_json", "signals", "task_backends",
]  # fmt: skip

Status = base.TaskResultStatus
_STATUS = {"r": Status.READY, "q": Status.READY, "~": Status.READY, "t": Status.RUNNING, "!": Status.FAILED}
# Matches the class path at the start of an error's text; an attempt that ended without an exception has none.
_CLASS_PATH = re.compile(r"((?:[^\W\d]\w*\.)+[^\W\d]\w*)(?:: |$)")
_NO_EXCEPTION = "penstock.TaskFailed"

#: Django's tasks by the path of their functions: all that were declared in this process for a backend of ours, and
#: those of the apps' modules `tasks`. Stored tasks name one of them; nothing is imported because a store names it.
known: dict[str, Any] = {}


def load_tasks() -> None:
    """Register the tasks of every app, by importing its module `tasks`, if it has one."""
    autodiscover_modules("tasks")
    for config in apps.get_app_configs():
        for value in vars(sys.modules.get(f"{config.name}.tasks", object)).values():
            if issubclass(type(value), base.Task):
                known.setdefault(value.module_path, value)


def find_task(path: object) -> Any:
    """The Django task with that path. Raises TaskResultDoesNotExist if it is not known in this process."""
    if path not in known:
        load_tasks()
    if path not in known:
        raise exceptions.TaskResultDoesNotExist(
            f"task {path} is not known in this process: declare it in the tasks.py of an installed app"
        )
    return known[path]


def pri_of(priority: int) -> int:
    """Convert Django's priority, where larger is more urgent, to a pri, where smaller is more urgent."""
    return int(base.TASK_MAX_PRIORITY - priority)


def call_of(task: Any, args: list[Any], kwargs: dict[str, Any]) -> dict[str, object]:
    """The task data for a call of a Django task."""
    when = {} if task.run_after is None else {"run_after": task.run_after.isoformat()}
    return {"task": task.module_path, "args": args, "kwargs": kwargs, **when}


def plain_call(data: object) -> dict[str, Any]:
    """Read a call from stored data, which another program may have put; its task is None if the data is no call."""
    if not isinstance(data, dict):
        return {"task": None}
    return {name: data[name] for name in ("task", "args", "kwargs", "run_after") if name in data}


class Facts(msgspec.Struct, frozen=True):
    """The facts that a TaskResult has besides status, value and errors. Times are seconds since the epoch."""

    call: dict[str, Any]  # as it was put
    pri: int
    created: float
    taken: float | None = None
    ended: float | None = None
    workers: list[str] = []


def kept(facts: Facts, value: object, limit: int) -> dict[str, object]:
    """The stored result of a task that returned: its value and the facts.

    The arguments are left out if they would make it larger than the tube accepts.
    """
    stored = {"value": value, "facts": msgspec.to_builtins(facts)}
    if len(codec.encode(stored)) > limit:
        stored["facts"]["call"] = {"task": facts.call["task"]}
    return stored


def of_record(alias: str, id: str, queue: str, record: Record) -> Any:
    """The result of a task that is in its tube."""
    call, errors = plain_call(codec.decode(record.payload)), read_attempts(record.errors)
    taken = None if record.taken is None else record.taken / 1000
    facts = Facts(call, record.pri, record.created / 1000, taken, workers=workers(record.attempts, errors))
    result = make(alias, id, queue, _STATUS[record.state], facts)
    result.errors.extend(map(error_of, errors))
    if result.status == Status.FAILED and errors:
        object.__setattr__(result, "finished_at", moment(errors[-1].at))
    return result


def of_outcome(alias: str, id: str, queue: str, stored: object) -> Any:
    """The result of a successful task. Raises TaskResultDoesNotExist if another program acked it."""
    try:
        facts = msgspec.convert(stored["facts"], Facts)  # type: ignore[index]
    except (KeyError, TypeError, msgspec.ValidationError):
        raise exceptions.TaskResultDoesNotExist(f"{id} has ended, but was not run by a Django worker") from None
    result = make(alias, id, queue, Status.SUCCESSFUL, facts)
    object.__setattr__(result, "_return_value", stored["value"])  # type: ignore[index]
    return result


def make(alias: str, id: str, queue: str, status: Any, facts: Facts) -> Any:
    """A TaskResult without errors and return value."""
    task, given = find_task(facts.call.get("task")), stored_arguments(facts.call)
    args, kwargs = split(given)
    when = facts.call.get("run_after")
    using = task.using(
        priority=max(base.TASK_MAX_PRIORITY - facts.pri, base.TASK_MIN_PRIORITY), queue_name=queue, backend=alias,
        run_after=None if when is None else datetime.fromisoformat(when),
    )  # fmt: skip
    return base.TaskResult(
        task=using, id=id, status=status, enqueued_at=moment(facts.created), started_at=moment(facts.taken),
        last_attempted_at=moment(facts.taken), finished_at=moment(facts.ended), args=args, kwargs=kwargs, backend=alias,
        errors=[], worker_ids=facts.workers,
    )  # fmt: skip


def split(given: object) -> tuple[list[Any], dict[str, Any]]:
    """Split stored arguments into positional and keyword arguments."""
    match given:
        case Positional(list(args), dict(kwargs)):
            return args, kwargs
        case list(args):
            return args, {}
        case dict(kwargs):
            return [], kwargs
    return [], {}


def workers(attempts: int, errors: list[Attempt]) -> list[str]:
    """The host of each attempt; "unknown" for a running attempt and for those whose error is no longer stored."""
    hosts = {error.attempt: error.host for error in errors}
    return [hosts.get(number) or "unknown" for number in range(1, attempts + 1)]


def error_of(attempt: Attempt) -> Any:
    """The TaskError of one failed attempt."""
    named = _CLASS_PATH.match(attempt.error)
    return base.TaskError(
        exception_class_path=named[1] if named else _NO_EXCEPTION, traceback=attempt.traceback or attempt.error
    )


def moment(seconds: float | None) -> datetime | None:
    """A datetime in the project's form: aware with USE_TZ, otherwise naive and local."""
    if seconds is None:
        return None
    aware = datetime.fromtimestamp(seconds, UTC)
    return aware if settings.USE_TZ else timezone.make_naive(aware)
