"""Runs commands of `penstock` in processes of their own, which have its modules and drivers loaded already."""

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
    """A folder and a store, and commands on them."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self.url = url
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
        self.environment = {**kept, "PENSTOCK_URL": url, "PYTHONPATH": SOURCE}

    def run(self, *words: str, stdin: str | bytes = b"") -> subprocess.CompletedProcess[str]:
        """The command, whatever becomes of it."""
        given = stdin.encode() if isinstance(stdin, str) else stdin
        return run_penstock(*words, stdin=given, cwd=self.folder, env=self.environment, timeout=120)

    def __call__(self, *words: str, stdin: str | bytes = b"") -> str:
        """What a command that must succeed printed."""
        done = self.run(*words, stdin=stdin)
        assert (done.returncode, done.stderr) == (0, ""), done
        return done.stdout.rstrip("\n")

    def json(self, *words: str, stdin: str | bytes = b"") -> Any:
        """The JSON that a command that must succeed printed."""
        return msgspec.json.decode(self(words[0], "--json", *words[1:], stdin=stdin))

    def mq(self, *words: str) -> Any:
        """The same of a command of `penstock mq`."""
        return msgspec.json.decode(self("mq", words[0], "--json", *words[1:]))

    def on_terminal(self, *words: str) -> str:
        """What a command that must succeed showed on a terminal."""
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
        """The one line that a command that must fail printed on standard error."""
        done = self.run(*words, stdin=stdin)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (code, "", 1), done
        return done.stderr.removeprefix("penstock: ").rstrip("\n")
