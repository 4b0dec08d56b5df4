"""The pages under test: those at the top of the repository and everything below docs/."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / f"{name}.md" for name in ("README", "ARCHITECTURE", "CONTRIBUTING", "CHANGELOG")),
    *sorted((ROOT / "docs").rglob("*.md")),
]


def title(page: Path) -> str:
    """Returns the page's path in the repository."""
    return str(page.relative_to(ROOT))
