"""Run every python block of the pages as a reader would: in order, in an empty folder."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

import penstock
from tests.docs.pages import PAGES, title
from tests.servers import running

_FENCE = re.compile(r"^```(\w*)")
_NOT_RUN = re.compile(r"^<!-- not run: (.+) -->$")

# Runs the blocks of one page in one namespace. Leading newlines make tracebacks show the line in the page.
_RUNNER = """
import json, sys
page, blocks = json.loads(sys.stdin.read())
namespace = {"__name__": "__main__"}
for line, code in blocks:
    exec(compile("\\n" * line + code, page, "exec"), namespace)
"""


class Block(NamedTuple):
    """A python block: its page, the line of its fence, its code, and the reason if it is not run."""

    page: str
    line: int
    code: str
    not_run: str | None


def blocks_of(page: str, text: str) -> list[Block]:
    """Returns the python blocks of a page, in order."""
    found: list[Block] = []
    lines: list[str] = []
    language: str | None = None
    reason: str | None = None
    begin = 0
    for number, line in enumerate(text.splitlines(), 1):
        fence = _FENCE.match(line)
        if language is not None and not fence:
            lines.append(line)
        elif language is not None:
            if language == "python":
                found.append(Block(page, begin, "\n".join(lines), reason))
            language, reason = None, None
        elif fence:
            language, begin, lines = fence[1], number, []
        elif line.strip():
            marked = _NOT_RUN.match(line)
            reason = marked[1] if marked else None
    assert language is None, f"{page}:{begin} begins a block that never ends"
    return found


BLOCKS = {title(page): blocks_of(title(page), page.read_text()) for page in PAGES}
RUN = {page: [block for block in blocks if block.not_run is None] for page, blocks in BLOCKS.items()}


@pytest.mark.parametrize("page", [page for page, blocks in RUN.items() if blocks])
def test_the_blocks_of_a_page_run(page: str, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PENSTOCK_URL"}
    environment["PENSTOCK_LOCKS"] = str(tmp_path / "locks")
    environment["PYTHONPATH"] = str(Path(penstock.__file__).parents[1])  # also where it is not installed
    if any("REDIS_URL" in block.code for block in RUN[page]):
        environment["REDIS_URL"] = running("redis").url
    folder = tmp_path / "reader"
    folder.mkdir()
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", _RUNNER],
        input=json.dumps([page, [(block.line, block.code) for block in RUN[page]]]),
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr == "", "a page's example complains"


def test_the_readme_has_a_short_example_that_runs() -> None:
    first = RUN["README.md"][0]
    assert len(first.code.splitlines()) <= 20


def test_blocks_that_are_not_run_are_counted() -> None:
    left_out = [block for blocks in BLOCKS.values() for block in blocks if block.not_run is not None]
    if left_out:
        listed = ", ".join(f"{block.page}:{block.line} ({block.not_run})" for block in left_out)
        pytest.skip(f"{len(left_out)} blocks of the docs are not run: {listed}")


@pytest.mark.parametrize(
    ("text", "run", "left_out"),
    [
        ("```python\nx\n```\n", ["x"], []),
        ("```sh\nx\n```\n```\ny\n```\n", [], []),
        ("<!-- not run: slow -->\n```python\nx\n```\n```python\ny\n```\n", ["y"], ["slow"]),
        ("<!-- not run: slow -->\n\n```python\nx\n```\n", [], ["slow"]),
        ("<!-- not run: slow -->\ntext\n```python\nx\n```\n", ["x"], []),
    ],
)
def test_blocks_are_found(text: str, run: list[str], left_out: list[str]) -> None:
    blocks = blocks_of("page", text)
    assert [block.code for block in blocks if block.not_run is None] == run
    assert [block.not_run for block in blocks if block.not_run is not None] == left_out
