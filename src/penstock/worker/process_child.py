"""A process that runs handlers for a worker: `python -m penstock.worker.process_child FD MODULE …`.

It imports only modules that its worker names, never those named in a task. The worker takes and settles the tasks.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import importlib
import os
import queue
import select
import signal
import socket
import sys
import threading
import traceback
from collections import deque
from functools import cache, reduce
from types import ModuleType
from typing import Any, NoReturn

import msgspec

from penstock.app.app_connection import AppConnection
from penstock.app.arguments import stored_arguments
from penstock.app.current import Bury, CurrentTask, Fail, Failures, Retry, Snooze, reason_of, set_run
from penstock.app.handler import Handler
from penstock.app.running import call, log_tasks
from penstock.broker.tube_factory import DEFAULT_KIND
from penstock.core import codec, names
from penstock.core.ending import encode_code
from penstock.core.kind import find_kind
from penstock.core.options import Tube
from penstock.core.task import Record, Status
from penstock.errors import BadValue, NotFound, UnsupportedOption
from penstock.runtime.failures import failure_of
from penstock.worker.batches import GIVEN_A_BATCH, batch_results
from penstock.worker.settlement import unencodable

# Seconds between checks of the progress that a handler sets.
PROGRESS_TICK = 0.2
# Messages from the worker other than jobs: no more jobs; a waiting handler may continue; return unstarted jobs.
OVER, RESUME, RETURN_UNSTARTED = b"over", b"resume", b"return unstarted"
_READ_BYTES = 1 << 16
_PR_SET_PDEATHSIG = 1
_encode = msgspec.json.Encoder().encode


class Job(msgspec.Struct, frozen=True):
    """A handler to run, with its task, or with several tasks for a batch handler."""

    module: str
    name: str
    records: list[Record]
    data: list[Any]  # the calls that the tasks describe
    tube: str
    batch: bool = False


class Message(msgspec.Struct, frozen=True):
    """A message from the child.

    First `ready`. Then, for each job, any number of `progress`, `waits` and `resumes`, and one end: `done`, `retry`,
    `snooze`, `bury` or `fail` (a signal of the handler), `failed` (an error), `settled` (in the handler's transaction),
    `unsure` (in one that the handler had to commit), or `batch`, with one such end per task. `unstarted`: the child
    returned its last `place` jobs without running them.
    """

    kind: str
    number: float | None = None
    text: str | None = None
    result: bytes | None = None
    code: str | None = None
    place: int = 0  # the index of the task in a batch
    parts: list[Message] = []
    traceback: str = ""


_jobs = msgspec.json.Decoder(list[Job]).decode


class Pipe:
    """One end of the pipe between a worker and its child: lines of JSON, of which one read may return many.

    Any thread may send; only one reads.
    """

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._poll = select.poll()
        self._poll.register(end, select.POLLIN)
        self._lines: deque[bytes] = deque()
        self._part = b""

    def send(self, line: bytes) -> None:
        """Send one message. Raises ConnectionError if the other end is gone."""
        self._end.sendall(line + b"\n")

    def next(self, timeout: float | None) -> bytes | None:
        """The next message; None if none comes in time. Raises EOFError or ConnectionError if the other end is gone."""
        while not self._lines:
            if timeout is not None and not self._poll.poll(max(0.0, timeout * 1000)):
                return None
            data = self._end.recv(_READ_BYTES)
            if not data:
                raise EOFError
            *lines, self._part = (self._part + data).split(b"\n")
            self._lines.extend(lines)
        return self._lines.popleft()

    def close(self) -> None:
        """Close this end."""
        self._end.close()


class RemoteTube:
    """Replaces the tube of a task in a child process: only the worker can settle the task."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.connection: AppConnection | None = None  # the connection of the handler's app, for transactions
        self.stored = Tube(0, name, find_kind(DEFAULT_KIND), {})  # any leased kind: workers take from no other

    def _refuse(self, *_: object) -> NoReturn:
        raise UnsupportedOption(
            "a handler in a child process cannot settle its task: return, or raise penstock.Retry, Snooze, Bury or Fail"
        )

    ack = fail = release = bury = touch = _finish = _release_failed = _refuse


class ChildRun:
    """One run of a handler; communicates with the worker through the pipe."""

    def __init__(self, pipe: WorkerPipe, job: Job) -> None:
        self._pipe = pipe
        self._job = job
        self.tube = RemoteTube(job.tube)
        self.tasks: list[CurrentTask] = []  # made when the handler first asks for them

    def current_task(self) -> CurrentTask:
        """The task for the handler."""
        if self._job.batch:
            raise NotFound(GIVEN_A_BATCH)
        return self.current_tasks()[0]

    def current_tasks(self) -> list[CurrentTask]:
        """The tasks of this call."""
        if not self.tasks:
            pairs = zip(self._job.records, self._job.data, strict=True)
            self.tasks = [CurrentTask(record, self.tube, data) for record, data in pairs]
        return self.tasks

    def give_up_slot(self, *, awaited: bool) -> None:
        """Tell the worker that the slot is free while the handler waits."""
        self._pipe.report(Message("waits"))

    def regain_slot(self) -> None:
        """Wait until the worker gives the handler a slot again."""
        self._pipe.report(Message("resumes"))
        self._pipe.granted.get()

    async def regain_slot_async(self) -> None:
        """Raise: handlers in processes are not async."""
        self.regain_slot()


class WorkerPipe:
    """The pipe to the worker. If the worker is gone, this process exits: its task will be handed out again."""

    def __init__(self, end: socket.socket) -> None:
        self._pipe = Pipe(end)
        self._lock = threading.Lock()
        self.url: str | None = None
        self.jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()  # None: there are no more
        self.granted: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self.busy = False
        self.run: ChildRun | None = None

    def start(self) -> None:
        """Wait for the store's URL, then read the rest in a thread."""
        self.url = msgspec.json.decode(self._pipe.next(None) or b"null", type=str | None)
        threading.Thread(target=self._listen, daemon=True).start()

    def report(self, message: Message) -> None:
        """Send a message to the worker."""
        with self._lock:
            self._pipe.send(_encode(message))

    def _receive(self, line: bytes) -> None:
        if line == RESUME:
            self.granted.put(line)
        elif line == OVER:
            self.jobs.put(None)
        elif line == RETURN_UNSTARTED:
            count = 0
            with contextlib.suppress(queue.Empty):
                while True:
                    self.jobs.get_nowait()
                    count += 1
            self.report(Message("unstarted", place=count))
        else:
            self.busy = True
            for job in _jobs(line):
                self.jobs.put(job)

    def _listen(self) -> None:
        reported: list[float | None] = []
        while True:
            try:
                line = self._pipe.next(PROGRESS_TICK if self.busy else None)
                if line is not None:
                    self._receive(line)
            except (EOFError, OSError):
                os._exit(1)
            run = self.run
            progress = [] if run is None else [task.progress for task in run.tasks]
            for place, share in enumerate(progress):
                if share is not None and (len(reported) <= place or share != reported[place]):
                    self.report(Message("progress", share, place=place))
            reported = progress


def main(fd: int, modules: list[str]) -> None:
    """Run jobs until the worker ends them or is gone.

    The modules are imported first, so that imports do not count as a handler's time. `module:name` names a handler
    whose app has hooks for the start and the end of this process.
    """
    die_with_parent()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the worker decides when this process ends
    pipe = WorkerPipe(socket.socket(fileno=fd))
    pipe.start()
    log_tasks()
    hooks = {id(handler.hooks): handler.hooks for handler in load(modules, pipe.url)}.values()
    with asyncio.Runner() as runner:
        for each in hooks:
            each.start_process(runner.run)
        pipe.report(Message("ready"))
        serve(pipe)
        for each in hooks:
            each.stop_process(runner.run)


def load(modules: list[str], url: str | None) -> list[Handler[..., Any, Any]]:
    """Import the modules. Returns the handlers named among them."""
    found = []
    for module, _, name in (each.partition(":") for each in sorted(modules, key=lambda each: ":" in each)):
        loaded = importlib.import_module(module)
        if name:
            with contextlib.suppress(BadValue, AttributeError):  # reported when one of its tasks is run
                handler = find_handler(loaded, name)
                handler.connection.use(url)
                found.append(handler)
    return found


def serve(pipe: WorkerPipe) -> None:
    """Run jobs until the worker reports that there are no more."""
    while (job := pipe.jobs.get()) is not None:
        pipe.run = ChildRun(pipe, job)
        set_run(pipe.run)
        message = answer(job, pipe.run, pipe.url)
        pipe.run, pipe.busy = None, not pipe.jobs.empty()
        pipe.report(message)


def answer(job: Job, run: ChildRun, url: str | None) -> Message:
    """Run the handler. Returns the message that reports how the run ended."""
    try:
        handler = handler_of(job.module, job.name, url)
        run.tube.connection = handler.connection
        given = [stored_arguments(data) for data in job.data]
        if job.batch:
            return kept_batch(handler, call(handler, run, given, None), len(given))
        message = kept(handler, call(handler, run, given[0], job.data[0]))
        if run.tasks and run.tasks[0].status is Status.DONE:
            return Message("unsure" if run.tasks[0].unsure else "settled")
        return message
    except Failures as error:
        if job.batch and all(0 <= place < len(job.records) for place in error.failures):
            found = [(place, error.failures.get(place)) for place in range(len(job.records))]
            return Message("batch", parts=[failed(each, place) for place, each in found])
        return failed(error)
    except BaseException as error:
        return failed(error)


@cache
def handler_of(module: str, name: str, url: str | None) -> Handler[..., Any, Any]:
    """The handler of that name, connected to the worker's store."""
    handler = find_handler(importlib.import_module(module), name)
    handler.connection.use(url)
    return handler


def failed(error: BaseException | None, place: int = 0) -> Message:
    """The message for an exception of a handler; None means that this task of a batch succeeded."""
    if error is None:
        return Message("done", place=place)
    return msgspec.structs.replace(_raised(error), place=place, traceback=failure_of(error).traceback)


def _raised(error: BaseException) -> Message:
    match error:
        case Retry():
            return Message("retry", error.delay, reason_of(error))
        case Snooze():
            return Message("snooze", error.delay)
        case Bury():
            return Message("bury", text=reason_of(error))
        case Fail():
            return Message("fail", text=error.error, code=encode_code(error.code))
    traceback.print_exception(error)
    return Message("failed", text=names.text("error", names.failure(error)))


def kept_batch(handler: Handler[..., Any, Any], result: object, count: int) -> Message:
    """The message for the return value of a batch handler."""
    results = batch_results(handler.name, result, count)
    parts = [msgspec.structs.replace(kept(handler, each), place=place) for place, each in enumerate(results)]
    return Message("batch", parts=parts)


def kept(handler: Handler[..., Any, Any], result: object) -> Message:
    """The message for the return value of a handler."""
    try:
        stored = handler.store_result(result)
        return Message("done", result=None if stored is None else codec.encode(stored))
    except Exception as error:  # the handler succeeded: a retry would not help
        return Message("bury", text=names.text("error", unencodable(error)))


def find_handler(module: ModuleType, name: str) -> Handler[..., Any, Any]:
    """Find the handler that the worker names."""
    found = reduce(getattr, name.split("."), module)
    if not isinstance(found, Handler):
        raise BadValue(f"{module.__name__}.{name} is not a handler here: keep the decorated function under its name")
    return found


def die_with_parent() -> None:
    """Have the kernel kill this process if its worker dies, even while a handler holds the interpreter lock."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
