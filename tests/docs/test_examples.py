"""Run every python block of the pages as a reader would: in order, in an empty folder.

A comment before a block changes that: `<!-- not run: REASON -->`, `<!-- run by: TEST -->`, or `<!-- file: NAME -->` for
a block of any language that the reader saves. `<!-- the commands of this page are run -->`, anywhere in a page, also
runs its sh blocks, and compares their output with the text blocks; test_shell runs the sh blocks of other pages.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

import penstock
from tests.docs.pages import PAGES, ROOT, title
from tests.servers import running

_FENCE = re.compile(r"^```(\w*)")
_MARK = re.compile(r"^<!-- (not run|run by|file): (.+) -->$")
COMMANDS_ARE_RUN = "<!-- the commands of this page are run -->"


class Block(NamedTuple):
    """A block: its page, the line of its fence, its code, the reason if it is not run, its kind, the file it is for.

    `elsewhere`: another test runs it.
    """

    page: str
    line: int
    code: str
    not_run: str | None
    kind: str = "python"
    path: str | None = None
    elsewhere: bool = False


def blocks_of(page: str, text: str) -> list[Block]:
    """Returns the blocks of a page that are code, and those with the output of commands that are run, in order."""
    run = {"python", "sh", "text"} if COMMANDS_ARE_RUN in text else {"python", "sh"}
    found: list[Block] = []
    lines: list[str] = []
    language: str | None = None
    marks: dict[str, str] = {}
    begin = 0
    for number, line in enumerate(text.splitlines(), 1):
        fence = _FENCE.match(line)
        if language is not None and not fence:
            lines.append(line)
        elif language is not None:
            if language in run or "file" in marks:
                kind = "file" if "file" in marks else language
                left_out = marks.get("not run") or marks.get("run by")
                found.append(Block(page, begin, "\n".join(lines), left_out, kind, marks.get("file"), "run by" in marks))
            language, marks = None, {}
        elif fence:
            language, begin, lines = fence[1], number, []
        elif line.strip():
            marked = _MARK.match(line)
            marks = {marked[1]: marked[2]} if marked else {}
    assert language is None, f"{page}:{begin} begins a block that never ends"
    return found


BLOCKS = {title(page): blocks_of(title(page), page.read_text()) for page in PAGES}
# The blocks that are run in the order of their page; test_shell runs the commands of the other pages.
RUN = {
    page: [
        block
        for block in blocks
        if block.not_run is None and (block.kind != "sh" or COMMANDS_ARE_RUN in (ROOT / page).read_text())
    ]
    for page, blocks in BLOCKS.items()
}


@pytest.mark.parametrize("page", [page for page, blocks in RUN.items() if blocks])
def test_the_blocks_of_a_page_run(page: str, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PENSTOCK_URL"}
    environment["PENSTOCK_LOCKS"] = str(tmp_path / "locks")
    environment["PYTHONPATH"] = str(Path(penstock.__file__).parents[1])  # even if penstock is not installed
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    if any("REDIS_URL" in block.code for block in RUN[page]):
        environment["REDIS_URL"] = running("redis").url
    folder = tmp_path / "reader"
    folder.mkdir()
    reader = subprocess.Popen(
        [sys.executable, "-W", "error", ROOT / "tests" / "docs" / "reader.py"],
        cwd=folder,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        blocks = [(block.kind, block.line, block.code, block.path) for block in RUN[page]]
        _, complaints = reader.communicate(json.dumps([page, blocks]), timeout=240)
    finally:
        try:
            os.killpg(reader.pid, signal.SIGKILL)  # processes that a failed page left running
        except ProcessLookupError:
            pass
    assert reader.returncode == 0, complaints
    assert complaints == "", "a page's example complains"


def test_the_readme_has_a_short_example_that_runs() -> None:
    first = RUN["README.md"][0]
    assert len(first.code.splitlines()) <= 20


def test_blocks_that_are_not_run_are_counted() -> None:
    left_out = [block for blocks in BLOCKS.values() for block in blocks if block.not_run and not block.elsewhere]
    if left_out:
        listed = ", ".join(f"{block.page}:{block.line} ({block.not_run})" for block in left_out)
        pytest.skip(f"{len(left_out)} blocks of the docs are not run: {listed}")


@pytest.mark.parametrize(
    ("text", "run", "left_out"),
    [
        ("```python\nx\n```\n", ["x"], []),
        ("```sh\nx\n```\n```\ny\n```\n", ["x"], []),
        ("<!-- not run: slow -->\n```python\nx\n```\n```python\ny\n```\n", ["y"], ["slow"]),
        ("<!-- run by: test_x -->\n```python\nx\n```\n", [], ["test_x"]),
        ("<!-- not run: slow -->\n\n```python\nx\n```\n", [], ["slow"]),
        ("<!-- not run: slow -->\ntext\n```python\nx\n```\n", ["x"], []),
        ("<!-- file: a.toml -->\n```toml\nx\n```\n```yaml\ny\n```\n", ["x"], []),
        ("<!-- the commands of this page are run -->\n```sh\nx\n```\n\n```text\ny\n```\n", ["x", "y"], []),
    ],
)
def test_blocks_are_found(text: str, run: list[str], left_out: list[str]) -> None:
    blocks = blocks_of("page", text)
    assert [block.code for block in blocks if block.not_run is None] == run
    assert [block.not_run for block in blocks if block.not_run is not None] == left_out
    assert all(block.elsewhere == ("run by" in text) for block in blocks)
