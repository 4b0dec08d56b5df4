"""Runs handlers in child processes: each thread of this executor has one child, which it reuses for many tasks.

If handlers are fast, a child is sent several tasks at once and runs them one by one. If one of them takes longer than
expected, the child returns those that it has not started. A child that exceeds the ttr or the time limit of its task,
or whose lease is lost, is killed.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable

import msgspec

from penstock.app.current import Bury, Fail, Failures, Retry, Snooze
from penstock.core import codec
from penstock.core.ending import decode_code
from penstock.core.task import Status
from penstock.errors import BadValue, UnsupportedOption
from penstock.worker.batches import Batch
from penstock.worker.process_child import OVER, RESUME, RETURN_UNSTARTED, Job, Message, Pipe
from penstock.worker.running_task import RunningTask
from penstock.worker.settlement import HandlerFailed, TimedOut
from penstock.worker.state import WorkerState
from penstock.worker.thread_executor import ThreadExecutor

# A process is killed this many seconds before its lease ends, to leave time to settle the task.
SETTLE_TIME = 5.0
# Seconds that an idle process has to run the app's shutdown hooks.
SHUTDOWN_TIME = 10.0
# A child is sent as many tasks as it can run in this time (seconds), up to a maximum.
CHUNK_SECONDS = 0.01
LARGEST_CHUNK = 50
# Seconds after which a running task counts as slow and the tasks behind it are returned.
SLOW = 0.05
_encode = msgspec.json.Encoder().encode
_message = msgspec.json.Decoder(Message).decode


class Child:
    """One process that runs handlers, one after the other."""

    def __init__(self, modules: Iterable[str], url: str | None) -> None:
        here, there = socket.socketpair()
        self._pipe = Pipe(here)
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        command = [sys.executable, "-m", "penstock.worker.process_child", str(there.fileno()), *modules]
        try:
            with there:
                self._process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, pass_fds=[there.fileno()], env=environment
                )
        except BaseException:
            here.close()
            raise
        self._pipe.send(_encode(url))  # not as an argument: it may contain a password, and `ps` shows arguments
        self._ready = False
        self.busy = False

    def await_ready(self) -> None:
        """Wait until the child is ready. Raises EOFError if it could not start."""
        if not self._ready:
            self._ready = self.next(None) is not None

    def begin(self, jobs: list[Job]) -> None:
        """Send jobs, which the child runs one by one."""
        self._pipe.send(_encode(jobs))

    def next(self, timeout: float | None) -> Message | None:
        """The child's next message; None if none comes in time. Raises EOFError if the child is dead."""
        line = self._pipe.next(timeout)
        return None if line is None else _message(line)

    def resume(self) -> None:
        """Let a handler continue that waited for other tasks."""
        self._pipe.send(RESUME)

    def return_unstarted(self) -> None:
        """Ask the child to return its unstarted jobs; it replies with their number."""
        self._pipe.send(RETURN_UNSTARTED)

    def end(self) -> None:
        """Ask an idle child to exit."""
        with contextlib.suppress(OSError):  # it is dead
            self._pipe.send(OVER)

    def kill(self) -> None:
        """Kill the child. Safe from any thread."""
        self._process.kill()

    def wait(self, seconds: float) -> None:
        """Wait until the child has exited; kill it if it does not exit in time."""
        try:
            self._process.wait(max(seconds, 0))
        except subprocess.TimeoutExpired:
            self.kill()
            self._process.wait()

    def close(self) -> None:
        """Close the pipe to the child."""
        self._pipe.close()

    def reap(self) -> str:
        """Wait for a dead child. Returns how it ended."""
        self._pipe.close()
        self._process.kill()
        code = self._process.wait()
        return f"signal {-code}" if code < 0 else f"exit code {code}"


class Killed(Exception):
    """The child must be killed, because its task has run too long."""

    def __init__(self, failure: HandlerFailed) -> None:
        super().__init__(failure)
        self.failure = failure


class ReturnedUnstarted(Exception):
    """The child has returned this task unstarted."""


