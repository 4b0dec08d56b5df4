"""One call on the PostgreSQL store: how tasks are found and written. It decides nothing; the engine does.

Each load, each flush and each hot statement is one round trip and one transaction: several statements that are sent at
once. A client that stops while it sends holds what the statements before have locked; so only the shared locks of tubes
and handles, and what is short, may be sent beside the long statement.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace, TracebackType
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from penstock.core.ending import Ending
from penstock.core.group import Group
from penstock.core.kind import DELIVER, Kind
from penstock.core.options import Tube, encode_given, make_tube
from penstock.core.results import Counts
from penstock.core.task import Record
from penstock.core.transfer import GroupTotals, Kept, TubeCounters
from penstock.engine import port
from penstock.engine.port import Audit, Conflict, HandleRow
from penstock.store.postgres import changes, takes
from penstock.store.postgres.listener import PROCESS
from penstock.store.postgres.schema import COUNTERS
from penstock.store.postgres.wire import Call, Link, Query, Row
from penstock.store.sql.sql_queries import COLUMNS, ID_MASK
from penstock.store.sql.sql_step import SqlStep, count_states, encoded_kind

if TYPE_CHECKING:
    from penstock.store.postgres.postgres_store import PostgresStore


class PostgresStep(SqlStep):
    """A step. With `held`, all of it is one transaction on one connection: at one moment where it only reads."""

    optimistic = True

    def __init__(
        self, database: PostgresStore, tubes: Sequence[Tube], *, write: bool, held: bool, now: int | None
    ) -> None:
        self.db = database
        self.Q = database.queries
        self.given = now
        self.write = write
        self._now = now
        self.passing = False  # others may be at what was loaded
        self.moved = False  # some of it was changed here, and there may be more
        self._session: Link | None = None
        self._held = held
        self._stack = ExitStack()
        self._relaxed = bool(tubes) and all(tube.temporary for tube in tubes)

    def __enter__(self) -> PostgresStep:
        if self._held:
            self._stack.enter_context(self.together())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stack.__exit__(kind, error, at)

    @contextmanager
    def together(self) -> Iterator[None]:
        if self._session is not None:
            yield
            return
        with self.db.connections.session(snapshot=not self.write) as self._session:
            try:
                yield
            finally:
                self._session = None

    @property
    def now(self) -> int:
        """The clock of the last answer, or an estimate if there was none yet. The server's own clock tests in the flush
        whether a decision still holds."""
        if self._now is None:
            self._now = self.db.estimated_now()
        if self._now is None:
            self.heard(int(self.rows(self.Q.clock)[0][0]))
        assert self._now is not None
        return self._now

    @now.setter
    def now(self, moment: int) -> None:
        self._now = moment if self.given is None else self.given

    def heard(self, moment: int) -> None:
        """Note the clock, which an answer brought."""
        if self.given is None:
            self._now = moment
            self.db.heard(moment)

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

    def several(self, asked: Sequence[tuple[str, dict[str, Any]]]) -> list[list[Row]]:
        return self.run([self.call(query, **values) for query, values in asked], twice=True)

    def change(self, query: str, **values: object) -> int:
        calls = [self.call(self.Q.relax)] if self._relaxed else []
        return int(self.run([*calls, self.call(query, **values)], twice=True)[-1][0][0])

    def on(self, tube: Tube) -> SimpleNamespace:
        """The queries on the table that has a tube's tasks."""
        return self.db.queries.temporary if tube.temporary else self.db.queries.durable

    def opened(self, *tubes: Tube, handle: str | None = None) -> list[Call]:
        """What a call on these tubes begins with: their shared locks; of a take, also that of its handle."""
        query = self.Q.open if handle is None else self.Q.open_for
        calls = [self.call(query, tube=no, handle=handle) for no in sorted({tube.no for tube in tubes})]
        if all(tube.temporary for tube in tubes) and self.db.connections.relaxes:
            calls.append(self.call(self.Q.relax))
        return calls

    def count_changes(self) -> None:
        """Now and then, add up the counters."""
        if self._session is None:
            self.db.fold_sometimes()

    # tubes

    def lock_alone(self, tube: Tube) -> None:
        self.rows(self.Q.open_alone, tube=tube.no)

    def add_tube(self, name: str, kind: Kind, given: dict[str, object]) -> Tube | None:
        new = make_tube(0, name, kind, given)
        bounds = ("heads", "dues") if changes.bounded(new) else ()
        sequences = ("ids", *bounds, *(("serials",) if kind.hand_out == DELIVER else ()))
        declared = {"name": name, "kind": encoded_kind(kind), "options": encode_given(given).decode()}
        with self.together():
            found = self.rows(self.Q.add_tube, temporary=new.temporary, **declared)
            if not found:
                return None
            no = int(found[0][0])
            self.run([self._sequence(self.Q.create_sequence, name, no) for name in sequences])
            self.change(self.Q.add_counter, tube=no, temporary=new.temporary)
        return make_tube(no, name, kind, given)

    def _sequence(self, query: str, sequence: str, no: int) -> Call:
        text = query.replace("{sequence}", sequence).replace("{tube}", str(abs(no)))
        return Query(text.replace("{most}", str(ID_MASK if sequence == "ids" else 2**63 - 1))), {}

    def write_tube(
        self, tube: Tube, *, name: str | None = None, given: dict[str, object] | None = None, paused: bool | None = None
    ) -> bool:
        written = super().write_tube(tube, name=name, given=given, paused=paused)
        if written and paused is False:
            self._notify(tube, always=True)
        return written

    def hide_tube(
        self, tube: Tube, name: str, given: dict[str, object], *, waiting: bool
    ) -> tuple[bool, bool, bool] | None:
        with self.together():
            busy = super().hide_tube(tube, name, given, waiting=waiting)
            if busy is None:
                self.run([self._sequence(self.Q.drop_sequence, "ids", tube.no)])
        if busy is None:
            self._notify(tube, ended=True)
        return busy

    def forget_tube(self, tube: Tube) -> None:
        with self.together():
            super().forget_tube(tube)
            sequences = ("ids", "serials", "heads", "dues")
            self.run([self._sequence(self.Q.drop_sequence, name, tube.no) for name in sequences])

    def notify_call(self, tube: Tube, *, always: bool = False, ready: bool = False, ended: bool = False) -> list[Call]:
        """What hints other processes at a change of a tube; nothing while this one must be silent."""
        process = self.db.notifier.name
        if process is None or not (always or ready or ended):
            return []
        return [self.call(self.Q.notify, process=process, tube=tube.no, always=always, ready=ready, ended=ended)]

    def _notify(self, tube: Tube, *, always: bool = False, ended: bool = False) -> None:
        calls = self.notify_call(tube, always=always, ended=ended)
        if calls and self.run(calls, twice=True)[0]:
            self.db.notifier.sent()

    def make_counters(self, row: Row) -> TubeCounters:
        _, last, ms, seq, serial, paused, _, *numbers = row
        counts = Counts(*numbers)
        return TubeCounters(last, (ms, seq), replace(counts, take=max(counts.take, serial)), bool(paused))

    def set_counts(self, tube: Tube, states: Mapping[str, int], *, done: int) -> None:
        counts, wanted = self.counters(tube).counts, count_states(states) | {"done": done}
        names = ("ready", "taken", "delayed", "buried", "done")
        self.add_counts(tube, {name: wanted.get(name, 0) - getattr(counts, name) for name in names})

    def add_counts(self, tube: Tube, counts: Mapping[str, int], last_id: int = 0) -> None:
        self.change(self.Q.add_counts, tube=tube.no, last_id=last_id, **{**dict.fromkeys(COUNTERS, 0), **counts})

    def sweep(self, tube: Tube, limit: int) -> None:
        queries = (self.Q.sweep_outcomes, self.Q.sweep_groups, self.Q.forget_idle_queues)
        self.run([*self.opened(tube), *(self.call(query, tube=tube.no, limit=limit) for query in queries)], twice=True)

    # looking

    def look(self, tube: Tube, asked: Sequence[tuple[str, dict[str, object]]], *, hidden: bool) -> list[list[Row]]:
        ((clock, lives),), *results = self.several([(self.Q.look, {"tube": tube.no}), *asked])
        self.heard(clock)
        if not (lives or hidden):
            raise self.no_such_tube(tube)
        return results

    def _selected(
        self, tube: Tube, select: port.Select, queries: SimpleNamespace | None = None
    ) -> tuple[str, dict[str, object]]:
        self.passing = isinstance(select, (port.Due, port.Members, port.Unstarted))
        return super()._selected(tube, select, self.on(tube))

    def watch(self, tube: Tube) -> None:
        """Ends that are under way may not know of it: this process looks once more."""
        if self.db.listener is not None and not self.write:
            calls = [self.call(self.Q.relax), self.call(self.Q.watch, tube=tube.no, process=PROCESS.name)]
            if self.run(calls, twice=True)[1]:
                self.db.listener.look_again()

    def open_group(self, tube: Tube, name: str) -> Group:
        while not (found := self.groups(tube, name=name)):
            self.run([*self.opened(tube), self.call(self.Q.add_group, tube=tube.no, name=name)], twice=True)
        return found[0]

    def next_at(self, tube: Tube) -> int | None:
        clock, moment = self.rows(self.on(tube).next_moment, tube=tube.no)[0]
        self.heard(clock)
        return moment if moment is None or moment > self.now else self.soon

    @property
    def soon(self) -> int:
        """When to look again at what is due and was not done: at once after some of it was, else others are at it."""
        return self.now if self.moved else self.now + takes.BUSY_MS

    # sessions

    def beat(self, handles: Sequence[str], lapse_ms: int) -> set[str]:
        calls = [self.call(self.Q.relax), self.call(self.Q.beat, texts=list(handles), lapse=lapse_ms)]
        return {row[0] for row in self.run(calls, twice=True)[1]}

    def remove_handle(self, handle: HandleRow, moment: int) -> None:
        lapsed = moment == handle.until
        lock = self.Q.lock_handle_at_once if lapsed else self.Q.lock_handle  # a take of it may be under way
        try:
            with self.together():
                self.rows(lock, handle=handle.id)
                super().remove_handle(handle, moment)
        except Conflict:
            if not lapsed:
                raise

    # integrity

    def audit(self, tube: Tube) -> Audit:
        if self.write:  # alone in the tube, whose takes find again what is put right
            self.run([self.call(self.Q.open_alone, tube=tube.no), self.call(self.Q.lower_all, tube=tube.no)])
        return super().audit(tube)

    def rebuild(self, tube: Tube, audit: Audit) -> None:
        with self.together():
            super().rebuild(tube, audit)
            self.set_serial(tube, audit.counters.counts.take)

    # hot calls and changes

    insert, ack, flush = changes.insert, changes.ack, changes.flush
    take, recover, undo_lost = takes.take, takes.recover, takes.undo_lost

    # transfer

    def import_rows(self, tube: Tube, records: Sequence[Record], outcomes: Sequence[Kept]) -> None:
        names = {**COLUMNS, "id": "id"}
        tasks = {name: [getattr(record, field) for record in records] for field, name in names.items()}
        self.change(self.Q.import_tasks, tube=tube.no, **tasks)
        kept = {name: [getattr(one, name) for one in outcomes] for name in ("id", "address", "until")}
        for name in Ending.__struct_fields__:
            kept[name] = [getattr(one.ending, name) for one in outcomes]
        self.change(self.Q.import_outcomes, tube=tube.no, **kept)

    def set_serial(self, tube: Tube, serial: int) -> None:
        self.rows(self.Q.set_sequences, tube=tube.no, serial=serial)

    def activate(self, tube: Tube, name: str, counters: TubeCounters, totals: GroupTotals) -> bool:
        try:
            return super().activate(tube, name, counters, totals)
        except Conflict:  # another got the name just now
            return False
