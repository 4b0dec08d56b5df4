"""The store's calls that only look: a moment of the file, without waiting for anybody."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.core.options import Tube
from penstock.core.task import Record
from penstock.store import base
from penstock.store.base import Counts, Effects
from penstock.store.sqlite import sessions
from penstock.store.sqlite.calls import Calls
from penstock.store.sqlite.keys import ID_BITS
from penstock.store.sqlite.lanes import Q
from penstock.store.sqlite.step import Step, read_counts


class LookingCalls(Calls):
    """Keeps what the contract says of looking at tasks, micro-queues and sessions."""

    def get(self, tube: Tube, ids: Sequence[int], *, now: int | None = None) -> list[Record | None]:
        with self._db.reading as db:
            now = self._clock() if now is None else now
            step = self._step(db, tube, now, Effects())
            rows = [db.execute(Q.record, (step.key | id,)).get if 0 < id < 1 << ID_BITS else None for id in ids]
            found = [unless_expired(row, now) for row in rows]
            return [None if record and step.links.cancelled(record) else record for record in found]

    def find(
        self, tube: Tube, status: str | None, after: int | None, limit: int, *, now: int | None = None
    ) -> list[Record]:
        queries = {None: Q.find_all, "r": Q.find_ready, "t": Q.find_taken, "~": Q.find_delayed, "!": Q.find_buried}
        with self._db.reading as db:
            now = self._clock() if now is None else now
            step = self._step(db, tube, now, Effects())
            low = step.key | min(max(after or 0, 0), (1 << ID_BITS) - 1)
            span = (low, step.key | (1 << ID_BITS) - 1, now, limit, tube.no)
            query = Q.find_delivered if status == "t" and not tube.kind.leased else queries[status]
            records = [Record(*row) for row in db.execute(query, span)]
            if status == "~":
                records += (Record(*row) for row in db.execute(Q.find_unstarted, span))
                records = sorted(records, key=lambda record: record.id)[:limit]
            return records

    def count(self, tube: Tube) -> Counts:
        with self._db.reading as db:
            return read_counts(Step(db, tube, 0))

    def ahead(self, tube: Tube, record: Record) -> int:
        with self._db.reading as db:
            key = tube.no << ID_BITS | record.id
            return int(db.execute(Q.ahead, (tube.no, record.rank1, record.rank2, key)).get)

    def lane(self, tube: Tube, utube: str) -> base.Lane:
        with self._db.reading as db:
            row = db.execute(Q.lane, (tube.no, utube)).get
            return base.Lane(utube, *row[:3]) if row else base.Lane(utube, 0, 0, 0)

    def lane_holders(self, tube: Tube, utube: str, limit: int) -> list[Record]:
        with self._db.reading as db:
            return [Record(*row) for row in db.execute(Q.lane_holders, (tube.no, utube, limit))]

    def owner(self, session: int) -> base.SessionRecord | None:
        with self._db.reading as db:
            row = db.execute(Q.session_by_no, (session,)).get
            return sessions.describe(db, row[0], row[1], [], self._clock()) if row else None


def unless_expired(row: tuple[object, ...] | None, now: int) -> Record | None:
    """The task of a row, as far as its ttl lets it live."""
    record = Record(*row) if row else None  # type: ignore[arg-type]
    if record is None or (record.state != "t" and record.expires is not None and record.expires <= now):
        return None
    return record
