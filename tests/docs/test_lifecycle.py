"""docs/lifecycle.md shows the transition table of the code."""

from __future__ import annotations

from penstock.core.lifecycle import TRANSITIONS
from tests.docs import drawing


def test_the_page_is_drawn_from_the_table() -> None:
    page = drawing.PAGE.read_text()
    assert drawing.BEGIN in page
    assert drawing.END in page
    assert page == drawing.redrawn(page), "docs/lifecycle.md is outdated: run python -m tests.docs.drawing"


def test_every_event_and_every_way_out_is_shown() -> None:
    arrows = [line for line in drawing.diagram().splitlines() if "-->" in line]
    shown = sum(len(arrow.partition(": ")[2].split(", ")) for arrow in arrows)
    assert shown == 2 + sum(len(afters) for moves in TRANSITIONS.values() for afters in moves.values())
