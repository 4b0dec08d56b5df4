"""Links inside the repository resolve, and files that the text names exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.pages import PAGES, ROOT, title

_LINK = re.compile(r"\[[^\]]+\]\(([^)\s]+)\)")
_BLOCK = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
_NAMED = re.compile(r"`([\w./-]+(?:\.(?:py|sql|md|toml)|/))`")
_SAVED = re.compile(r"^<!-- file: (.+) -->$", re.MULTILINE)  # by the reader
_OUTSIDE = ("http://", "https://", "mailto:")
# Where a path in the text may begin.
_STARTS = (ROOT, ROOT / "src" / "penstock")


def prose(page: Path) -> str:
    return _BLOCK.sub("", page.read_text())


def anchors(page: Path) -> set[str]:
    """Returns the anchors that GitHub makes of a page's headings."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(page: Path) -> Iterator[str]:
    for link in _LINK.findall(prose(page)):
        if link.startswith(_OUTSIDE):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            yield link


def missing_files(page: Path) -> Iterator[str]:
    saved = _SAVED.findall(page.read_text())
    for name in _NAMED.findall(prose(page)):
        if name.startswith("/") or name in saved:
            continue  # a path on the reader's computer
        if "/" in name:
            there = any((start / name).exists() for start in (*_STARTS, page.parent))
        else:  # decisions may name a future file
            there = page.parent.name == "decisions" or any(any(start.rglob(name)) for start in _STARTS[1:])
            there = there or (ROOT / name).exists()
        if not there:
            yield name


@pytest.mark.parametrize("page", PAGES, ids=title)
def test_links_resolve(page: Path) -> None:
    assert list(broken_links(page)) == []


@pytest.mark.parametrize("page", PAGES, ids=title)
def test_named_files_exist(page: Path) -> None:
    assert list(missing_files(page)) == []


def test_every_page_can_be_reached_from_the_readme() -> None:
    seen: set[Path] = set()
    ahead = [ROOT / "README.md"]
    while ahead:
        page = ahead.pop()
        if page in seen or page.suffix != ".md":
            continue
        seen.add(page)
        links = [link.partition("#")[0] for link in _LINK.findall(prose(page)) if not link.startswith(_OUTSIDE)]
        ahead += [(page.parent / link).resolve() for link in links if link]
    assert [title(page) for page in PAGES if page not in seen] == []
