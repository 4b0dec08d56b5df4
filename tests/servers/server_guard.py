"""Stops the servers of a test run that could not stop them itself because it was killed or interrupted.

A separate process is notified of every server that starts and stops. Its standard input is closed when the run ends.
"""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

_GUARD = """
import os, shutil, signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)  # it outlives the run
left = {}
for line in sys.stdin:
    pid, _, folder = line.rstrip().partition(" ")
    left.pop(int(pid), None)
    if folder:
        left[int(pid)] = folder
for pid, folder in left.items():
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    shutil.rmtree(folder, ignore_errors=True)
"""


def started(pid: int, folder: Path) -> None:
    """Register a server that runs on that folder."""
    _notify(f"{pid} {folder}\n")


def ended(pid: int) -> None:
    """Unregister a server that has ended."""
    _notify(f"{pid}\n")


def _notify(line: str) -> None:
    pipe = _guard(os.getpid()).stdin
    assert pipe is not None
    pipe.write(line.encode())
    pipe.flush()


@cache
def _guard(process: int) -> subprocess.Popen[bytes]:
    """The guard of this process; a forked child gets another one."""
    guard = subprocess.Popen([sys.executable, "-c", _GUARD], stdin=subprocess.PIPE, start_new_session=True)
    atexit.register(guard.communicate)  # after the servers that stop at exit, because those are registered later
    return guard
