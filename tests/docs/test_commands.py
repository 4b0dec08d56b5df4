"""docs/cli.md shows the help of the commands."""

from __future__ import annotations

from tests.docs import commands


def test_the_page_is_written_from_the_help() -> None:
    page = commands.PAGE.read_text()
    assert commands.BEGIN in page
    assert commands.END in page
    assert page == commands.rewritten(page), "docs/cli.md is outdated: run python -m tests.docs.commands"
