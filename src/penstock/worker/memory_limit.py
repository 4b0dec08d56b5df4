"""`--max-memory`: stops a worker that uses too much memory, so that its supervisor starts a new one."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path

from penstock.errors import UnsupportedOption
from penstock.worker.state import WorkerState

# Seconds between checks.
EVERY = 1.0
_PROCESS = Path("/proc/self")


class MemoryLimit:
    """One thread that checks the resident memory of the worker and its child processes."""

    def __init__(self, state: WorkerState, most: int) -> None:
        if not (_PROCESS / "statm").exists():
            raise UnsupportedOption("--max-memory needs /proc, which this system does not have: leave it out")
        self._state = state
        self._most = most
        self._stopping = threading.Event()
        self._thread = state.thread("memory-limit", self._run)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread."""
        self._stopping.set()

    def _run(self) -> None:
        while not self._stopping.wait(EVERY):
            found = resident_bytes()
            if found > self._most:
                mib = 1024 * 1024
                most = f"--max-memory is {self._most / mib:,.0f} MiB"
                self._state.reached_limit(f"the worker uses {found / mib:,.0f} MiB, and {most}")
                return


def resident_bytes() -> int:
    """The resident memory of this process and its children; shared pages are counted for each process."""
    pids = ["self"]
    for children in _PROCESS.glob("task/*/children"):
        with suppress(OSError):  # a thread that has ended
            pids += children.read_text().split()
    pages = 0
    for pid in pids:
        with suppress(OSError):  # a process that has ended
            pages += int((_PROCESS.parent / pid / "statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
