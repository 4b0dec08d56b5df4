"""The ids that tasks of unleased kinds have, as far as the store gives them."""

from __future__ import annotations

from collections.abc import Sequence

import apsw
from msgspec.structs import replace

from penstock.core.ids import shown_mark
from penstock.core.kind import CLOCK
from penstock.core.options import Tube
from penstock.core.task import Entry
from penstock.store.sqlite.lanes import Q


def named(db: apsw.Connection, tube: Tube, entries: Sequence[Entry], first: int, now: int) -> list[Entry]:
    """The entries with their ids; `first` is the integer id of the first."""
    if tube.kind.hand_out == CLOCK:
        return [_element(db, tube, entry, id) for id, entry in enumerate(entries, first)]
    count = len(entries)
    ms, seq = db.execute(Q.next_marks, (tube.no, now, count)).get
    names = (shown_mark((ms, seq - count + place)) for place in range(1, count + 1))
    return [replace(entry, address=name) for entry, name in zip(entries, names, strict=True)]


def _element(db: apsw.Connection, tube: Tube, entry: Entry, id: int) -> Entry:
    if entry.address is not None:
        return entry
    name = f"reply-{id}"
    while db.execute(Q.address_id, (tube.no, name)).get is not None:
        name += "-"
    return replace(entry, address=name)
