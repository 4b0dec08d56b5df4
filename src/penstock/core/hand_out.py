"""A hand-out as text, for callers in other processes that hold no Task: HTTP clients and shells."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from penstock.core.names import shown
from penstock.core.task import Facts
from penstock.errors import NotTaken

_TEXT = re.compile(r"[1-9a-f][0-9a-f]{0,13}")
_MAX_LEASE = 2**53


class HandOut(NamedTuple):
    """A task's id and the stored lease of one hand-out; verbs accept it in place of a Task."""

    id: int
    lease: int


def lease_text(task: Facts[Any]) -> str:
    """The lease of a taken task as an opaque text, its unrepeatable part included."""
    return f"{task._record.lease:x}"


def hand_out(id: int, text: str) -> HandOut:
    """The hand-out of that text; NotTaken if no take gave such a text."""
    lease = int(text, 16) if _TEXT.fullmatch(text) else _MAX_LEASE
    if lease >= _MAX_LEASE:
        raise NotTaken(f"task {id} is not held with lease {shown(text)}: give the lease as the take gave it")
    return HandOut(id, lease)
