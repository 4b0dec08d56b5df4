"""Pauses the processes of a test run, servers too, one after the other, as a busy machine does."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

# Shorter and longer than the scans of every second; all well below the time-outs of ten or fifteen seconds.
PAUSES = (0.2, 0.5, 1.2, 2.5)
BETWEEN = (0.1, 0.8)


class Pauses:
    """Pauses this process and all that it starts, from now on until `end`."""

    def __init__(self, seed: int) -> None:
        command = [sys.executable, "-m", "tests.support.process_pauses", str(os.getpid()), str(seed)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def end(self) -> int:
        """Stop pausing. Returns the number of pauses."""
        self._process.terminate()
        return int(self._process.communicate()[0])


def main(root: str, seed: str) -> None:
    """Pause processes until the root process ends, or SIGTERM."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    dice, count = random.Random(seed), 0
    try:
        while running := below(int(root)):
            pause(dice.choice(running), dice.choice(PAUSES))
            count += 1
            time.sleep(dice.uniform(*BETWEEN))
    finally:
        sys.stdout.write(str(count))


def pause(pid: int, seconds: float) -> None:
    """Stop the process for that many seconds."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP)
        try:
            time.sleep(seconds)
        finally:
            os.kill(pid, signal.SIGCONT)


def below(root: int) -> list[int]:
    """That process and its descendants, except this one and those that a test has stopped."""
    states, parents = {}, {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            pid, rest = int(file.parent.name), file.read_text().rpartition(")")[2].split()
            states[pid], parents[pid] = rest[0], int(rest[1])
    found = {root} & states.keys()
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return sorted(pid for pid in found - {os.getpid()} if states[pid] not in "TZ")


if __name__ == "__main__":
    main(*sys.argv[1:])
