"""Tubes in SQLite: their rows, and their removal in bounded steps. Part of a transaction of the store's."""

from __future__ import annotations

import apsw
import msgspec

from penstock.core.kind import Kind
from penstock.core.options import Tube, decode_given, encode_given, make_tube
from penstock.store.sqlite.lanes import Q
from penstock.store.sqlite.step import ID_BITS

# Tasks removed in one transaction by truncate and drop: some 20 ms, so that others get their turn.
REMOVE_STEP = 5000


def add(db: apsw.Connection, name: str, kind: Kind, given: dict[str, object]) -> Tube:
    """Store a new tube."""
    declared = msgspec.json.encode(kind, order="deterministic").decode()
    no = db.execute(Q.add_tube, (name, declared, encode_given(given).decode())).get
    db.execute(Q.add_counter, (no,))
    return make_tube(no, name, kind, given)


def load(row: tuple[int, str, str, str]) -> Tube:
    """The tube of a stored row."""
    no, name, kind, given = row
    return make_tube(no, name, msgspec.json.decode(kind, type=Kind), decode_given(given))


def load_all(db: apsw.Connection) -> list[Tube]:
    """All tubes, by name."""
    return [load(row) for row in db.execute(Q.all_tubes)]


def remove_hidden_step(db: apsw.Connection) -> bool:
    """Remove some tasks of dropped tubes; False when nothing is left of any."""
    for (no,) in list(db.execute(Q.hidden_tubes)):
        keys = [row[0] for row in db.execute(Q.page_keys, (no << ID_BITS, (no + 1) << ID_BITS, REMOVE_STEP))]
        if keys:
            db.execute(Q.delete_range, (keys[0], keys[-1]))
            return True
        for query in (Q.forget_lanes, Q.forget_waiting_tube, Q.forget_tube):
            db.execute(query, (no,))
    return False
