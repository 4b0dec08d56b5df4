"""One transaction of the SQLite store: how tasks are written and found. It decides nothing; the engine does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import takewhile
from operator import attrgetter
from types import TracebackType
from typing import Any

import msgspec
from msgspec.structs import astuple, replace

from penstock.core.ending import STATUS_OF, SUPERSEDED_MS
from penstock.core.entry import new_record
from penstock.core.group import Group
from penstock.core.handout import clock_limit, clock_wait, clocked, delivered
from penstock.core.ids import shown_mark
from penstock.core.kind import CLOCK, Kind
from penstock.core.lifecycle import Move
from penstock.core.options import Tube, encode_given, make_tube
from penstock.core.refusals import tube_full
from penstock.core.results import STATE_COUNTER, Blocked, Counts
from penstock.core.soundness import needed_mark
from penstock.core.task import NO_UTUBE, QUEUED, Entry, Record
from penstock.core.transfer import Parcel, Tally
from penstock.engine.port import (
    CHANGED,
    MUTABLE,
    Acked,
    Audit,
    Conflict,
    Delta,
    Flushed,
    GroupRow,
    Handed,
    Request,
    Row,
)
from penstock.errors import StoreFull
from penstock.store.sql.queries import ID_BITS, ID_MASK
from penstock.store.sql.step import SqlStep, encoded_kind, first_pk
from penstock.store.sqlite.connection import Transaction
from penstock.store.sqlite.queries import INSERT_RECORD, UPDATE_RECORD, UPDATE_STATE, Q
from penstock.store.sqlite.queues import Queues

# Above every rank, for a take without max_pri.
_ANY_RANK = 2**62
# Outcomes forgotten with each new one, so that they never outnumber what the retention asks for, even in a
# tube that nobody ever advances.
_SWEPT_PER_OUTCOME = 2
# The order of `bump`'s parameters. What is ready and what was put follow from the last id.
_STORED = ("taken", "delayed", "buried", "done")
_CALLS = ("take", "ack", "release", "delete", "bury", "kick", "touch", "ttl", "ttr", "delay", "fail")
_BUMPED = (*_STORED, *_CALLS)

_encode = msgspec.json.Encoder().encode
_changed = attrgetter(*CHANGED)
_rewritten = attrgetter(*MUTABLE, "payload")


def _json(values: Sequence[object]) -> str:
    return _encode(values).decode()


class SqliteStep(SqlStep):
    """A transaction, from `__enter__` to `__exit__`. Nothing that it has read can change before it ends."""

    Q = Q

    def __init__(self, transaction: Transaction, clock: Callable[[], int], now: int | None) -> None:
        self._transaction = transaction
        self._clock = clock
        self._given = now

    def __enter__(self) -> SqliteStep:
        self.db = self._transaction.__enter__()
        self.execute = self.db.execute
        # Read when the lock is held: who waits for it must not write an old moment.
        self.now = self._clock() if self._given is None else self._given
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._transaction.__exit__(kind, error, at)

    def rows(self, query: str, **values: Any) -> list[tuple[Any, ...]]:
        for name in ("ids", "texts"):
            if name in values:
                values[name] = _json(values[name])
        values["now"] = self.now
        return self.execute(query, values).fetchall()

    def change(self, query: str, **values: Any) -> int:
        self.rows(query, **values)
        return self.db.changes()

    # tubes and counters

    def add_tube(self, name: str, kind: Kind, given: dict[str, object]) -> Tube | None:
        no = self.execute(Q.add_tube, (name, encoded_kind(kind), encode_given(given).decode())).get
        if no is None:
            return None
        self.execute(Q.add_counter, (no,))
        return make_tube(no, name, kind, given)

    def last_id(self, tube: Tube) -> int:
        """The last id given in a tube; NoSuchTube when it is gone."""
        base = first_pk(tube)
        row = self.execute(Q.newest, (tube.no, base + (1 << ID_BITS))).get
        if row is None:
            raise self.no_such_tube(tube)
        return int(max(row[0], (row[1] or 0) - base))

    def tally(self, tube: Tube) -> Tally:
        last = self.last_id(tube)
        ms, seq, *numbers = self.execute(Q.counts, (tube.no,)).get
        counts = dict(zip(_BUMPED, numbers, strict=True))
        ready = last - sum(counts[name] for name in _STORED)
        return Tally(last, (ms, seq), Counts(ready=ready, put=last, **counts))

    def set_counts(self, tube: Tube, states: Mapping[str, int], *, done: int) -> None:
        stored = Counter[str]()
        for state, count in states.items():
            stored[STATE_COUNTER.get(state, "ready")] += count
        self.execute(Q.set_counts, (tube.no, stored["taken"], stored["delayed"], stored["buried"], done))

    def set_mark(self, tube: Tube, audit: Audit) -> None:
        mark = needed_mark(audit.tally.mark, audit.newest)
        if mark is not None:
            self.execute(Q.set_mark, (tube.no, *mark))

    def _bump(self, tube: Tube, counts: Mapping[str, int], highest: int = 0) -> None:
        self.execute(Q.bump, (tube.no, highest, *(counts.get(name, 0) for name in _BUMPED)))
        if not self.db.changes():
            raise self.no_such_tube(tube)

    def sweep(self, tube: Tube, limit: int) -> None:
        super().sweep(tube, limit)
        if tube.fair:
            self.execute(Q.forget_idle_queues, (tube.no, self.now, limit))

    def next_at(self, tube: Tube) -> int | None:
        at, lapse, end, _, _, moving = self.execute(Q.look, (tube.no, "")).get
        return _first(0 if moving else at, lapse, end)

    def damage(self) -> list[str]:
        return [problem for (problem,) in self.execute("PRAGMA quick_check(10)") if problem != "ok"]

    # put

    def insert(self, tube: Tube, entries: Sequence[Entry]) -> list[Record]:
        if tube.capacity is not None:
            stored = self.tally(tube).counts.stored
            if stored + len(entries) > tube.capacity:
                raise tube_full(tube, stored, len(entries))
        records = self._store(tube, entries)[0]
        delayed = sum(record.state == "~" for record in records)
        if delayed:
            self._bump(tube, {"delayed": delayed})
        return records

    def _store(self, tube: Tube, entries: Sequence[Entry]) -> tuple[list[Record], int]:
        """Insert new tasks; which they are, and how many more can be taken by promotion."""
        last, now = self.last_id(tube), self.now
        if last + len(entries) > ID_MASK:
            raise StoreFull(f"tube {tube.name} has used up its {ID_MASK} ids: use another tube")
        if not tube.kind.leased:
            entries = self._named(tube, entries, last + 1)
        records = [new_record(entry, id, now) for id, entry in enumerate(entries, last + 1)]
        queues = Queues(self.db, tube, now) if tube.kind.per_utube else None
        if queues is not None:
            queues.know(records)
            records = [queues.place(record) if record.state == "r" else record for record in records]
        self._insert(tube, records)
        return records, 0 if queues is None else queues.settle()

    def _insert(self, tube: Tube, records: Sequence[Record]) -> None:
        base, no = first_pk(tube), tube.no
        plain: list[tuple[Any, ...]] = []
        linked: list[tuple[Any, ...]] = []
        for record in records:
            row = (
                base | record.id, no, record.state, record.rank1, record.rank2, record.pri, record.utube,
                record.created, record.expires, record.at, record.ttr, record.max_attempts, record.callback,
                record.payload,
            )  # fmt: skip
            if record.address is None and record.reply_to is None and record.group_no is None:
                plain.append(row)
            else:
                linked.append((*row, record.address, record.reply_to, record.group, record.group_no))
        for query, rows in ((Q.insert, plain), (Q.insert_linked, linked)):
            if len(rows) == 1:
                self.execute(query, rows[0])
            elif rows:
                self.db.executemany(query, rows)
        if linked and tube.kind.leased:
            addresses = [record.address for record in records if record.address is not None]
            if addresses:
                self.execute(Q.supersede_outcomes, (no, _json(addresses), self.now + SUPERSEDED_MS))

    def _named(self, tube: Tube, entries: Sequence[Entry], first: int) -> list[Entry]:
        """Entries of an unleased kind with their ids."""
        count = len(entries)
        if tube.kind.hand_out == CLOCK:
            return [self._element(tube, entry, id) for id, entry in enumerate(entries, first)]
        ms, seq = self.execute(Q.next_marks, (tube.no, self.now, count)).get
        marks = (shown_mark((ms, seq - count + place)) for place in range(1, count + 1))
        return [replace(entry, address=mark) for entry, mark in zip(entries, marks, strict=True)]

    def _element(self, tube: Tube, entry: Entry, id: int) -> Entry:
        if entry.address is not None:
            return entry
        name = f"reply-{id}"
        while self.rows(Q.by_names, tube=tube.no, texts=[name]):
            name += "-"
        return replace(entry, address=name)

    # take

    def take(self, request: Request) -> Handed:
        nexts: list[int] = []
        handed = Handed()
        for place, tube in enumerate(request.tubes):
            row = self.execute(Q.look, (tube.no, request.handle)).get
            if row is None:
                raise self.no_such_tube(tube)
            at, lapse, end, session, paused, moving = row
            moment = _first(0 if moving else at, lapse, end)
            if moment is not None:
                if moment <= self.now and place >= request.forced:
                    return Handed(due=tube)
                nexts.append(moment)
            if session is None:
                handed.alive = False
                break
            if not paused and request.wanted(place):
                handed.records = self._hand_out(tube, request, session, cancelled=bool(moving))
            if handed.records:
                handed.tube = tube
                break
            if (moment := self._next_hand_out(tube)) is not None:
                nexts.append(moment)
        handed.next_at = min(nexts, default=None)
        if handed.alive and request.blocked is not None:
            self._register(request, bool(handed.records))
        return handed

    def _hand_out(self, tube: Tube, request: Request, session: int, *, cancelled: bool) -> list[Record]:
        if not tube.kind.leased:
            return self._hand_out_unleased(tube, request.count)
        query = Q.to_lease_not_cancelled if cancelled else Q.to_lease
        top = _ANY_RANK if request.max_pri is None else request.max_pri
        # Where each hand-out moves its micro-queue behind the others, the next one is known only after it.
        batch = 1 if tube.fair and tube.utube_limit > 1 else request.count
        leased: list[Record] = []
        while len(leased) < request.count:
            limit = min(batch, request.count - len(leased))
            records = [Record(*row) for row in self.execute(query, (tube.no, top, self.now, limit, session))]
            self._lease(tube, records, session)
            leased += records
            if len(records) < batch or batch == request.count:
                break
        if leased:
            self.execute(Q.bump_take, (tube.no, len(leased)))
        return leased

    def _lease(self, tube: Tube, records: list[Record], session: int) -> None:
        base = first_pk(tube)
        if len(records) == 1:
            self.execute(Q.lease, (base | records[0].id, self.now, session))
        elif records:
            self.execute(Q.lease_many, (_json([base | record.id for record in records]), self.now, session))
        if tube.fair:
            queues = Queues(self.db, tube, self.now)
            queues.know(records)
            for record in records:
                queues.serve(record.utube or NO_UTUBE)
            queues.settle()
        elif tube.kind.per_utube:
            labels = [record.utube or NO_UTUBE for record in records]
            if 1 < len(labels) == len(set(labels)):
                self.execute(Q.serve_queues, (tube.no, _json(labels)))
            else:
                self.db.executemany(Q.serve_queue, [(tube.no, label) for label in labels])

    def _hand_out_unleased(self, tube: Tube, count: int) -> list[Record]:
        if tube.kind.hand_out != CLOCK:
            return self._deliver(tube, self._to_hand_out(tube, 0, count), new=True)
        handed = [clocked(record, self.now) for record in self._to_hand_out(tube, clock_limit(tube, self.now), count)]
        if handed:
            base = first_pk(tube)
            self.db.executemany(Q.hand_out, [(base | record.id, "r", self.now, self.now) for record in handed])
            self.execute(Q.bump_hand_outs, (tube.no, 0, len(handed)))
        return handed

    def _to_hand_out(self, tube: Tube, top: int, count: int) -> list[Record]:
        return [Record(*row) for row in self.execute(Q.to_hand_out, (tube.no, top, self.now, count))]

    def _deliver(self, tube: Tube, records: list[Record], *, new: bool) -> list[Record]:
        if not records:
            return []
        count, base = len(records), first_pk(tube)
        serial = self.execute(Q.bump_hand_outs, (tube.no, count if new else 0, count)).get - count
        handed = [delivered(record, self.now, serial + place) for place, record in enumerate(records, 1)]
        self.db.executemany(Q.hand_out, [(base | record.id, "t", record.rank1, self.now) for record in handed])
        return handed

    def recover(self, tube: Tube, count: int, elapsed: int) -> list[Record]:
        row = self.execute(Q.look, (tube.no, "")).get
        if row is None:
            raise self.no_such_tube(tube)
        if row[4]:
            return []
        rows = self.execute(Q.delivered_first, (tube.no, count))
        old = list(takewhile(lambda record: (record.taken or 0) + elapsed <= self.now, (Record(*row) for row in rows)))
        rows.close()
        return self._deliver(tube, old, new=False)

    def _next_hand_out(self, tube: Tube) -> int | None:
        """When the first element of a round tube may be handed out; None: there is none, or it may be now."""
        rank = self.execute(Q.first_rank, (tube.no,)).get if tube.kind.hand_out == CLOCK else None
        wait = None if rank is None else clock_wait(tube, rank, self.now)
        return None if wait is None else self.now + wait

    def _register(self, request: Request, came: bool) -> None:
        blocked: Blocked = request.blocked
        for tube in request.tubes:
            if blocked == "enter" and not came:
                self.execute(Q.add_waiter, (request.handle, tube.no))
            elif blocked == "leave" or (blocked == "stay" and came):
                self.execute(Q.remove_waiter, (request.handle, tube.no))
                self.execute(Q.forget_waiter, (request.handle, tube.no))

    # ack

    def ack(self, tube: Tube, moves: Sequence[Move]) -> Acked:
        if not tube.kind.leased:
            names = dict(self.execute(Q.ack_named, (tube.no, _json([move.name for move in moves]))))
            self._count_acks(tube, [pk & ID_MASK for pk in names.values()])
            return Acked(set(names))
        base = first_pk(tube)
        gone: list[tuple[Any, ...]] = []
        if len(moves) == 1:
            move = moves[0]
            if 0 < move.id <= ID_MASK:
                values = (base | move.id, move.session, move.lease, self.now)
                if not tube.kind.per_utube:
                    self.execute(Q.ack_alone, values)
                    if self.db.changes():
                        self._count_acks(tube, (move.id,))
                        return Acked({move.id})
                gone = self.execute(Q.ack_one, (*values, 1)).fetchall()
        else:
            guards: dict[tuple[int | None, int | None], list[int]] = {}
            for move in moves:
                if 0 < move.id <= ID_MASK:
                    guards.setdefault((move.session, move.lease), []).append(base | move.id)
            for (session, lease), pks in guards.items():
                gone += self.execute(Q.ack_many, (_json(pks), session, lease, self.now, len(moves))).fetchall()
        if not gone:
            return Acked(set())
        keys = {row[0] & ID_MASK for row in gone}
        self._count_acks(tube, keys)
        readied = 0
        if tube.kind.per_utube:
            readied = self._leave_queues(tube, [row[1] or NO_UTUBE for row in gone])
        groups = Counter(row[3] for row in gone if row[3] is not None)
        if groups:
            self.db.executemany(Q.count_down, list(groups.items()))
        addressed = [row for row in gone if row[2] is not None]
        if addressed:
            results = {move.id: move.result for move in moves}
            until, status = self.now + tube.retention, STATUS_OF["ack"]
            self._keep([
                (pk, tube.no, address, status, results[pk & ID_MASK], None, None, until)
                for pk, _, address, _ in addressed
            ])  # fmt: skip
        return Acked(keys, readied, [row[0] & ID_MASK for row in addressed])

    def _leave_queues(self, tube: Tube, labels: list[str]) -> int:
        """Taken tasks of these micro-queues are gone; how many became takeable."""
        queues = Queues(self.db, tube, self.now)
        if len(labels) == 1 and queues.pass_on(labels[0]):
            return 1
        queues.know_labels(set(labels))
        for label in labels:
            queues.move(label, "t", "-")
        return queues.settle()

    def _count_acks(self, tube: Tube, ids: Collection[int]) -> None:
        if ids:
            self.execute(Q.bump_ack, (tube.no, len(ids), max(ids)))
            if not self.db.changes():
                raise self.no_such_tube(tube)

    def _keep(self, outcomes: list[tuple[Any, ...]]) -> None:
        self.rows(Q.sweep_outcomes, tube=outcomes[0][1], limit=_SWEPT_PER_OUTCOME * len(outcomes))
        self.db.executemany(Q.keep_outcome, outcomes)

    # changes

    def flush(self, delta: Delta) -> Flushed:
        flushed = Flushed()
        for group in delta.groups:
            self._write_group(group)
        if delta.rows:
            self._write_rows(delta.tube, delta.rows, flushed)
        for tube, entries in ((delta.tube, delta.fresh), *delta.works):
            if entries:
                records, gained = self._store(tube, entries)
                gained += sum(record.state == "r" for record in records)
                flushed.readied[tube.no] = flushed.readied.get(tube.no, 0) + gained
                if tube is delta.tube and entries is delta.fresh:
                    flushed.fresh = records
                else:
                    flushed.works.append((tube, records))
                if delayed := sum(STATE_COUNTER[record.state] == "delayed" for record in records):
                    self._bump(tube, {"delayed": delayed})
        if delta.erase_upto is not None:
            base = first_pk(delta.tube)
            self.rows(Q.erase, low=base, high=base | delta.erase_upto)
        return flushed

    def _write_group(self, row: GroupRow) -> None:
        before, after = row.before, row.after
        changed = self.change(
            Q.change_group,
            no=before.no,
            was=before.state,
            had=before.left,
            exact=int(row.exact),
            **_group_values(before, after),
        )
        if not changed:
            raise Conflict

    def _write_rows(self, tube: Tube, rows: list[Row], flushed: Flushed) -> None:
        base, no = first_pk(tube), tube.no
        classes: dict[tuple[str, str, tuple[str, ...]], int] = {}
        laned, fair = tube.kind.per_utube, tube.fair
        deleted, updated, rewritten, outcomes = [], [], [], []
        highest = readied = 0
        for row in rows:
            before, after = row.before, row.after
            pk = base | before.id
            sort = (before.state, after.state, row.events)
            classes[sort] = classes.get(sort, 0) + 1
            if after.state == "-":
                deleted.append((pk,))
                highest = max(highest, before.id)
                if row.ending is not None and before.address is not None and tube.kind.leased:
                    ending = astuple(row.ending)
                    outcomes.append((pk, no, before.address, *ending, self.now + tube.retention))
                continue
            if laned:
                rank2 = 0 if fair and after.state != "t" else after.rank2
                after = replace(after, state=QUEUED if after.state == "r" else after.state, rank2=rank2)
            else:
                readied += (after.state == "r") - (before.state == "r")
            if after.payload is before.payload:
                updated.append((*_changed(after), pk))
            else:
                rewritten.append((*_rewritten(after), pk))
        for query, values in ((Q.delete, deleted), (UPDATE_STATE, updated), (UPDATE_RECORD, rewritten)):
            if values:
                self.db.executemany(query, values)
        if outcomes:
            self._keep(outcomes)
        if laned:
            readied = self._move_queues(tube, rows)
        flushed.readied[no] = readied
        self._bump(tube, _counted(classes), highest)

    def _move_queues(self, tube: Tube, rows: list[Row]) -> int:
        queues = Queues(self.db, tube, self.now)
        moved = [row for row in rows if row.before.state in "rqt" or row.after.state in "rt"]
        queues.know(row.before for row in moved)
        for row in moved:
            queues.move(row.before.utube or NO_UTUBE, row.before.state, row.after.state)
        return queues.settle()

    # transfer

    def import_batch(self, tube: Tube, parcel: Parcel) -> None:
        last, base = self.last_id(tube), first_pk(tube)
        new = parcel.above(last)
        rows = [(base | record.id, tube.no, *astuple(record)[1:]) for record in new.records]
        self.db.executemany(INSERT_RECORD, rows)
        self.db.executemany(Q.import_members, list(new.members.items()))
        outcomes = [
            (base | kept.id, tube.no, kept.address, *astuple(kept.ending), kept.until) for kept in parcel.outcomes
        ]
        self.db.executemany(Q.keep_outcome, outcomes)
        last_id = max(parcel.upto, last, *(record.id for record in new.records))
        counts = {
            "taken": new.count("t"),
            "delayed": new.count("~", "g"),
            "buried": new.count("!"),
            "delay": -new.due,
            "done": last_id - last - len(new.records),
        }
        self._bump(tube, counts, last_id)

    def activate(self, tube: Tube, name: str, tally: Tally, totals: Mapping[int, int]) -> bool:
        self.must_live(tube)
        if self.tubes([name]):
            return False
        self._bump(tube, {call: getattr(tally.counts, call) for call in _CALLS})
        self.execute(Q.set_mark, (tube.no, *max(self.tally(tube).mark, tally.mark)))
        self.db.executemany(Q.set_group_total, list(totals.items()))
        return self.write_tube(tube, name=name)


def _group_values(before: Group, after: Group) -> dict[str, object]:
    return {
        "state": after.state,
        "total": after.total - before.total,
        "remaining": after.left - before.left,
        "end_work": after.end,
        "cancel_work": after.cancel,
        "moving": int(after.moving),
        "until": after.until,
    }


def _counted(classes: Mapping[tuple[str, str, tuple[str, ...]], int]) -> dict[str, int]:
    """What changes of tasks make of the counters, by their states before and after and their events."""
    counts: dict[str, int] = {}
    for (before, after, events), number in classes.items():
        counts[STATE_COUNTER[before]] = counts.get(STATE_COUNTER[before], 0) - number
        for name in (STATE_COUNTER[after], *events):
            counts[name] = counts.get(name, 0) + number
    return counts


def _first(at: int | None, lapse: int | None, end: int | None) -> int | None:
    """The earliest of these moments."""
    if at is None or (lapse is not None and lapse < at):
        at = lapse
    return end if at is None or (end is not None and end < at) else at