class ProcessExecutor(ThreadExecutor):
    """Executor with a fixed number of processes, and additional ones while some handlers wait for other tasks."""

    def __init__(self, state: WorkerState, most: int, modules: Iterable[str], url: str | None) -> None:
        if sys.platform == "win32":  # a child gets its end of the pipe by its number
            raise UnsupportedOption('executor="process" does not work on Windows: use threads there')
        super().__init__(state, most)
        self._modules = sorted(set(modules))
        self._url = url
        self._own = threading.local()
        self._children: set[Child] = set()

    def stop(self) -> None:
        """Kill busy children, ask idle ones to exit, and wait for all of them."""
        self._over = True
        self._buffer.clear()
        children = list(self._children)
        for child in children:
            if child.busy or not self._state.hooks.shutdown:
                child.kill()
            else:
                child.end()
        ends = time.monotonic() + SHUTDOWN_TIME
        for child in children:
            child.wait(ends - time.monotonic())
            if not child.busy:  # a busy one is closed by the thread that reads from it
                child.close()
        super().stop()  # last, because a child dies with the thread that started it

    def room(self) -> int | None:
        """How many tasks can be started or, if handlers are fast, sent ahead."""
        chunk = self._chunk
        return super().room() if chunk == 1 else max(0, 2 * chunk * (self._most or 1) - len(self._buffer))

    @property
    def _chunk(self) -> int:
        """How many tasks a child is sent at once."""
        mean = self._state.throughput.mean
        return 1 if mean is None else max(1, min(LARGEST_CHUNK, int(CHUNK_SECONDS / max(mean, 1e-6))))

    def _call(self, item: RunningTask) -> None:
        items = [item, *(() if isinstance(item, Batch) else self._claim_more(self._chunk - 1))]
        began = time.perf_counter()
        try:
            child = self._child()
            child.await_ready()
            child.begin([self._job(each) for each in items])
        except (EOFError, ConnectionError):
            self._state.fail(item, HandlerFailed(f"its process died: {self._reap_child()}"), began)
            return self._return(items[1:])
        except Exception as error:
            self._state.fail(item, error, began)
            return self._return(items[1:])
        while items:
            began, current = time.perf_counter(), items.pop(0)
            try:
                self._state.finish(current, self._converse(child, current, items), began)
                continue
            except (EOFError, ConnectionError):
                self._state.fail(current, HandlerFailed(f"its process died: {self._reap_child()}"), began)
            except Killed as killed:
                self._reap_child()
                self._state.fail(current, killed.failure, began)
            except ReturnedUnstarted:
                child.busy = False
                self._state.release_unstarted(current)
            except Exception as error:
                self._state.fail(current, error, began)
                continue
            return self._return(items)
        return None

    def _claim_more(self, most: int) -> list[RunningTask]:
        claimed: list[RunningTask] = []
        while len(claimed) < most and self._buffer and not self._slots.limited:
            try:
                item = self._buffer.popleft()
            except IndexError:
                break
            if isinstance(item, Batch):
                self._buffer.appendleft(item)
                break
            if self._state.claim(item):
                claimed.append(item)
        return claimed

    def _return(self, items: list[RunningTask]) -> None:
        """Release tasks that a child did not start; these attempts do not count."""
        for item in items:
            self._state.release_unstarted(item)

    def _job(self, item: RunningTask) -> Job:
        assert item.handler is not None
        function, members = item.handler.function, item.members if isinstance(item, Batch) else [item]
        records = [member.record for member in members]
        data = [member.task.data for member in members]
        return Job(function.__module__, function.__qualname__, records, data, item.tube.name, isinstance(item, Batch))

    def _child(self) -> Child:
        """The child of the calling thread."""
        child: Child | None = getattr(self._own, "child", None)
        if child is None:
            child = self._own.child = Child(self._modules, self._url)
            self._children.add(child)
        return child

    def _reap_child(self) -> str:
        child, self._own.child = self._child(), None
        self._children.discard(child)
        return child.reap()

    def _converse(self, child: Child, item: RunningTask, behind: list[RunningTask]) -> object:
        """Wait for the handler's result. Raises its error. `behind`: the tasks that the child runs next."""
        members = item.members if isinstance(item, Batch) else [item]
        seconds, over = self._limit(item)
        now = time.monotonic()
        limit = None if seconds is None else now + seconds
        item.ends = None if limit is None else limit + SETTLE_TIME
        item.cancel = child.kill
        child.busy = True
        waiting, slow = False, now + SLOW if behind else None
        try:
            if item.lost:
                child.kill()
            while True:
                wake = limit if slow is None else slow if limit is None else min(slow, limit)
                message = child.next(None if wake is None else wake - time.monotonic())
                if message is None and slow is not None and (limit is None or time.monotonic() < limit):
                    slow = None
                    child.return_unstarted()
                elif message is None:
                    raise Killed(over)
                elif message.kind == "unstarted":
                    if message.place > len(behind):  # including this one: the child had not started it
                        raise ReturnedUnstarted
                    given = behind[len(behind) - message.place :]
                    del behind[len(behind) - message.place :]
                    self._return(given)
                elif message.kind in ("waits", "resumes"):
                    waiting = message.kind == "waits"
                    if waiting and slow is not None:
                        slow = None
                        child.return_unstarted()
                    self._change_slot(child, item, waiting=waiting)
                elif message.kind == "progress":
                    members[message.place].current_task().progress = message.number
                elif message.kind in ("settled", "unsure"):
                    task = item.current_task()
                    task.status, task.unsure = Status.DONE, message.kind == "unsure"
                    return None
                else:
                    return _ended(message)
        finally:
            item.cancel = None
            child.busy = bool(behind)
            if waiting:  # it died while waiting without a slot: take one back, because the caller releases one
                self._change_slot(None, item, waiting=False)

    def _limit(self, item: RunningTask) -> tuple[float | None, HandlerFailed]:
        """The seconds that a task may run, and the error if it takes longer."""
        limit = item.handler.rules.time_limit if item.handler is not None else None
        if limit is not None and (item.ttr is None or limit <= item.ttr):
            return limit, TimedOut(limit)
        return item.ttr, HandlerFailed(f"its process was killed at its ttr of {item.ttr or 0:g} s")

    def _change_slot(self, child: Child | None, item: RunningTask, *, waiting: bool) -> None:
        """Free the slot of a waiting handler, or get one back for it; another process may run in the meantime."""
        if not waiting:
            item.regain_slot()
        with self._lock:
            self._waiting += 1 if waiting else -1
        if waiting:
            item.give_up_slot()
        elif child is not None:
            child.resume()


