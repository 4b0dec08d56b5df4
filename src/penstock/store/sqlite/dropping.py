"""The tasks of dropped tubes, removed in bounded steps; those that must reply do so in the same step."""

from __future__ import annotations

import apsw

from penstock.core.ending import Ending
from penstock.core.entry import plain_entry
from penstock.core.reply import reply_payload
from penstock.core.task import Record
from penstock.store.base import Effects
from penstock.store.sqlite import tubes
from penstock.store.sqlite.keys import ID_BITS
from penstock.store.sqlite.lanes import Q
from penstock.store.sqlite.step import Step


def remove_hidden_step(db: apsw.Connection, now: int, effects: Effects) -> bool:
    """Remove some tasks of dropped tubes; False when nothing is left of any."""
    for no, name in list(db.execute(Q.hidden_tubes)):
        span = (no << ID_BITS, (no + 1) << ID_BITS, tubes.REMOVE_STEP)
        keys = [row[0] for row in db.execute(Q.page_keys, span)]
        if keys:
            for row in list(db.execute(Q.replies_in_range, (keys[0], keys[-1], name))):
                _reply(db, Record(*row), now, effects)
            db.execute(Q.delete_range, (keys[0], keys[-1]))
            return True
        for query in (Q.forget_lanes, Q.forget_waiting_tube, Q.forget_outcomes, Q.forget_groups, Q.forget_tube):
            db.execute(query, (no,))
    return False


def _reply(db: apsw.Connection, record: Record, now: int, effects: Effects) -> None:
    assert record.reply_to is not None
    tube = tubes.reply_tube(db, record.reply_to)
    step = Step(db, tube, now, effects)
    step.store([plain_entry(tube, reply_payload(record, Ending("deleted")))])
    step.finish()
