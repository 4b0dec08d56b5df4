"""One call on the PostgreSQL store: how tasks are found and written. It decides nothing; the engine does.

Each load, each flush and each hot statement is one round trip and one transaction: several statements that are sent at
once. A client that stops while it sends holds what the statements before have locked; so only the shared locks of tubes
and handles, and what is short, stand beside the one that is long.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace, TracebackType
from typing import TYPE_CHECKING

from msgspec.structs import replace

from penstock.core.ending import Ending
from penstock.core.group import Group
from penstock.core.kind import DELIVER, Kind
from penstock.core.lifecycle import Move
from penstock.core.options import Tube, encode_given, make_tube
from penstock.core.results import STATE_COUNTER, Counts, Presence
from penstock.core.soundness import needed_mark
from penstock.core.task import Entry, Record
from penstock.core.transfer import Parcel, Tally
from penstock.engine import port
from penstock.engine.port import Acked, Audit, Conflict, Delta, Flushed, Handed, HandleRow, Loaded, Request
from penstock.store.postgres import changes, puts, takes
from penstock.store.postgres.wire import Call, Link, Query, Row
from penstock.store.sql.queries import ID_MASK
from penstock.store.sql.step import SqlStep, encoded_kind, make_group

if TYPE_CHECKING:
    from penstock.store.postgres.database import PostgresDatabase

_FIELDS = len(Record.__struct_fields__)
_CALLS = ("take", "ack", "release", "delete", "bury", "kick", "touch", "ttl", "ttr", "delay", "fail")


class PostgresStep(SqlStep):
    """A step. With `held`, all of it is one transaction on one connection: at one moment where it only reads."""

    optimistic = True

    def __init__(
        self, database: PostgresDatabase, tubes: Sequence[Tube], *, write: bool, held: bool, now: int | None
    ) -> None:
        self.db = database
        self.Q = database.queries.all
        self.given = now
        self.write = write
        self._known = now
        self._held = held
        self._session: Link | None = None
        self.passing = False  # what was loaded, others may be at
        self.moved = False  # some of it was done here, and there may be more
        self._relaxed = bool(tubes) and all(tube.temporary for tube in tubes)

    def __enter__(self) -> PostgresStep:
        self._context = self._holding() if self._held else nullcontext()
        self._context.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._context.__exit__(kind, error, at)

    @contextmanager
    def _holding(self) -> Iterator[None]:
        """One transaction for several round trips."""
        if self._session is not None:
            yield
            return
        with self.db.connections.session(snapshot=not self.write) as session:
            self._session = session
            try:
                yield
            finally:
                self._session = None

    together = _holding

    @property
    def now(self) -> int:
        """The clock, as the last round trip told it."""
        if self._known is None:
            self._known = int(self.rows(self.Q.clock)[0][0])
        return self._known

    @now.setter
    def now(self, moment: int) -> None:
        self._known = moment if self.given is None else self.given

    # statements

    def run(self, calls: Sequence[Call], *, twice: bool = False, patience: float | None = None) -> list[list[Row]]:
        """Send these at once, as one transaction or as part of the one that is held."""
        if self._session is not None:
            return self.db.connections.run_in(self._session, calls)
        return self.db.connections.run(calls, twice=twice, patience=patience)

    def call(self, query: str, **values: object) -> Call:
        """A statement with its values and the clock."""
        assert isinstance(query, Query)
        values["now"] = self.given
        return query, values

    def rows(self, query: str, **values: object) -> list[Row]:
        return self.run([self.call(query, **values)], twice=True)[0]

    def change(self, query: str, **values: object) -> int:
        calls = [self.call(self.Q.relax), self.call(query, **values)] if self._relaxed else [self.call(query, **values)]
        return int(self.run(calls, twice=True)[-1][0][0])

    def on(self, tube: Tube) -> SimpleNamespace:
        """The queries on the table that has a tube's tasks."""
        return self.db.queries.temporary if tube.temporary else self.db.queries.durable

    def opened(self, *tubes: Tube) -> list[Call]:
        """What a change of these tubes begins with."""
        if len(tubes) == 1:
            calls = [self.call(self.Q.open_one, tube=tubes[0].no)]
        else:
            calls = [self.call(self.Q.open, tubes=sorted({tube.no for tube in tubes}))]
        if all(tube.temporary for tube in tubes) and self.db.connections.relaxes:
            calls.append(self.call(self.Q.relax))
        return calls

    def count_changes(self) -> None:
        """Now and then, add up the counters."""
        if self._session is None:
            self.db.fold_sometimes()

    # tubes

    def add_tube(self, name: str, kind: Kind, given: dict[str, object]) -> Tube | None:
        new = make_tube(0, name, kind, given)
        no = int(self.rows(self.Q.next_tube_no, temporary=new.temporary)[0][0])
        bounds = [
            "ids",
            *(["serials"] if kind.hand_out == DELIVER else []),
            *(["heads", "dues"] if puts.bounded(new) else []),
        ]
        declared = {"kind": encoded_kind(kind), "options": encode_given(given).decode()}
        calls = [self.call(self.Q.add_tube, tube=no, name=name, **declared)]
        calls += [self.call(self._sequence(self.Q.create_sequence, bound, no)) for bound in bounds]
        calls.append(self.call(self.Q.add_counter, tube=no, temporary=new.temporary))
        try:
            self.run(calls)
        except Conflict:
            return None
        return make_tube(no, name, kind, given)

    @staticmethod
    def _sequence(query: str, bound: str, no: int) -> Query:
        most = ID_MASK if bound == "ids" else 2**63 - 1
        return Query(query.replace("{bound}", bound).replace("{tube}", str(abs(no))).replace("{most}", str(most)))

    def write_tube(
        self, tube: Tube, *, name: str | None = None, given: dict[str, object] | None = None, paused: bool | None = None
    ) -> bool:
        written = super().write_tube(tube, name=name, given=given, paused=paused)
        if written and paused is False:
            self.tell(tube, always=True)
        return written

    def hide_tube(
        self, tube: Tube, name: str, given: dict[str, object], *, waiting: bool
    ) -> tuple[bool, bool, bool] | None:
        with self.together():
            self.rows(self.Q.open_alone, tube=tube.no)
            busy = super().hide_tube(tube, name, given, waiting=waiting)
        if busy is None:
            self.tell(tube, ended=True)
        return busy

    def forget_tube(self, tube: Tube) -> None:
        with self.together():
            super().forget_tube(tube)
            for bound in ("ids", "serials", "heads", "dues"):
                self.rows(self._sequence(self.Q.drop_sequence, bound, tube.no))

    def clear_tube(self, tube: Tube) -> None:
        with self.together():
            super().clear_tube(tube)

    def tell(self, tube: Tube, *, always: bool = False, ended: bool = False) -> None:
        """Hint other processes of something that changed a moment ago."""
        name = self.db.teller.name
        if name is not None:
            values = {"process": name, "tube": tube.no, "tubes": [tube.no]}
            if self.rows(self.Q.tell, always=always, ready=False, ended=ended, **values):
                self.db.teller.told()

    def tally(self, tube: Tube) -> Tally:
        found = self.rows(self.Q.tally, tube=tube.no)
        if not found:
            raise self.no_such_tube(tube)
        last, ms, seq, serial, *numbers = found[0]
        counts = Counts(*numbers)
        return Tally(last, (ms, seq), replace(counts, take=max(counts.take, serial)))

    def set_counts(self, tube: Tube, states: Mapping[str, int], *, done: int) -> None:
        stored = Counter[str]()
        for state, count in states.items():
            stored[STATE_COUNTER.get(state, "ready")] += count
        names = ("ready", "taken", "delayed", "buried")
        self.change(self.Q.set_counts, tube=tube.no, done=done, **{name: stored[name] for name in names})

    def set_mark(self, tube: Tube, audit: Audit) -> None:
        mark = needed_mark(audit.tally.mark, audit.newest)
        if mark is not None:
            self.change(self.Q.set_mark, tube=tube.no, ms=mark[0], seq=mark[1])

    def sweep(self, tube: Tube, limit: int) -> None:
        values: dict[str, object] = {"tube": tube.no, "limit": limit}
        queries = [self.Q.sweep_outcomes, self.Q.sweep_groups, *([self.Q.forget_idle_queues] if tube.fair else [])]
        self.run([*self.opened(tube), *(self.call(query, **values) for query in queries)], twice=True)

    # looking

    def load(self, tube: Tube, select: port.Select, *, data: bool = True) -> Loaded:
        self.passing = isinstance(select, (port.Due, port.Members, port.Unstarted))
        on = self.on(tube)
        query, values = self._selected(tube, select, on)
        calls = [self.call(self.Q.look, tube=tube.no), self.call(query, **values)]
        if isinstance(select, port.Find) and select.status == "~":
            calls.append(self.call(on.find_unstarted, **values))
        if isinstance(select, port.Due):
            calls.append(self.call(self.Q.moving_groups, tube=tube.no))
        (look,), rows, *more = self.run(calls, twice=True)
        self.now = look[0]
        if not look[1] and not isinstance(select, port.Page):
            raise self.no_such_tube(tube)
        if isinstance(select, port.Find) and more:
            rows = sorted([*rows, *more[0]], key=lambda row: int(row[0]))[: select.limit]
        records = [Record(*row[:_FIELDS]) for row in rows]
        if isinstance(select, port.ByIds):
            records.sort(key=lambda record: record.id)
        if isinstance(select, port.Deliveries) and select.backwards:
            records.reverse()
        groups: dict[int, Group] = {}
        for row in rows:
            if len(row) > _FIELDS and row[_FIELDS] is not None and row[_FIELDS] not in groups:
                groups[row[_FIELDS]] = make_group(row[_FIELDS:])
        if isinstance(select, port.Due):
            groups |= {group.no: group for group in map(make_group, more[0])}
        return Loaded(records, groups)

    def groups(
        self, tube: Tube, *, no: int | None = None, name: str | None = None, after: str | None = None,
        above: int | None = None, limit: int = 1000,
    ) -> list[Group]:  # fmt: skip
        if no is not None:
            if not self.write:
                self._watch(tube)
            look = self.call(self.Q.look, tube=tube.no)
            (found,), rows = self.run([look, self.call(self.Q.groups_by_no, tube=abs(tube.no), ids=[no])], twice=True)
            self.now = found[0]
            if not rows and not found[1]:
                raise self.no_such_tube(tube)
            return [make_group(row) for row in rows]
        return super().groups(tube, no=no, name=name, after=after, above=above, limit=limit)

    def outcome(self, tube: Tube, *, id: int | None = None, address: str | None = None) -> Ending | None:
        if id is not None:
            self._watch(tube)
        return super().outcome(tube, id=id, address=address)

    def _watch(self, tube: Tube) -> None:
        """Be told of ends from now on. Those under way may not know it: this process looks once more."""
        watcher, listener = self.db.watcher, self.db.listener
        if watcher is not None and listener is not None:
            calls = [self.call(self.Q.relax), self.call(self.Q.watch, tube=tube.no, process=watcher)]
            if self.run(calls, twice=True)[1]:
                listener.look_again()

    def open_group(self, tube: Tube, name: str) -> Group:
        while True:
            found = self.groups(tube, name=name)
            if found:
                return found[0]
            self.run([*self.opened(tube), self.call(self.Q.add_group, tube=tube.no, name=name)], twice=True)

    def next_at(self, tube: Tube) -> int | None:
        self.now, moment = self.rows(self.on(tube).next_moment, tube=tube.no)[0]
        return moment if moment is None or moment > self.now else self.soon

    @property
    def soon(self) -> int:
        """When to look again at what is due and was not done: at once after some of it was, else others are at it."""
        return self.now if self.moved else self.now + takes.BUSY_MS

    # sessions

    def add_session(self, id: str, ttr: int) -> int:
        no, self.now = self.rows(self.Q.add_session, id=id, ttr=ttr)[0]
        return int(no)

    def add_handle(self, presence: Presence, session: int, until: int) -> None:
        who = {"id": presence.handle, "host": presence.host, "pid": presence.pid, "locus": presence.locus}
        resume = self.call(self.Q.resume_session, no=session)
        self.run([resume, self.call(self.Q.add_handle, session=session, until=until, **who)], twice=True)

    def beat(self, handles: Sequence[str], lapse_ms: int) -> set[str]:
        calls = [self.call(self.Q.relax), self.call(self.Q.beat, texts=list(handles), lapse=lapse_ms)]
        return {row[0] for row in self.run(calls, twice=True)[1]}

    def lapsed(self) -> tuple[list[HandleRow], list[int]]:
        calls = [self.call(self.Q.lapsed_handles), self.call(self.Q.ended_sessions)]
        handles, ended = self.run(calls, twice=True)
        return [HandleRow(*row) for row in handles], [row[0] for row in ended]

    def remove_handle(self, handle: HandleRow, moment: int) -> None:
        lapsed = moment == handle.until
        lock = self.Q.lock_handle_at_once if lapsed else self.Q.lock_handle  # a take of it may be under way
        calls = [
            self.call(lock, handle=handle.id),
            self.call(self.Q.lock_session, no=handle.session),
            self.call(self.Q.part, id=handle.id, moment=moment, lapsed=lapsed),
        ]
        try:
            self.run(calls, twice=True)
        except Conflict:
            if not lapsed:
                raise

    # integrity

    def audit(self, tube: Tube) -> Audit:
        if self.write:  # alone in the tube, whose takes find again what is put right
            calls = [self.call(self.Q.open_alone, tube=tube.no), self.call(self.Q.lower_all, tube=tube.no)]
            self.run(calls)
        return super().audit(tube)

    def rebuild(self, tube: Tube, audit: Audit) -> None:
        with self.together():
            super().rebuild(tube, audit)
            if tube.kind.hand_out == DELIVER:
                self.rows(self.Q.set_serial, tube=tube.no, serial=audit.tally.counts.take)

    # hot calls and changes

    def insert(self, tube: Tube, entries: Sequence[Entry]) -> list[Record]:
        return puts.insert(self, tube, entries)

    def take(self, request: Request) -> Handed:
        return takes.take(self, request)

    def recover(self, tube: Tube, count: int, elapsed: int) -> list[Record]:
        return takes.recover(self, tube, count, elapsed)

    def ack(self, tube: Tube, moves: Sequence[Move]) -> Acked:
        return changes.ack(self, tube, moves)

    def flush(self, delta: Delta) -> Flushed:
        return changes.flush(self, delta)

    # transfer

    def import_batch(self, tube: Tube, parcel: Parcel) -> None:
        Q = self.Q  # noqa: N806
        with self.together():
            self.rows(Q.open_alone, tube=tube.no)
            last = self.tally(tube).last_id
            new = parcel.above(last)
            last_id = max([parcel.upto, last, *(record.id for record in new.records)])
            if new.records:
                columns = {
                    field: [getattr(record, field) for record in new.records]
                    for field in Record.__struct_fields__ if field != "id"
                }  # fmt: skip
                self.change(Q.import_tasks, tube=tube.no, ids=[record.id for record in new.records], **columns)
            members = new.members
            if members:
                self.change(Q.import_members, nos=list(members), members=list(members.values()))
            if parcel.outcomes:
                self._import_outcomes(tube, parcel)
            counts = {
                "ready": new.count("r", "q"), "taken": new.count("t"), "delayed": new.count("~", "g"),
                "buried": new.count("!"), "due": new.due, "put": last_id - last,
                "done": last_id - last - len(new.records),
            }  # fmt: skip
            self.change(Q.import_counts, tube=tube.no, last=last_id, **counts)

    def _import_outcomes(self, tube: Tube, parcel: Parcel) -> None:
        kept = parcel.outcomes
        endings = [one.ending for one in kept]
        self.change(
            self.Q.import_outcomes, tube=tube.no, ids=[one.id for one in kept],
            addresses=[one.address for one in kept], until=[one.until for one in kept],
            statuses=[ending.status for ending in endings], results=[ending.result for ending in endings],
            errors=[ending.error for ending in endings], codes=[ending.code for ending in endings],
        )  # fmt: skip

    def activate(self, tube: Tube, name: str, tally: Tally, totals: Mapping[int, int]) -> bool:
        try:
            with self.together():
                self.rows(self.Q.open_alone, tube=tube.no)
                self.must_live(tube)
                if self.tubes([name]):
                    return False
                self.change(self.Q.import_calls, tube=tube.no, **{call: getattr(tally.counts, call) for call in _CALLS})
                self.change(self.Q.set_mark, tube=tube.no, ms=tally.mark[0], seq=tally.mark[1])
                self.rows(self.Q.set_serial, tube=tube.no, serial=tally.counts.take)
                self.rows(self.Q.set_last_id, tube=tube.no)
                self.change(self.Q.set_group_totals, nos=list(totals), totals=list(totals.values()))
                return self.write_tube(tube, name=name)
        except Conflict:
            return False
