"""Runs `penstock` commands in separate processes that have its modules and drivers loaded already."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

import penstock
from tests.support.forked import run_penstock

SOURCE = str(Path(penstock.__file__).parents[1])


class Shell:
    """Runs commands in one folder and on one store."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self.url = url
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
        self.environment = {**kept, "PENSTOCK_URL": url, "PYTHONPATH": SOURCE}

    def run(self, *words: str, stdin: str | bytes = b"") -> subprocess.CompletedProcess[str]:
        """Run a command, whether it succeeds or fails."""
        given = stdin.encode() if isinstance(stdin, str) else stdin
        return run_penstock(*words, stdin=given, cwd=self.folder, env=self.environment, timeout=120)

    def __call__(self, *words: str, stdin: str | bytes = b"") -> str:
        """Run a command that must succeed. Returns its output."""
        done = self.run(*words, stdin=stdin)
        assert (done.returncode, done.stderr) == (0, ""), done
        return done.stdout.rstrip("\n")

    def json(self, *words: str, stdin: str | bytes = b"") -> Any:
        """Run a command that must succeed. Returns its JSON output."""
        return msgspec.json.decode(self(words[0], "--json", *words[1:], stdin=stdin))

    def mq(self, *words: str) -> Any:
        """Run a command of `penstock mq` that must succeed. Returns its JSON output."""
        return msgspec.json.decode(self("mq", words[0], "--json", *words[1:]))

    def on_terminal(self, *words: str) -> str:
        """Run a command that must succeed on a terminal. Returns what it showed."""
        master, slave = os.openpty()
        shown = b""
        with subprocess.Popen(
            [sys.executable, "-m", "penstock", *words], stdin=slave, stdout=slave, stderr=slave, cwd=self.folder,
            env={**self.environment, "TERM": "xterm", "COLUMNS": "100", "LINES": "24"},
        ) as command:  # fmt: skip
            os.close(slave)
            with suppress(OSError):  # the other end is closed
                while more := os.read(master, 65536):
                    shown += more
            os.close(master)
        assert command.returncode == 0, shown
        return shown.decode()

    def refused(self, *words: str, code: int = 1, stdin: str | bytes = b"") -> str:
        """Run a command that must fail. Returns its one line on standard error."""
        done = self.run(*words, stdin=stdin)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (code, "", 1), done
        return done.stderr.removeprefix("penstock: ").rstrip("\n")
