"""The backend of Django's tasks: a call is a task, its queue a tube, its result the task's outcome."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core import checks
from django.db import connections, transaction
from django.utils import timezone
from django.utils.crypto import get_random_string

from penstock.app import handle
from penstock.app.tracing import PutSpan
from penstock.broker.broker import default_url
from penstock.broker.tube_factory import DEFAULT_KIND, find_tube
from penstock.core import names
from penstock.core.kind import find_kind
from penstock.core.options import check_new_tube
from penstock.django import task_results
from penstock.django.task_app import TaskApp
from penstock.django.task_results import BaseTaskBackend, base, exceptions, signals
from penstock.errors import BadValue, NoSuchTube, PenstockError
from penstock.store.open import check_url

ENQUEUE = ("on_commit", "in_transaction", "now")
_ID_LENGTH = 32
# Django makes a backend for each thread; those with the same settings share an app, and so a connection.
_apps: dict[str, TaskApp] = {}
_lock = threading.Lock()


class PenstockBackend(BaseTaskBackend):
    """Puts Django's tasks into a store and reads their results there.

    `OPTIONS` has `url` (default: PENSTOCK_URL, else sqlite:///penstock.db), `tubes` (options of tubes, by queue), and
    what `enqueue` does in a transaction of a `database`:

    - `on_commit`, the default: the task is put after the transaction has committed.
    - `in_transaction`: the task is put as part of the transaction, if the store is in the same database.
    - `now`: the task is put at once.
    """

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        self._queues: list[str] = list(params.get("QUEUES") or self.queues)
        self._enqueue = self.options.get("enqueue", ENQUEUE[0])
        self._database = self.options.get("database", "default")

    @property
    def app(self) -> TaskApp:
        """The app whose handlers are Django's tasks, for workers."""
        url, tubes = self.options.get("url"), self.options.get("tubes", {})
        key = repr((self.alias, url, self._queues, tubes))
        with _lock:
            if key not in _apps:
                declared = {queue: tubes.get(queue, {}) for queue in (*self._queues, *tubes)}
                _apps[key] = TaskApp(type(self), self.alias, url, declared)
            return _apps[key]

    def validate_task(self, task: Any) -> None:
        """Validate as every backend does, and register the task, so that it can also be run here."""
        super().validate_task(task)
        task_results.known.setdefault(task.module_path, task)

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        """Put a call of the task. The result has its id at once, even if the call is put later."""
        self.validate_task(task)
        result = base.TaskResult(
            task=task, id=f"{task.queue_name}:{get_random_string(_ID_LENGTH)}", status=task_results.Status.READY,
            enqueued_at=None, started_at=None, last_attempted_at=None, finished_at=None, args=args, kwargs=kwargs,
            backend=self.alias, errors=[], worker_ids=[],
        )  # fmt: skip
        if self._enqueue == "on_commit" and connections[self._database].in_atomic_block:
            transaction.on_commit(partial(self._put, result), using=self._database)
        else:
            self._put(result)
        return result

    def _put(self, result: Any) -> None:
        task, connection = result.task, self.app.connection
        queue, _, address = result.id.rpartition(":")
        options: Any = {"address": address, "pri": task_results.pri_of(task.priority)}
        if task.run_after is not None:
            options["at"] = task.run_after if timezone.is_aware(task.run_after) else timezone.make_aware(task.run_after)
        with PutSpan(task.module_path, queue, 1) as span:
            data = task_results.call_of(task, result.args, result.kwargs) | span.fields
            database = connections[self._database]
            if self._enqueue == "in_transaction" and database.in_atomic_block:
                tube = connection.broker.bind(database.connection).tube(queue, **connection.tube_options.get(queue, {}))
                put = tube.put(data, **options)
            else:
                try:
                    put = connection.tube(queue).put(data, **options)
                except NoSuchTube:  # dropped since it was opened
                    connection.forget_tubes()
                    put = connection.tube(queue).put(data, **options)
        object.__setattr__(result, "enqueued_at", task_results.moment(put.created))
        signals.task_enqueued.send(type(self), task_result=result)

    def get_result(self, result_id: str) -> Any:
        """The result with that id, put by any process.

        Raises TaskResultDoesNotExist if there is none, or if its task was cancelled, deleted, expired, or ended longer
        ago than the tube's `retention`.
        """
        queue, _, address = str(result_id).rpartition(":")
        if self.queues and queue not in self.queues:
            raise exceptions.TaskResultDoesNotExist(result_id)
        connection = self.app.connection
        broker = connection.broker
        try:
            tube = connection.opened(queue) or find_tube(broker.runtime, broker.session_handle, queue)
            found = handle.find(tube, names.label("address", address))
        except (NoSuchTube, BadValue):  # no such queue, or not an id of this backend
            raise exceptions.TaskResultDoesNotExist(result_id) from None
        if found.record is not None:
            return task_results.of_record(self.alias, result_id, queue, found.record)
        if found.outcome is not None and found.status == "done":
            return task_results.of_outcome(self.alias, result_id, queue, found.outcome.result)
        raise exceptions.TaskResultDoesNotExist(f"{result_id} is {found.status}")

    def check(self, **kwargs: Any) -> Iterator[checks.CheckMessage]:
        """Check the settings, without connecting to the store."""
        yield from super().check(**kwargs)
        where = f"TASKS[{self.alias!r}]"
        unknown = self.options.keys() - {"url", "tubes", "enqueue", "database"}
        if unknown:
            known = "url, tubes, enqueue and database"
            yield _error(1, f"{where} has unknown OPTIONS: {', '.join(sorted(unknown))}.", f"Known are {known}.")
        if self._enqueue not in ENQUEUE:
            yield _error(2, f"{where} has enqueue {self._enqueue!r}.", f"Use {', '.join(ENQUEUE)}.")
        if self._database not in list(connections):
            yield _error(3, f"{where} has database {self._database!r}, which is not in DATABASES.", "Name one of them.")
        url = self.options.get("url") or default_url()
        try:
            check_url(url)
        except PenstockError as error:
            yield _error(4, f"{where}: {error}.", "Correct its url, or install the extra.")
        else:
            yield from self._check_store(where, url)
        for queue in self._queues:
            try:
                names.name("queue", queue)
            except PenstockError as error:
                yield _error(10, f"{where}: {error}.", "A queue is a tube of that name.")
        for queue, options in self.options.get("tubes", {}).items():
            yield from self._check_tube(where, queue, options)

    def _check_store(self, where: str, url: str) -> Iterator[checks.CheckMessage]:
        scheme = url.partition("://")[0]
        if scheme == "memory":
            hint = "Use sqlite:///jobs.db, so that a worker finds the tasks."
            yield checks.Warning(f"{where} uses memory://, which no other process sees.", hint, id="penstock.W001")
        if self._enqueue == "in_transaction" and scheme not in ("postgresql", "mysql"):
            hint = "Put the store into the project's PostgreSQL or MySQL, or enqueue on_commit."
            yield _error(5, f"{where} has enqueue in_transaction, which {scheme}:// does not support.", hint)
        if scheme != "sqlite":
            return
        from penstock.store.sqlite.file import locate

        files = {
            Path(database["NAME"]).resolve(): name
            for name, database in settings.DATABASES.items()
            if database.get("ENGINE", "").endswith("sqlite3")
        }
        name = files.get(Path(locate(url).path).resolve())
        if name:
            hint = "Use another file: two SQLite libraries in one process break each other's locks."
            yield _error(6, f"{where} is in the file of DATABASES[{name!r}].", hint)

    def _check_tube(self, where: str, queue: str, options: Mapping[str, Any]) -> Iterator[checks.CheckMessage]:
        where = f"{where}, tube {queue}"
        if self.queues and queue not in self.queues:
            yield _error(7, f"{where}: it is not in QUEUES.", "Add it there, or remove its options.")
        try:
            given = {**options}
            kind = find_kind(given.pop("kind", None) or DEFAULT_KIND)
            check_new_tube(kind, given)
        except PenstockError as error:
            yield _error(8, f"{where}: {error}.", "Correct its options.")
            return
        if not kind.leased or not {"pri", "delay"} <= kind.accepts:
            yield _error(
                9, f"{where}: kind {kind.name} does not support priorities and delays.", "Use fifottl or utubettl."
            )


def _error(number: int, message: str, hint: str) -> checks.Error:
    return checks.Error(message, hint, id=f"penstock.E{number:03}")
