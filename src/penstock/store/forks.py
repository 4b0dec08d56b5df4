"""What must be replaced in a forked child: locks, connections, and threads that only the parent has."""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Forkable(Protocol):
    """Something that holds what a child must not use."""

    def after_fork(self) -> None:
        """Runs in the child, in its only thread, before anything else."""


_forkables: weakref.WeakSet[Forkable] = weakref.WeakSet()


def reset_in_child(forkable: Forkable) -> None:
    """Call its after_fork in every child forked while it lives."""
    _forkables.add(forkable)


def _reset_all() -> None:
    for forkable in list(_forkables):
        forkable.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_all)
