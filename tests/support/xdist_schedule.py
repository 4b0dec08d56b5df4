"""How pytest-xdist shares out the tests: in which units, and which of them start first.

xdist's own groups (`--dist loadgroup`) do not work with pytest 9.2, which ignores the node ids that xdist changes.
"""

from __future__ import annotations

import re
from pathlib import PurePath, PurePosixPath

import pytest
from xdist.scheduler import LoadScopeScheduling

# Folders and modules whose tests run in one test process, one after the other, longest first: those that share a
# server or a table that takes seconds to fill, and those that start dozens of processes and mostly wait for them.
_TOGETHER = ("test_campaign", "worker", "redis", "processes", "fault", "postgres", "cli", "mysql", "pool", "plans")
_STORE = re.compile(r"[\[-](memory|pool-\w+|sqlite|postgres|mariadb|redis(?:-cluster)?)[\]-]")


def _together(module: PurePath) -> str | None:
    """The module, or else its folder, if its tests run in one process."""
    return next((name for name in (module.stem, module.parent.name) if name in _TOGETHER), None)


def unit(nodeid: str) -> str:
    """The tests of one unit run in one process: those of such a folder or module, otherwise of a module per store."""
    module, _, test = nodeid.partition("::")
    store = _STORE.search(test)
    return _together(PurePosixPath(module)) or f"{module} {store[1] if store else ''}"


def is_quick(item: pytest.Item) -> bool:
    """Whether a test needs no server and has no time limit, which marks long tests."""
    store = _STORE.search(item.nodeid)
    return (store is None or store[1] in ("memory", "sqlite")) and item.get_closest_marker("timeout") is None


def place(item: pytest.Item) -> int:
    """Sorts long units first, so that all processes end together. A test with its own time limit is long."""
    together = _together(item.path)
    if together is not None:
        return _TOGETHER.index(together)
    if item.path.parent.name == "behaviour":  # many small units, to fill the gaps at the end
        return 2 + len(_TOGETHER)
    return len(_TOGETHER) + (item.get_closest_marker("timeout") is None)


class Units(LoadScopeScheduling):  # type: ignore[misc]  # xdist brings no types
    """Hands out units in the order of the collection."""

    def _split_scope(self, nodeid: str) -> str:
        return unit(nodeid)
