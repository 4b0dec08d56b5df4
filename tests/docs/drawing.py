"""Generate the diagram and table of docs/lifecycle.md from TRANSITIONS: `python -m tests.docs.drawing`."""

from __future__ import annotations

from penstock.core.lifecycle import EVENTS, LEASED_VERBS, TRANSITIONS
from tests.docs.pages import ROOT

PAGE = ROOT / "docs" / "lifecycle.md"
BEGIN = "<!-- drawn from TRANSITIONS: begin -->"
END = "<!-- drawn from TRANSITIONS: end -->"

_NAMES = {"r": "ready", "t": "taken", "~": "delayed", "!": "buried", "-": "gone"}
_STORED = "rt~!"
# TRANSITIONS describes existing tasks; a new one is ready or delayed.
_PUT = {"": "r~"}
_WHO = {
    "put": "anyone",
    "take": "a session",
    **dict.fromkeys(LEASED_VERBS, "the holder of the live lease"),
    **dict.fromkeys(("bury", "kick", "delete"), "anyone"),
    **dict.fromkeys(("ttl", "ttr", "delay"), "the clock"),
}


def diagram() -> str:
    """Draw the states and the events between them, in mermaid."""
    events: dict[tuple[str, str], list[str]] = {}
    for event in EVENTS:
        for before, afters in TRANSITIONS.get(event, _PUT).items():
            for after in afters:
                events.setdefault((before, after), []).append(event)
    arrows = [
        f"    {_point(before)} --> {_point(after)}: {', '.join(names)}" for (before, after), names in events.items()
    ]
    return "\n".join(["```mermaid", "stateDiagram-v2", *arrows, "```"])


def table() -> str:
    """Build the table: one row per event, one column per state, each cell with the next state."""
    states = ["", *_STORED]
    head = ["event", "by", "new", *(f"{_NAMES[state]} `{state}`" for state in _STORED)]
    rows = [head, ["---"] * len(head)]
    for event in EVENTS:
        moves = TRANSITIONS.get(event, _PUT)
        cells = [" or ".join(_NAMES[after] for after in moves.get(state, "")) or "–" for state in states]
        rows.append([f"`{event}`", _WHO[event], *cells])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def drawn() -> str:
    """Returns the text between the markers."""
    return f"{BEGIN}\n{diagram()}\n\n{table()}\n{END}"


def redrawn(page: str) -> str:
    """Returns the page with a new text between the markers."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + drawn() + after


def _point(state: str) -> str:
    return "[*]" if state in ("", "-") else _NAMES[state]


if __name__ == "__main__":
    PAGE.write_text(redrawn(PAGE.read_text()))
