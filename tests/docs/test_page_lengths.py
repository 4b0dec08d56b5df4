"""README.md and ARCHITECTURE.md stay short enough to be read."""

from __future__ import annotations

import pytest

from tests.docs.pages import ROOT


@pytest.mark.parametrize(("page", "most"), [("README.md", 150), ("ARCHITECTURE.md", 200)])
def test_the_page_is_short(page: str, most: int) -> None:
    assert len((ROOT / page).read_text().splitlines()) <= most


def test_the_lines_of_the_architecture_fit_a_screen() -> None:
    lines = (ROOT / "ARCHITECTURE.md").read_text().splitlines()
    assert [line for line in lines if len(line) > 120] == []
