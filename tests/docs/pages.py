"""The pages that are tested: README.md, ARCHITECTURE.md and everything below docs/."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", *sorted((ROOT / "docs").rglob("*.md"))]


def title(page: Path) -> str:
    """The page's path in the repository."""
    return str(page.relative_to(ROOT))
