"""What cannot be in a tube, and what repair makes of it: the same for every store's check."""

from __future__ import annotations

from msgspec.structs import replace

from penstock.core.ids import Mark, read_mark
from penstock.core.kind import CLOCK
from penstock.core.options import Tube
from penstock.core.task import Record


def stranded(state: str) -> str:
    """What is said of a task of a leased kind that no step would ever make ready: its state is unknown, or waits for a
    micro-queue, a moment or a group that it has not."""
    return f"in state {state}, which nothing ends"


def mended(tube: Tube, record: Record) -> tuple[str, Record] | None:
    """What is wrong with a task of an unleased kind, and the task as it should be; None where nothing is."""
    clocked = tube.kind.hand_out == CLOCK
    if record.state == "t" and not clocked:
        sound = replace(record, owner=None)
    else:
        sound = replace(record, state="r", owner=None, rank1=(record.taken or 0) if clocked else 0)
    if sound == record:
        return None
    if sound.state != record.state:
        return f"is in state {record.state}, which its kind has not", sound
    if record.owner is not None:
        return f"is held by session {record.owner}, but its kind has no leases", sound
    return "does not stand where its last hand-out put it", sound


def needed_mark(last: Mark, newest: Record | None) -> Mark | None:
    """The last message id that a tube must know; None where it does."""
    mark = None if newest is None or newest.address is None else read_mark(newest.address)
    return mark if mark is not None and mark > last else None
