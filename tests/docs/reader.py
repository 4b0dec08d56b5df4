"""Runs the blocks of one page as a reader does: `python reader.py` in an empty folder, with the page on standard input.

Python blocks share one namespace, shell blocks one shell, in the order of the page. A text block after a shell block
is its output; an ellipsis in it matches any text.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

_MARK = "--- end of the block ---"


class Shell:
    """One bash for all shell blocks, which stops at the first command that fails."""

    def __init__(self) -> None:
        options = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        self._process: subprocess.Popen[str] = subprocess.Popen(["bash", "--norc", "-euo", "pipefail"], **options)  # type: ignore[call-overload]

    def run(self, code: str) -> str:
        """Returns what the commands print."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{code}\necho '{_MARK}'\n")
        self._process.stdin.flush()
        printed: list[str] = []
        for line in self._process.stdout:
            if line.strip() == _MARK:
                return "".join(printed)
            printed.append(line)
        raise AssertionError(f"a command failed, after it printed:\n{''.join(printed)}")

    def close(self) -> None:
        """End the shell."""
        self._process.communicate()


def must_match(expected: str, printed: str) -> None:
    """Compare the output of a command; an ellipsis matches any text."""
    pattern = ".*".join(map(re.escape, expected.strip().split("…")))
    assert re.fullmatch(pattern, printed.strip(), re.DOTALL), f"expected:\n{expected}\nprinted:\n{printed}"


def main() -> None:
    """Run the page."""
    page, blocks = json.loads(sys.stdin.read())
    namespace: dict[str, Any] = {"__name__": "__main__"}
    shell = Shell() if any(kind == "sh" for kind, *_ in blocks) else None
    printed = ""
    for kind, line, code, path in blocks:
        try:
            if kind == "file":
                Path(path).parent.mkdir(parents=True, exist_ok=True)
                Path(path).write_text(code + "\n")
            elif kind == "sh":
                assert shell is not None
                printed = shell.run(code)
            elif kind == "text":
                must_match(code, printed)
            else:  # newlines make a traceback show the line in the page
                exec(compile("\n" * line + code, page, "exec"), namespace)
        except AssertionError as error:
            raise AssertionError(f"{page}:{line}: {error}") from error
    if shell is not None:
        shell.close()


if __name__ == "__main__":
    main()
