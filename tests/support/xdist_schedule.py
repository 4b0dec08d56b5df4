"""How the tests are shared out among the workers of pytest-xdist: in what units, and which of them start first.

xdist's own groups (`--dist loadgroup`) are none with pytest 9.2: it takes no notice of the node ids that xdist changes.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath

import pytest
from xdist.scheduler import LoadScopeScheduling

# What runs in one worker, one after the other, by the folder of the tests, the longest first: what shares a server or a
# table that takes seconds to fill, what starts processes by the dozen.
_TOGETHER = {
    "processes": "processes", "fault": "processes", "postgres": "postgres", "redis": "redis", "cli": "cli",
    "mysql": "mysql", "worker": "worker", "pool": "pool", "plans": "plans",
}  # fmt: skip
_FOLDERS = tuple(_TOGETHER)
_STORE = re.compile(r"[\[-](memory|pool-\w+|sqlite|postgres|mariadb|redis(?:-cluster)?)[\]-]")


def unit(nodeid: str) -> str:
    """The tests of one unit go to one worker: those of some folders, else those of a module on a store."""
    module, _, test = nodeid.partition("::")
    folder = PurePosixPath(module).parent.name
    store = _STORE.search(test)
    return _TOGETHER.get(folder) or f"{module} {store[1] if store else ''}"


def is_quick(item: pytest.Item) -> bool:
    """Whether a test needs no server and does not declare, by a time limit of its own, that it is long."""
    store = _STORE.search(item.nodeid)
    return (store is None or store[1] in ("memory", "sqlite")) and item.get_closest_marker("timeout") is None


def place(item: pytest.Item) -> int:
    """What is long starts first, so that the workers end together. A time limit of its own says that a test is long."""
    folder = item.path.parent.name
    if folder in _TOGETHER:
        return _FOLDERS.index(folder)
    if folder == "behaviour":  # many small units, to fill the gaps at the end
        return 2 + len(_FOLDERS)
    return len(_FOLDERS) + (item.get_closest_marker("timeout") is None)


class Units(LoadScopeScheduling):  # type: ignore[misc]  # xdist brings no types
    """Hands out units as they come in the collection."""

    def _split_scope(self, nodeid: str) -> str:
        return unit(nodeid)
