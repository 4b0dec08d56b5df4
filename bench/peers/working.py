"""Runs the worker of another queue, with its child processes, during a measurement."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress


@contextmanager
def working(arguments: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    """Run a worker, and kill its whole process group at the end: dramatiq's processes outlive their parent."""
    worker = subprocess.Popen(
        [sys.executable, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        yield worker
    finally:
        with suppress(ProcessLookupError):  # it ended by itself
            os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()
