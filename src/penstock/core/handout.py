"""What a hand-out without a lease makes of a task. Nobody holds it, so the end of a session does not touch it."""

from __future__ import annotations

import msgspec

from penstock.core.options import Tube
from penstock.core.task import Record


def clocked(record: Record, now: int) -> Record:
    """An element of a round tube stays ready, behind all that were handed out before."""
    return msgspec.structs.replace(record, rank1=now, taken=now, attempts=record.attempts + 1)


def clock_limit(tube: Tube, now: int) -> int:
    """The highest first rank that may be handed out now; 0 is that of an element that never was."""
    return max(0, now - tube.period)


def clock_wait(tube: Tube, rank: float, now: int) -> int | None:
    """So many milliseconds until the element of that rank may be handed out; None: it may be now."""
    return None if rank <= clock_limit(tube, now) else int(rank) + tube.period - now


def delivered(record: Record, now: int, serial: int) -> Record:
    """A message of a reliable tube is taken by nobody in particular, at the end of the delivered ones."""
    return msgspec.structs.replace(record, state="t", rank1=serial, taken=now, attempts=record.attempts + 1)
