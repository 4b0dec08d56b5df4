"""Freezes a process that uses a SQLite file, but not in a transaction, which would lock out all others."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import closing
from typing import Any

import apsw

from tests.support.threads import until


def freeze(process: subprocess.Popen[Any], url: str) -> None:
    """Stop it, and wait until it has stopped."""
    _stop(process)
    while _is_locked(url):
        process.send_signal(signal.SIGCONT)
        until(lambda: not _is_locked(url))
        _stop(process)


def _stop(process: subprocess.Popen[Any]) -> None:
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)


def _is_locked(url: str) -> bool:
    """Whether a process is writing to the file of a store."""
    path = url.removeprefix("sqlite:///").partition("?")[0]
    with closing(apsw.Connection(path, flags=apsw.SQLITE_OPEN_READWRITE)) as connection:  # not a new file by mistake
        try:
            connection.execute("BEGIN IMMEDIATE; ROLLBACK")
        except apsw.BusyError:
            return True
    return False
