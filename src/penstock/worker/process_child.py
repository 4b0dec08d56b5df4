"""A process that runs handlers for a worker: `python -m penstock.worker.process_child FD MODULE …`.

It imports what its worker names, never what a task says, and leaves taking and settling to the worker.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import queue
import signal
import sys
import threading
import traceback
from functools import reduce
from multiprocessing.connection import Connection
from typing import Any, NoReturn

import msgspec

from penstock.app.current import Bury, CurrentTask, Fail, Retry, Snooze, set_run
from penstock.app.handler import Handler
from penstock.app.tracing import continued
from penstock.broker.tube_factory import DEFAULT_KIND
from penstock.core import codec, names
from penstock.core.ending import encode_code
from penstock.core.kind import find_kind
from penstock.core.options import Tube
from penstock.core.task import Record
from penstock.errors import BadValue, UnsupportedOption
from penstock.worker.settlement import unkept

# Seconds between looks at the progress that a handler sets.
PROGRESS_TICK = 0.2
_PR_SET_PDEATHSIG = 1


class Job(msgspec.Struct, frozen=True):
    """A handler to run, and the task to run it for."""

    module: str
    name: str
    record: Record
    data: msgspec.Raw  # the call that the task describes
    tube: str
    url: str | None  # the store of the worker's app


class Message(msgspec.Struct, frozen=True):
    """What the child says: ready; then, for each job, progress, aside, back, and one of done, retry, snooze,
    bury, fail (a signal of the handler), failed (an error)."""

    kind: str
    number: float | None = None
    text: str | None = None
    result: bytes | None = None
    code: str | None = None


class Home:
    """The tube of a task whose verbs are the worker's."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.stored = Tube(0, name, find_kind(DEFAULT_KIND), {})  # of a leased kind, as all that workers take from

    def _refuse(self, *_: object) -> NoReturn:
        raise UnsupportedOption(
            "a handler in a process cannot settle its task: return, or raise penstock.Retry, Snooze, Bury or Fail"
        )

    ack = fail = release = bury = touch = _finish = _give_back = _refuse


class ChildRun:
    """One run of a handler, which speaks to its worker through the pipe."""

    def __init__(self, pipe: WorkerPipe, job: Job) -> None:
        self._pipe = pipe
        self.task = CurrentTask(job.record, Home(job.tube), msgspec.json.decode(job.data))

    def current_task(self) -> CurrentTask:
        """The task as the handler holds it."""
        return self.task

    def step_aside(self, *, awaited: bool) -> None:
        """Its slot is another's."""
        self._pipe.say(Message("aside"))

    def step_back(self) -> None:
        """Wait until the worker gives it a slot again."""
        self._pipe.say(Message("back"))
        self._pipe.heard.get()

    async def step_back_async(self) -> None:
        """Handlers in processes are not async."""
        self.step_back()


class WorkerPipe:
    """The pipe to the worker. When that is gone, so is this process: someone else will have the task."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._lock = threading.Lock()
        self.heard: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self.busy = False
        self.run: ChildRun | None = None
        threading.Thread(target=self._listen, daemon=True).start()

    def say(self, message: Message) -> None:
        """Tell the worker."""
        with self._lock:
            self._pipe.send_bytes(msgspec.json.encode(message))

    def _listen(self) -> None:
        told: float | None = None
        while True:
            try:
                if self._pipe.poll(PROGRESS_TICK if self.busy else None):
                    heard = self._pipe.recv_bytes()
                    self.busy = True
                    self.heard.put(heard)
            except (EOFError, OSError):
                os._exit(1)
            run = self.run
            progress = None if run is None else run.task.progress
            if progress is not None and progress != told:
                self.say(Message("progress", progress))
            told = progress


def main(fd: int, modules: list[str]) -> None:
    """ChildRun what the worker asks for, until it is gone. The modules are loaded first: that is no handler's time."""
    die_with_parent()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the worker decides when this one ends
    pipe = WorkerPipe(Connection(fd))
    for module in modules:
        importlib.import_module(module)
    pipe.say(Message("ready"))
    while True:
        job = msgspec.json.decode(pipe.heard.get(), type=Job)
        pipe.run = ChildRun(pipe, job)
        set_run(pipe.run)
        message = answer(job)
        pipe.run, pipe.busy = None, False
        pipe.say(message)


def answer(job: Job) -> Message:
    """ChildRun the handler; what is to be said of its end."""
    try:
        handler = find_handler(job)
        data = msgspec.json.decode(job.data, type=dict[str, Any])
        with continued(data, job.tube, job.record.id):
            return kept(handler, handler.arguments.call(handler.function, data.get("args", {})))
    except Retry as error:
        return Message("retry", error.delay, error.reason)
    except Snooze as error:
        return Message("snooze", error.delay)
    except Bury as error:
        return Message("bury", text=error.reason)
    except Fail as error:
        return Message("fail", text=error.error, code=encode_code(error.code))
    except BaseException as error:
        traceback.print_exc()
        return Message("failed", text=names.text("error", names.failure(error)))


def kept(handler: Handler[..., Any, Any], result: object) -> Message:
    """The end of a handler that returned this."""
    try:
        stored = handler.store_result(result)
        return Message("done", result=None if stored is None else codec.encode(stored))
    except Exception as error:  # the work is done: doing it again would not help
        return Message("bury", text=names.text("error", unkept(error)))


def find_handler(job: Job) -> Handler[..., Any, Any]:
    """Find the handler that the worker names."""
    module = importlib.import_module(job.module)
    found = reduce(getattr, job.name.split("."), module)
    if not isinstance(found, Handler):
        raise BadValue(f"{job.module}.{job.name} is no handler here: keep the decorated function under its name")
    found.connection.use(job.url)
    return found


def die_with_parent() -> None:
    """Have the kernel end this process with its worker's, also while a handler holds the interpreter."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
