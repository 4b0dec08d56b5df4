"""The part of a step that all SQL stores share: loads, tubes, groups, outcomes, sessions and audits.

A store adds `rows`, which runs one named query, and the calls that are hot or differ between databases: insert, take,
ack, flush, counters and waiters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import msgspec
from msgspec.structs import asdict, replace

from penstock.core.audit import EARLY_OUTCOME, Audit, QueueAudit, audit_of, heads_wanted, true_counts
from penstock.core.ending import Ending
from penstock.core.group import Group
from penstock.core.ids import needed_mark
from penstock.core.kind import CLOCK, Kind
from penstock.core.options import Tube, changed_options, encode_given, make_tube, stored_tube
from penstock.core.refusals import tube_missing
from penstock.core.results import (
    STATE_COUNTER,
    Counts,
    Joined,
    Lease,
    MicroQueue,
    Presence,
    SessionRecord,
    lapsed,
    weights,
)
from penstock.core.select import Deliveries, Find
from penstock.core.task import Record
from penstock.core.transfer import GroupTotals, ImportBatch, StoredOutcome, TubeCounters, hidden, importing, moved
from penstock.engine import port, sessions
from penstock.engine.port import GroupRow, Loaded, LostTake
from penstock.engine.port import Row as ChangedRow
from penstock.errors import NoSuchTube
from penstock.store.sql.sql_queries import COUNTED, ID_BITS, ID_MASK

Row = tuple[Any, ...]
_FOREVER = 2**62
# How many tasks an audit reads at a time.
_PAGE = 1000


def first_pk(tube: Tube) -> int:
    """Return the lower bound of the pks of a tube's tasks. A hidden tube's tasks keep its old, positive number."""
    return abs(tube.no) << ID_BITS


def span(tube: Tube, after: int = 0, upto: int | None = None) -> dict[str, int]:
    """Return the parameters of a query for the pks above the id `after`, up to the id `upto`."""
    base = first_pk(tube)
    return {"low": base | min(max(after, 0), ID_MASK), "high": base | (ID_MASK if upto is None else upto)}


class SqlStep:
    """Implements most of `engine.port.Step`."""

    #: The named queries of the store.
    Q: SimpleNamespace
    now: int
    posts = False

    def rows(self, query: str, **values: object) -> list[Row]:
        """Run one query. Returns its rows. Parameters that are lists are called `ids` and `texts`."""
        raise NotImplementedError

    def several(self, asked: Sequence[tuple[str, dict[str, Any]]]) -> list[list[Row]]:
        """Run several queries, in one round trip on a server. Returns the rows of each."""
        return [self.rows(query, **values) for query, values in asked]

    def change(self, query: str, **values: object) -> int:
        """Run one statement. Returns how many rows it changed."""
        raise NotImplementedError

    def transaction(self) -> AbstractContextManager[None]:
        """Run the block as one transaction. A step of a local database is one already."""
        return nullcontext()

    def lock_alone(self, tube: Tube) -> None:
        """Lock the tube against puts, takes and flushes until the end of the `transaction` block."""

    # tubes

    def tubes(self, names: Sequence[str] | None = None) -> list[Tube]:
        rows = self.rows(self.Q.all_tubes) if names is None else self.rows(self.Q.tubes_named, texts=names)
        return [stored_tube(*row) for row in rows]

    def overdue(self) -> tuple[list[Tube], bool, str]:
        found = {row[0]: row for row in self.rows(self.Q.overdue)}
        _, altered, _, now, lapsed = found.pop(0)
        self.now = int(now)
        return [stored_tube(*row[:4]) for row in found.values()], bool(lapsed), altered

    def add_tube(self, name: str, kind: Kind, given: dict[str, object]) -> Tube | None:
        new, declared = make_tube(0, name, kind, given), msgspec.json.encode(kind, order="deterministic").decode()
        values = {"name": name, "kind": declared, "options": encode_given(given).decode()}
        with self.transaction():
            if not self.change(self.Q.add_tube, temporary=new.temporary, **values):
                return None
            tube = self.tubes([name])[0]
            self.add_counter(tube)
        return tube

    def add_counter(self, tube: Tube) -> None:
        """Create the counters of a new tube."""
        self.change(self.Q.add_counter, tube=tube.no, temporary=tube.temporary)

    def write_tube(
        self, tube: Tube, *, name: str | None = None, given: dict[str, object] | None = None, paused: bool | None = None
    ) -> None:
        options = None if given is None else encode_given(given).decode()
        stops = None if paused is None else int(paused)
        if not self.change(self.Q.set_tube, tube=tube.no, name=name, options=options, paused=stops):
            raise self.no_such_tube(tube)

    def alter_tube(self, tube: Tube, changes: Mapping[str, object]) -> Tube:
        with self.transaction():
            self.lock_alone(tube)
            found = [stored for stored in self.tubes([tube.name]) if stored.no == tube.no]
            if not found:
                raise self.no_such_tube(tube)
            given = changed_options(found[0].given, changes)
            self.write_tube(tube, given=given)
            self.change(self.Q.set_meta, name="altered", value=uuid4().hex)
        return make_tube(tube.no, tube.name, tube.kind, given)

    def hide_tube(
        self, tube: Tube, name: str, given: dict[str, object], *, waiting: bool
    ) -> tuple[bool, bool, bool] | None:
        with self.transaction():
            self.lock_alone(tube)
            self.must_live(tube)
            taken, waits, moving = map(bool, self.rows(self.Q.busy, tube=tube.no)[0])
            busy = taken and (waiting or tube.kind.leased), waits and waiting, moving
            if any(busy):
                return busy
            self.change(self.Q.hide_counter, tube=tube.no)
            self.change(self.Q.hide_tube, tube=tube.no, name=name, options=encode_given(given).decode())
            self.drop_sequences(tube, "ids")
        return None

    def clear_tube(self, tube: Tube, *, forget: bool) -> None:
        Q = self.Q  # noqa: N806
        with self.transaction():
            for query in (Q.forget_queues, Q.forget_groups, Q.forget_outcomes, Q.forget_waiters):
                self.change(query, tube=abs(tube.no))
            if forget:
                self.change(Q.forget_counter, tube=tube.no)
                self.change(Q.forget_tube, tube=tube.no)
                self.drop_sequences(tube, "ids", "serials", "heads", "dues")
            else:
                self.set_counts(tube, {})

    def drop_sequences(self, tube: Tube, *names: str) -> None:
        """Drop sequences of a hidden tube, in a store that has any."""

    def must_live(self, tube: Tube) -> None:
        """Raise NoSuchTube if the tube was dropped or moved."""
        if not self.rows(self.Q.tube_lives, tube=tube.no):
            raise self.no_such_tube(tube)

    def no_such_tube(self, tube: Tube) -> NoSuchTube:
        """Return the error for a tube that was dropped or moved."""
        found = self.tubes([importing(tube.name), moved(tube.name)])
        return hidden(found[0]) if found else tube_missing(tube)

    def set_counts(self, tube: Tube, states: Mapping[str, int]) -> None:
        """Set the counters of stored tasks, by state. All other tasks that were put count as done."""
        counts = self.counters(tube).counts
        wanted = true_counts(counts.put, states)
        self.add_counts(tube, {name: number - getattr(counts, name) for name, number in wanted.items()})

    # reading

    def load(self, tube: Tube, select: port.Select) -> Loaded:
        query, values = self._selected(tube, select)
        asked = [(query, values)]
        if isinstance(select, Find) and select.status == "~":
            asked.append((self.Q.find_unstarted, values))
        if isinstance(select, port.Due):
            asked.append((self.Q.moving_groups, {"tube": tube.no}))
        found, *more = self.look(tube, asked, hidden=isinstance(select, port.Page))
        groups: dict[int, Group] = {}
        records = [Record(*row) for row in found]
        if isinstance(select, port.Due):
            groups = {row[0]: Group(*row) for row in more[0]}
        elif isinstance(select, Find) and more:
            records += [Record(*row) for row in more[0]]
            records = sorted(records, key=lambda record: record.id)[: select.limit]
        if isinstance(select, Deliveries) and select.start < 0:  # read backwards; fewer, if it begins before the first
            records = records[::-1] if len(records) == min(select.limit, -select.start) else []
        missing = {record.group_no for record in records if record.group_no is not None} - groups.keys()
        if missing and not isinstance(select, port.Members):
            groups |= {group.no: group for group in self._groups(self.Q.groups_by_no, tube, ids=sorted(missing))}
        return Loaded(records, groups)

    def look(self, tube: Tube, asked: Sequence[tuple[str, dict[str, object]]], *, hidden: bool) -> list[list[Row]]:
        """Return the rows of several queries on a tube. Raises NoSuchTube if the tube is gone or hidden, unless
        `hidden`."""
        results = self.several(asked)
        if not (results[0] or hidden):
            self.must_live(tube)
        return results

    def _selected(
        self, tube: Tube, select: port.Select, queries: SimpleNamespace | None = None
    ) -> tuple[str, dict[str, object]]:
        """Return the query for a selection, from `queries` if given, and its values."""
        Q, values = queries or self.Q, {"tube": tube.no, **asdict(select)}  # noqa: N806
        if isinstance(select, (port.Page, Find)):
            values |= span(tube, select.after, getattr(select, "upto", None))
        match select:
            case port.ByIds(ids):
                pks = sorted(first_pk(tube) | id for id in ids if 0 < id <= ID_MASK)
                return (Q.by_ids, {"ids": pks}) if len(ids) != 1 else (Q.by_id, {"pk": pks[0] if pks else 0})
            case port.ByNames(names):
                return Q.by_names, {"tube": tube.no, "texts": names}
            case port.Members(_, _, True):
                return Q.unstarted, values
            case Find("t"):
                return Q.find_taken if tube.kind.leased else Q.find_delivered, values
            case Find(status):
                return getattr(Q, f"find_{STATE_COUNTER[status] if status else 'all'}"), values
            case Deliveries(start, limit, delivered) if start < 0:
                values |= {"start": max(-start - limit, 0), "limit": min(limit, -start)}
                return Q.delivered_back if delivered else Q.undelivered_back, values
            case Deliveries():
                return Q.delivered if select.delivered else Q.undelivered, values
        return getattr(Q, type(select).__name__.lower()), values  # due, buried, members, page or holders

    def groups(
        self, tube: Tube, *, no: int | None = None, name: str | None = None, newest: str | None = None,
        after: str | None = None, above: int | None = None, limit: int = 1000,
    ) -> list[Group]:  # fmt: skip
        if no is not None:
            self.watch(tube)
            return self._groups(self.Q.groups_by_no, tube, ids=[no])
        if name is not None:
            return self._groups(self.Q.live_group, tube, name=name)
        if newest is not None:
            return self._groups(self.Q.newest_group, tube, name=newest)
        if after is not None:
            return self._groups(self.Q.live_groups, tube, after=after, limit=limit)
        return self._groups(self.Q.groups_above, tube, above=above or 0, limit=limit)

    def _groups(self, query: str, tube: Tube, **values: object) -> list[Group]:
        rows = self.rows(query, tube=abs(tube.no), **values)
        if not rows:
            self.must_live(tube)
        return [Group(*row) for row in rows]

    def open_group(self, tube: Tube, name: str) -> Group:
        while not (found := self.groups(tube, name=name)):
            self.change(self.Q.add_group, tube=tube.no, name=name)
        return found[0]

    def outcomes_of(self, tube: Tube, keys: Sequence[int | str]) -> dict[int | str, StoredOutcome]:
        if isinstance(keys[0], str):
            rows = self.rows(self.Q.outcomes_by_address, tube=tube.no, texts=keys)
            return {kept.address: kept for kept in map(_kept, rows)}
        self.watch(tube)
        pks = [first_pk(tube) | id for key in keys if 0 < (id := int(key)) <= ID_MASK]
        return {kept.id: kept for kept in map(_kept, self.rows(self.Q.outcomes_by_id, ids=pks))}

    def watch(self, tube: Tube) -> None:
        """Ask to be notified when a task or group of this tube ends, because a caller may be waiting for that."""

    def outcomes(self, tube: Tube, after: int, limit: int) -> list[StoredOutcome]:
        rows = self.rows(self.Q.outcomes_after, **span(tube, after), limit=limit)
        return [_kept(row) for row in rows]

    def holds(self, session: int, leases: Sequence[Lease]) -> list[bool]:
        pks = [first_pk(tube) | id for tube, id, _ in leases]
        found = {row[0]: row[1] for row in self.rows(self.Q.held_leases, ids=pks, session=session)}
        return [found.get(pk) == lease for pk, (_, _, lease) in zip(pks, leases, strict=True)]

    def ahead(self, tube: Tube, record: Record) -> int:
        place = {"rank1": record.rank1, "rank2": record.rank2, "pk": first_pk(tube) | record.id}
        return int(self.rows(self.Q.ahead, tube=tube.no, **place)[0][0])

    def sweep(self, tube: Tube, limit: int) -> bool:
        queries = (self.Q.sweep_outcomes, self.Q.sweep_groups, self.Q.forget_idle_queues)
        return max([self.change(query, tube=tube.no, limit=limit) for query in queries]) >= limit

    # takes

    def leased_by(self, lost: LostTake) -> list[list[Record]]:
        raise NotImplementedError  # no answer of a local database is lost

    # sessions

    def join(self, presence: Presence, session: str | None, ttr: int) -> Joined:
        id = session or str(uuid4())
        with self.transaction():
            if session is None:
                self.change(self.Q.add_session, id=id, ttr=ttr, lapse=sessions.LAPSE_MS)
            found = self.rows(self.Q.live_session, id=id)
            if not found or not self.change(self.Q.resume_session, no=found[0][0]):
                raise lapsed(session)
            who = asdict(presence)
            self.change(self.Q.add_handle, session=found[0][0], lapse=sessions.LAPSE_MS, **who)
        return Joined(found[0][0], id)

    def beat(self, handles: Sequence[str]) -> set[str]:
        beat = self.Q.beat, {"texts": handles, "lapse": sessions.LAPSE_MS}
        return {row[0] for row in self.several([beat, (self.Q.beating, {"texts": handles})])[-1]}

    def end_handles(self, handles: Sequence[str], locus: str | None) -> None:
        for id, session, of in self.rows(self.Q.handles, texts=handles):
            if locus in (None, of):
                self.remove_handle(id, session)

    def ended_sessions(self) -> list[int]:
        handles, ended = self.several([(self.Q.lapsed_handles, {}), (self.Q.ended_sessions, {})])
        for id, session, until in handles:
            self.remove_handle(id, session, until)
        return [no for (no,) in (self.rows(self.Q.ended_sessions) if handles else ended)]

    def remove_handle(self, id: str, session: int, lapse: int | None = None) -> None:
        """Remove a handle that leaves now, or that lapsed at `lapse` and has sent no heartbeat since."""
        with self.transaction():
            self.rows(self.Q.lock_session, no=session)  # so that one of two last handles sees that it is last
            found = self.rows(self.Q.presence_of, id=id, until=_FOREVER if lapse is None else lapse)
            if not found:
                return
            host, pid, beat = found[0]
            self.change(self.Q.forget_handle, id=id)  # first: it waits for a take that may register a waiter
            self.change(self.Q.forget_handle_waiters, id=id)
            moment = self.now if lapse is None else lapse
            self.change(self.Q.linger, no=session, moment=moment, host=host, pid=pid, beat=beat)

    def held(self, session: int, limit: int) -> list[tuple[Tube, Loaded]]:
        pks: dict[int, list[int]] = {}
        for no, pk in self.rows(self.Q.held, session=session, limit=limit):
            pks.setdefault(no, []).append(pk & ID_MASK)
        tubes = {tube.no: tube for tube in self.tubes()} if pks else {}
        return [(tubes[no], self.load(tubes[no], port.ByIds(ids))) for no, ids in pks.items()]

    def forget_session(self, session: int) -> None:
        self.change(self.Q.forget_session, no=session)

    def sessions(self, no: int | None = None) -> list[SessionRecord]:
        names = {tube.no: tube.name for tube in self.tubes()} if no is None else {}
        found = []
        for number, id in self.rows(self.Q.all_sessions):
            presence = self.rows(self.Q.presences, no=number) if no in (None, number) else []
            if presence:
                held = self.rows(self.Q.held, session=number, limit=ID_MASK) if no is None else []
                waits = self.rows(self.Q.waits_of, no=number) if no is None else []
                pairs, (host, pid, beat) = [(names[tube], pk & ID_MASK) for tube, pk in held], presence[0]
                found.append(SessionRecord(id, host, pid, beat, pairs, [name for (name,) in waits]))
        return found

    # integrity

    def audit(self, tube: Tube) -> Audit:
        Q, no = self.Q, tube.no  # noqa: N806
        queues = {label: (taken, *rest) for label, taken, *rest in self.rows(Q.stored_queues, tube=no)}
        early = [(pk & ID_MASK, *EARLY_OUTCOME) for (pk,) in self.rows(Q.early_outcomes, **span(tube))]
        stray = "handle {} is registered as waiting, but does not exist"
        waiters = [(None, stray.format(id), "forget it") for (id,) in self.rows(Q.stray_waiters, tube=no)]
        return audit_of(
            tube, self._audited(tube), sessions={session for session, _ in self.rows(Q.all_sessions)},
            groups=self._groups(Q.all_groups, tube), counters=self.counters(tube), queues=queues,
            others=[*early, *waiters],
        )  # fmt: skip

    def _audited(self, tube: Tube) -> Iterator[Record]:
        """Yield all tasks of a tube in id order, without their payloads."""
        after: int | None = 0
        while after is not None:
            records = [Record(*row) for row in self.rows(self.Q.audited, limit=_PAGE, **span(tube, after))]
            yield from records
            after = records[-1].id if records else None

    def restore(self, tube: Tube, record: Record) -> None:
        values = {field: getattr(record, field) for field in (*port.MUTABLE, "group", "group_no")}
        self.change(self.Q.restore, pk=first_pk(tube) | record.id, **values)

    def rebuild(self, tube: Tube, audit: Audit) -> None:
        with self.transaction():
            early = [first_pk(tube) | id for id, *_ in audit.others if isinstance(id, int)]
            self.change(self.Q.drop_outcomes, ids=early)
            self.change(self.Q.forget_stray_waiters, tube=tube.no)
            if tube.kind.per_utube:
                self.change(self.Q.forget_queues, tube=tube.no)
                for label, queue in audit.queues.items():
                    self._rebuild_queue(tube, label, queue)
            self.set_counts(tube, audit.states)
            self.set_serial(tube, audit.counters.counts.take)
            if tube.kind.hand_out != CLOCK and not tube.kind.leased:
                self.set_mark(tube, audit)

    def _rebuild_queue(self, tube: Tube, label: str, queue: QueueAudit) -> None:
        wanted, base = heads_wanted(tube, queue), first_pk(tube)
        if not (queue.counted[0] or queue.ready):
            return
        for place, (id, state) in enumerate(queue.ready):
            now = "r" if place < wanted else "q"
            if now != state or tube.fair:
                turn = queue.turn if now == "r" else 0
                self.change(self.Q.set_ready_state, pk=base | id, state=now, turn=turn, fair=int(tube.fair))
        numbers = {"taken": queue.counted[0], "heads": wanted, "waiting": len(queue.ready) - wanted}
        self.change(self.Q.add_queue, tube=tube.no, utube=label, turn=queue.turn, **numbers)

    def set_mark(self, tube: Tube, audit: Audit) -> None:
        """Raise the stored last message id to that of the newest message, if it is older."""
        mark = needed_mark(audit.counters.mark, audit.newest)
        if mark is not None:
            self.change(self.Q.set_mark, tube=tube.no, ms=mark[0], seq=mark[1])

    # transfer

    def import_batch(self, tube: Tube, batch: ImportBatch) -> None:
        with self.transaction():
            self.lock_alone(tube)
            last = self.counters(tube).last_id
            new = batch.above(last)
            last_id = max([batch.upto, last, *(record.id for record in new.records)])
            base, no, Q = first_pk(tube), tube.no, self.Q  # noqa: N806
            tasks = [(Q.import_task, {"pk": base | one.id, "tube": no, **asdict(one)}) for one in new.records]
            kept = [
                (Q.import_outcome, {"pk": base | one.id, "tube": no, **asdict(one), **asdict(one.ending)})
                for one in batch.outcomes
            ]
            if tasks or kept:
                kept_pks = [values["pk"] for _, values in kept]
                self.change(Q.drop_outcomes, ids=kept_pks)  # of an earlier, interrupted import
                self.several([*tasks, *kept])
            for no, count in sorted(new.members.items()):
                self.change(self.Q.import_members, no=no, count=count)
            stored = true_counts(last_id - last, Counter(record.state for record in new.records))
            self.add_counts(tube, {**stored, "put": last_id - last, "delay": -new.due}, last_id)

    def activate(self, tube: Tube, name: str, counters: TubeCounters, totals: GroupTotals) -> bool:
        with self.transaction():
            self.lock_alone(tube)
            self.must_live(tube)
            if self.tubes([name]):
                return False
            calls = set(Counts.__struct_fields__) - {*STATE_COUNTER.values(), "put"}  # puts are counted by id
            self.add_counts(tube, {call: getattr(counters.counts, call) for call in calls})
            ms, seq = max(self.counters(tube).mark, counters.mark)
            self.change(self.Q.set_mark, tube=tube.no, ms=ms, seq=seq)
            self.set_serial(tube, counters.counts.take)
            for no, (total, failed) in sorted(totals.items()):
                self.change(self.Q.set_group_total, no=no, total=total, failed=failed)
            self.write_tube(tube, name=name)
            return True

    # what a store adds

    def counters(self, tube: Tube, utubes: Sequence[str] = ()) -> TubeCounters:
        rows = self.rows(self.Q.counters, ids=[tube.no])
        if not rows:
            raise self.no_such_tube(tube)
        queues = [(utube, self.rows(self.Q.queue, tube=tube.no, utube=utube)) for utube in utubes]
        found = [MicroQueue(utube, *(rows[0] if rows else (0, 0, 0))) for utube, rows in queues]
        return replace(self.make_counters(rows[0]), micro_queues=found)

    def counters_of(self, tubes: Sequence[Tube]) -> dict[int, TubeCounters]:
        ids = {"ids": [tube.no for tube in tubes]}
        rows, ready = self.several([(self.Q.counters, ids), (self.Q.ready_since, ids)])
        found = {row[0]: self.make_counters(row) for row in rows}
        clocked = {tube.no for tube in tubes if tube.kind.hand_out == CLOCK}
        for now, no, *moments in ready:
            since = [int(at) for at in moments if at is not None]
            if since and no in found and no not in clocked:
                found[no] = replace(found[no], waits=max(0, int(now) - min(since)) / 1000)
        return found

    def make_counters(self, row: Row) -> TubeCounters:
        """Convert a row of the query `counters`, which begins with the tube's number. This version is for stores whose
        ids have no gaps: `ready` and `put` follow from the last id."""
        _, last, ms, seq, paused, *numbers = (int(value or 0) for value in row)
        counts = dict(zip(COUNTED, numbers, strict=True))
        others = sum(counts[name] for name in set(STATE_COUNTER.values()) - {"ready"})
        return TubeCounters(last, (ms, seq), Counts(ready=last - others, put=last, **counts), bool(paused))

    def add_counts(self, tube: Tube, counts: Mapping[str, int], last_id: int = 0) -> None:
        """Add to those of the given counters that the store has, and raise the last id to `last_id`."""
        raise NotImplementedError

    def set_serial(self, tube: Tube, serial: int) -> None:
        """Continue the numbers of deliveries after `serial`, and task ids after the last id, in a store that keeps
        separate sequences for them."""


class RowClasses:
    """Groups rows that change the counters alike. A statement multiplies the weights of a class by its changed rows."""

    def __init__(self, rows: Sequence[ChangedRow]) -> None:
        keys = [(STATE_COUNTER[row.before.state], STATE_COUNTER[row.after.state], row.events) for row in rows]
        numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
        #: For each row, the index of its class.
        self.of_rows = [numbers[key] for key in keys]
        #: What a row of each class adds to each counter.
        self.weights = [weights(*key) for key in numbers]


def group_values(row: GroupRow) -> dict[str, object]:
    """Return the values of the query `change_group`."""
    before, after = row.before, row.after
    return {
        "no": before.no, "name": before.name, "was": before.state, "had": before.left, "exact": int(row.exact),
        "state": after.state,
        "total": after.total - before.total, "remaining": after.left - before.left, "moving": int(after.moving),
        "until": after.until, "failed": after.failed - before.failed, "end_work": after.end,
        "cancel_work": after.cancel, "on_failure": None if after.on_failure == before.on_failure else after.on_failure,
    }  # fmt: skip


def _kept(row: Row) -> StoredOutcome:
    pk, address, *ending, until = row
    return StoredOutcome(pk & ID_MASK, address, Ending(*ending), until)
