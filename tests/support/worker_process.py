"""`penstock worker` as a separate process, and its log."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from types import TracebackType

from tests.support.freeze import freeze
from tests.support.peer import environment
from tests.support.threads import until

PATIENCE = 60.0
_MAIN = "from penstock.cli.main import main; main()"


class Program:
    """A worker process. Leaving the block ends it in any state."""

    def __init__(self, url: str, *arguments: str, target: str = "tests.worker.jobs:app", first: str = "pass") -> None:
        """`first` is code that it runs before anything else."""
        self._url = url
        self.process = subprocess.Popen(
            [sys.executable, "-c", f"{first}\n{_MAIN}", "worker", target, *arguments],
            stderr=subprocess.PIPE,
            env={**environment(), "PENSTOCK_URL": url},
            text=True,
        )
        self.pid = self.process.pid
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line.rstrip("\n"))

    @property
    def log(self) -> str:
        """Everything it has logged so far."""
        return "\n".join(self.lines)

    def await_log(self, text: str) -> None:
        """Wait until it has logged this."""
        until(lambda: text in self.log or not self._reader.is_alive(), PATIENCE)
        assert text in self.log, self.log

    def signal(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Send it a signal."""
        self.process.send_signal(number)

    def freeze(self) -> None:
        """Stop it, and wait until it has stopped."""
        freeze(self.process, self._url)

    def wait(self) -> int:
        """Wait until it ends. Returns its exit code."""
        code = self.process.wait(PATIENCE)
        self._reader.join()
        return code

    def stop(self) -> int:
        """Stop it as an operator does. Returns its exit code."""
        self.signal()
        return self.wait()

    def kill(self) -> None:
        """kill -9."""
        self.process.kill()
        self.wait()

    def __enter__(self) -> Program:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.kill()
        assert self.process.stderr is not None
        self.process.stderr.close()
