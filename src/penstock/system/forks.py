"""Resets objects in a forked child: locks, connections, and threads that exist only in the parent."""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Forkable(Protocol):
    """An object that holds resources which a forked child must not use."""

    def after_fork(self) -> None:
        """Replace these resources. Runs first in the child, in its only thread."""


_forkables: weakref.WeakSet[Forkable] = weakref.WeakSet()


def reset_in_child(forkable: Forkable) -> None:
    """Register an object: every child that is forked while the object lives calls its `after_fork`."""
    _forkables.add(forkable)


def _reset_all() -> None:
    for forkable in list(_forkables):
        forkable.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_all)
