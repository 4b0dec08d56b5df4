"""How pytest-xdist shares out the tests: in which units, and which of them start first.

xdist's own groups (`--dist loadgroup`) do not work with pytest 9.2, which ignores the node ids that xdist changes.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath

import pytest
from xdist.scheduler import LoadScopeScheduling

# Folders whose tests run in one test process, one after the other, the longest first: those that share a server or a
# table that takes seconds to fill, and those that start processes by the dozen and mostly wait for them.
_FOLDERS = ("fault", "processes", "postgres", "redis", "mysql", "worker", "pool", "cli", "plans")
_STORE = re.compile(r"[\[-](memory|pool-\w+|sqlite|postgres|mariadb|redis(?:-cluster)?)[\]-]")


def unit(nodeid: str) -> str:
    """The tests of one unit run in one process: those of such a folder, else those of a module on a store."""
    module, _, test = nodeid.partition("::")
    folder = PurePosixPath(module).parent.name
    store = _STORE.search(test)
    return folder if folder in _FOLDERS else f"{module} {store[1] if store else ''}"


def is_quick(item: pytest.Item) -> bool:
    """Whether a test needs no server and does not declare, by a time limit of its own, that it is long."""
    store = _STORE.search(item.nodeid)
    return (store is None or store[1] in ("memory", "sqlite")) and item.get_closest_marker("timeout") is None


def place(item: pytest.Item) -> int:
    """Sorts long units first, so that all processes end together. A test with a time limit of its own is long."""
    folder = item.path.parent.name
    if folder in _FOLDERS:
        return _FOLDERS.index(folder)
    if folder == "behaviour":  # many small units, to fill the gaps at the end
        return 2 + len(_FOLDERS)
    return len(_FOLDERS) + (item.get_closest_marker("timeout") is None)


class Units(LoadScopeScheduling):  # type: ignore[misc]  # xdist brings no types
    """Hands out units in the order of the collection."""

    def _split_scope(self, nodeid: str) -> str:
        return unit(nodeid)