def _ended(message: Message) -> object:
    """The result of a finished job. Raises what its handler raised."""
    error: Exception
    match message.kind:
        case "done":
            return None if message.result is None else codec.decode(message.result)
        case "batch":
            errors = {part.place: _error(part) for part in message.parts if part.kind != "done"}
            if errors:
                raise Failures(errors)
            return [_ended(part) for part in message.parts]
        case "retry":
            error = Retry(message.number, message.text)
        case "snooze":
            raise Snooze(message.number or 0)
        case "bury":
            error = Bury(message.text)
        case "fail":
            error = Fail(message.text or "", decode_code(message.code))
        case _:
            error = HandlerFailed(message.text or "it failed")
    error.remote_traceback = message.traceback  # type: ignore[union-attr]
    raise error


def _error(message: Message) -> Exception:
    """The exception that a handler raised for one task of a batch."""
    try:
        _ended(message)
    except Exception as error:
        return error
    return HandlerFailed("it failed")


def importable_module(name: str, function: object) -> str:
    """The module of a handler's function. Raises BadValue if another process could not import it from there."""
    place = f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', '')}"
    if "<locals>" in place or place.startswith("__main__."):
        raise BadValue(f"{name} runs in child processes, which cannot import {place}: define it at the top of a module")
    return str(getattr(function, "__module__", ""))
