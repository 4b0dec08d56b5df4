"""Tubes in MySQL: their rows, and their removal in bounded steps."""

from __future__ import annotations

from functools import partial

import msgspec

from penstock.core.declared import declared_tube
from penstock.core.entry import plain_entry
from penstock.core.kind import Kind
from penstock.core.options import Tube, encode_given, make_tube
from penstock.core.reply import REPLY_KIND
from penstock.core.task import Rank
from penstock.store.moving import hidden
from penstock.store.mysql.database import Database
from penstock.store.mysql.pool import Link
from penstock.store.mysql.queries import Q
from penstock.store.mysql.wire import Rows
from penstock.store.refusals import refuse_busy, tube_exists, tube_missing

# Tasks removed in one transaction by truncate and drop, so that others get their turn.
REMOVE_STEP = 2000


def load(row: tuple[int, bytes, str, str]) -> Tube:
    """The tube of a stored row."""
    no, name, kind, given = row
    return declared_tube(no, name.decode(), kind, given)


def save(link: Link, name: str, kind: Kind, given: dict[str, object], *, exist_ok: bool) -> Tube:
    """Store a new tube, or find the one that is there."""
    tube = make_tube(0, name, kind, given)
    declared = msgspec.json.encode(kind, order="deterministic").decode()
    rows = link.rows(Q.get_tube, (name,))
    if rows and not exist_ok:
        raise tube_exists(name)
    if rows:
        return load(rows[0])
    flags = (int(kind.per_utube), int(tube.fair), tube.utube_limit, kind.hand_out, tube.period, *_plain(tube))
    link.change(Q.add_tube, (name, declared, encode_given(given).decode(), *flags))
    no = link.last_number
    for row in link.rows(Q.hidden_tube, (name, name)):  # whoever seals it may have been waited for
        raise hidden(load(row))
    link.change(Q.add_id, (no,))
    link.change(Q.add_counter, (no,))
    return make_tube(no, name, kind, given)


def _plain(tube: Tube) -> tuple[str, int]:
    """What a put without options makes of its data, and how long outcomes are kept, for the procedures that need it."""
    entry = plain_entry(tube, b"")
    row = (
        *rank_parts(entry.rank1), *rank_parts(entry.rank2), entry.pri, entry.utube, entry.ttl, entry.ttr,
        entry.max_attempts, entry.callback,
    )  # fmt: skip
    return msgspec.json.encode(row).decode(), tube.retention


def rank_parts(rank: Rank) -> tuple[float, int, int]:
    """A rank as the procedures compute it: a base, whether the moment counts, whether the id does."""
    return rank.base, int(rank.clock), int(rank.newest)


def complete(link: Link) -> None:
    """Give the tubes of an older schema, and those that replies create, what `save` gives a new one."""
    for row in link.rows(Q.tubes_without_plain):
        link.change(Q.set_plain, (*_plain(load(row)), row[0]))
    plain, retention = _plain(make_tube(0, "reply", REPLY_KIND, {}))
    kind = msgspec.json.encode(REPLY_KIND, order="deterministic").decode()
    for name, value in (("reply_kind", kind), ("reply_plain", plain), ("reply_retention", str(retention))):
        link.change(Q.set_meta, (name, value))


def drop(link: Link, tube: Tube, now: int | None) -> Rows:
    """Hide a tube that nobody uses; its tasks are removed afterwards. The rows of what was due."""
    if not link.rows(Q.lock_tube, (tube.no,)):
        raise tube_missing(tube)
    rows = link.packet(link.filled("CALL penstock_advance(%s, 0, %s)", (tube.no, now)))
    taken, waiting = (link.rows(query, (tube.no,)) for query in (Q.any_taken, Q.any_waiting))
    refuse_busy(tube, taken=taken, waiting=waiting)
    for query in (Q.hide_tube, Q.forget_id, Q.forget_counter):
        link.change(query, (tube.no,))
    return rows


def remove_hidden(database: Database, now: int | None) -> Rows:
    """Remove what is left of dropped tubes; the rows of the replies that their tasks left."""
    replies: Rows = []
    for (no,) in database.read(Q.hidden_tubes):
        left = REMOVE_STEP
        while left == REMOVE_STEP:
            moment = "NULL" if now is None else now
            *rows, (_, _, left, _) = database.call(f"CALL penstock_remove({no}, {REMOVE_STEP}, {moment})", safe=True)
            replies += rows
        while database.run(partial(_forget_outcomes, no=no), safe=True) == REMOVE_STEP:
            pass
        database.run(partial(_forget, no=no), safe=True)
    return replies


def _forget_outcomes(link: Link, no: int) -> int:
    return link.change(Q.forget_outcomes, (no, REMOVE_STEP))


def _forget(link: Link, no: int) -> None:
    ties = (Q.forget_groups, Q.forget_lanes, Q.forget_serial, Q.forget_deltas, Q.forget_waiting_tube)
    for query in (*ties, Q.forget_tube):
        link.change(query, (no,))
