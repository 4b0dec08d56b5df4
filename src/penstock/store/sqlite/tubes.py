"""Tubes in SQLite: their rows. Part of a transaction of the store's."""

from __future__ import annotations

import apsw
import msgspec

from penstock.core.declared import declared_tube
from penstock.core.kind import Kind
from penstock.core.options import Tube, encode_given, make_tube
from penstock.core.reply import REPLY_KIND
from penstock.store.moving import hidden
from penstock.store.sqlite.lanes import Q

# Tasks removed in one transaction by truncate and drop: some 20 ms, so that others get their turn.
REMOVE_STEP = 5000


def add(db: apsw.Connection, name: str, kind: Kind, given: dict[str, object]) -> Tube:
    """Store a new tube."""
    declared = msgspec.json.encode(kind, order="deterministic").decode()
    no = db.execute(Q.add_tube, (name, declared, encode_given(given).decode())).get
    db.execute(Q.add_counter, (no,))
    return make_tube(no, name, kind, given)


def reply_tube(db: apsw.Connection, name: str) -> Tube:
    """The tube that a reply goes to, created when it is missing."""
    row = db.execute(Q.get_tube, (name,)).get
    return add(db, name, REPLY_KIND, {}) if row is None else load(row)


def must_not_hide(db: apsw.Connection, name: str) -> None:
    """NoSuchTube where a tube of that name is on its way, here or away from here."""
    row = db.execute(Q.hidden_tube, (name,)).get
    if row is not None:
        raise hidden(load(row))


def load(row: tuple[int, str, str, str]) -> Tube:
    """The tube of a stored row."""
    return declared_tube(*row)


def load_all(db: apsw.Connection) -> list[Tube]:
    """All tubes, by name."""
    return [load(row) for row in db.execute(Q.all_tubes)]
