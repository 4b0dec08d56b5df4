"""Another process on the same store, controlled line by line. `Peer` is the test's end of it.

As a program: `python -m tests.support.peer URL` reads one JSON list [command, *arguments] per line and prints one
JSON line for each; a penstock error is printed as {"error": its name}.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import penstock
from penstock.runtime import heartbeat as heartbeat
from tests.support.freeze import freeze

ROOT = Path(__file__).parents[2]
PATIENCE = 120.0
Answer = dict[str, Any]


def environment() -> dict[str, str]:
    """Environment of child processes: the import path of this process."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])}


class Peer:
    """A separate process. Leaving the block ends it in any state."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.peer", url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment(),
            text=True,
        )
        self._answers: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.pid: int = self.answer()["pid"]

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(line)

    def send(self, command: str, *arguments: object) -> None:
        """Send a command; `answer` waits for the result."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([command, *arguments]) + "\n")
        self._process.stdin.flush()

    def answer(self, timeout: float = PATIENCE) -> Answer:
        """The next answer; queue.Empty if it does not come."""
        found: Answer = json.loads(self._answers.get(timeout=timeout))
        return found

    def ask(self, command: str, *arguments: object) -> Answer:
        """Send a command and return its answer."""
        self.send(command, *arguments)
        return self.answer()

    def kill(self) -> None:
        """kill -9: no chance to clean up."""
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """Freeze it, and wait until it is frozen."""
        freeze(self._process, self._url)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.kill()
        self._reader.join()
        for stream in (self._process.stdin, self._process.stdout):
            _close(stream)


def _close(stream: IO[str] | None) -> None:
    assert stream is not None
    try:
        stream.close()
    except BrokenPipeError:  # sent to a peer that is dead by now
        pass


class PeerProgram:
    """The peer's own end."""

    def __init__(self, url: str) -> None:
        self.broker = penstock.connect(url)
        self.task: penstock.Task | None = None

    def without_scan(self) -> None:
        """Let only a signal wake takers from now on: no scan, and no known deadline."""
        heartbeat.SCAN_SECONDS = 600.0

    def put(self, tube: str, data: object) -> dict[str, int]:
        return {"id": self.broker.tube(tube).put(data).id}

    def take(self, tube: str, timeout: float) -> dict[str, int]:
        self.task = self.broker.tube(tube).take(timeout)
        return {"id": self.task.id, "lease": self.task.lease} if self.task else {}

    def ack(self) -> None:
        assert self.task is not None
        self.task.ack()

    def ready(self, tube: str) -> dict[str, int]:
        return {"ready": self.broker.tube(tube).stats().tasks.ready}

    def fork_a_sleeper(self) -> dict[str, int]:
        """A child that does nothing and outlives this process; it ends when the test's pipe is closed."""
        child = os.fork()
        if child == 0:
            signal.pause()
            os._exit(0)
        return {"child": child}

    def close(self) -> None:
        self.broker.close()


def main(url: str) -> None:
    """Run the commands of standard input."""
    program = PeerProgram(url)
    _answer({"pid": os.getpid()})
    for line in sys.stdin:
        command, *arguments = json.loads(line)
        work: Callable[..., dict[str, int] | None] = getattr(program, command)
        try:
            _answer(work(*arguments) or {})
        except penstock.PenstockError as error:
            _answer({"error": type(error).__name__})


def _answer(answer: object) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])
