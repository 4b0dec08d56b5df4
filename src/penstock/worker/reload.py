"""`--reload`: a worker in a child process, restarted when a source file changes. For development."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

# Seconds between checks of the files.
CHECK_SECONDS = 0.5
_SKIPPED = {"__pycache__", "node_modules", "venv"}

Stamp = dict[str, int]


def run_reloading(arguments: Sequence[str], url: str | None) -> int:
    """Run `penstock worker` with these arguments and restart it after each change, until a signal stops it.

    Returns the exit code.
    """
    command = [sys.executable, "-m", "penstock", "worker", *arguments]
    environment = {**os.environ, **({} if url is None else {"PENSTOCK_URL": url})}
    signals: list[int] = []
    wake = threading.Event()

    def remember(number: int, frame: FrameType | None) -> None:
        signals.append(number)
        wake.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, remember)
    while True:
        stamp = stamp_of(Path.cwd())
        # In its own process group: Ctrl-C goes to this process, which then stops the child.
        child = subprocess.Popen(command, env=environment, process_group=0)
        while not signals and stamp_of(Path.cwd()) == stamp:
            wake.wait(CHECK_SECONDS)
        code = _end(child, signals)
        if signals:
            return code


def _end(child: subprocess.Popen[bytes], signals: list[int]) -> int:
    """Stop the child gracefully; a second signal is forwarded, too."""
    if child.poll() is None:
        child.send_signal(signal.SIGTERM)
    passed = 1
    while True:
        try:
            return child.wait(CHECK_SECONDS / 5)
        except subprocess.TimeoutExpired:
            if len(signals) > passed:
                passed = len(signals)
                child.send_signal(signal.SIGTERM)


def stamp_of(folder: Path) -> Stamp:
    """The modification time of each source file below the folder."""
    found: Stamp = {}
    for where, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name not in _SKIPPED and not name.startswith(".")]
        for name in files:
            if name.endswith(".py"):
                path = os.path.join(where, name)
                try:
                    found[path] = os.stat(path).st_mtime_ns
                except OSError:  # deleted since the folder was listed
                    pass
    return found
