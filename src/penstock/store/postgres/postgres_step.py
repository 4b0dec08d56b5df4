"""One call on the PostgreSQL store: how tasks are found and written. All decisions are the engine's.

Each load, each flush and each hot statement is one round trip and one transaction: several statements sent together. A
client that stalls while sending keeps the locks of the statements that already ran. So only short statements, and those
that take the shared locks of tubes and handles, may be sent along with a long one.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from penstock.core.audit import Audit
from penstock.core.group import Group
from penstock.core.kind import CLOCK, DELIVER
from penstock.core.options import Tube
from penstock.core.results import Counts
from penstock.core.task import Record
from penstock.core.transfer import TubeCounters
from penstock.engine import port
from penstock.engine.port import Conflict, Found, LostTake, TakeAnswer, TakeRequest
from penstock.engine.store import BUSY_MS, first_found
from penstock.errors import PenstockError
from penstock.store.postgres import postgres_writes as writes
from penstock.store.postgres.postgres_connection import this_process
from penstock.store.postgres.postgres_wire import Call, Query, Row, command
from penstock.store.sql.server_step import ServerStep
from penstock.store.sql.sql_queries import COUNTERS, ID_MASK

if TYPE_CHECKING:
    from penstock.store.postgres.postgres_store import PostgresStore


# Above every rank, for a take without max_pri; and above every time, for delivered messages, which have no period.
_HIGHEST = 2**62
# The number of single takes sent together, in tubes where each take decides which micro-queue is next.
_SINGLY = 100
# The number of columns before those of a task.
_LOOKED = 7


class PostgresStep(ServerStep):
    """Sends statements together. With `held`, the whole step is one transaction on one connection."""

    db: PostgresStore
    settling_ms = 25
    #: Whether the flush skips locked rows, on which another process works.
    skips_locked = False
    #: Whether such a flush changed some rows; more may remain.
    applied_some = False

    def run(self, calls: Sequence[Call], *, safe: bool = False) -> list[list[Row]]:
        """Send statements together, as one transaction or as part of the open one. Returns the rows of each that has
        columns."""
        rows: list[list[Row]] = self.db.server.send(calls, safe=safe) if self.link is None else self.link.run(calls)
        return rows

    def call(self, query: str, **values: object) -> Call:
        """Return a statement with its values, including the clock and, for a notification, its sender."""
        assert isinstance(query, Query)
        values |= {"now": self.given, "skips_locked": self.skips_locked}
        if "process" in query.names:
            values.setdefault("process", self.db.server.sender)
        return query.call(values)

    def several(self, asked: Sequence[tuple[str, dict[str, Any]]]) -> list[list[Row]]:
        return self.run([self.call(query, **values) for query, values in asked], safe=True)

    def change(self, query: str, **values: object) -> int:
        return int(self.rows(query, **values)[0][0])

    def on(self, tube: Tube) -> SimpleNamespace:
        """Return the queries on the table that stores a tube's tasks."""
        return self.db.queries.temporary if tube.temporary else self.db.queries.durable

    def locks(self, *tubes: Tube, handle: str | None = None) -> list[Call]:
        """Return the first statements of a call on these tubes: shared locks of the tubes and of a take's handle."""
        calls = [self.call(self.Q.open, tube=no, handle=handle) for no in sorted({tube.no for tube in tubes})]
        if all(tube.temporary for tube in tubes) and not self.db.server.bound:
            calls.append(self.call(self.Q.relax))
        return calls

    # tubes

    def lock_alone(self, tube: Tube) -> None:
        self.run([self.call(self.Q.open_alone, tube=tube.no, at_once=False)])

    def add_counter(self, tube: Tube) -> None:
        bounds = ("heads", "dues") if writes.bounded(tube) else ()
        serials = ("serials",) if tube.kind.hand_out == DELIVER else ()
        self._sequences(self.Q.create_sequence, tube, "ids", *bounds, *serials)
        super().add_counter(tube)

    def _sequences(self, query: str, tube: Tube, *names: str) -> None:
        """Create or drop sequences of a tube."""
        texts = [
            query.format(name=name, no=abs(tube.no), most=ID_MASK if name == "ids" else 2**63 - 1) for name in names
        ]
        self.run([command(text) for text in texts])

    def drop_sequences(self, tube: Tube, *names: str) -> None:
        self._sequences(self.Q.drop_sequence, tube, *names)

    def make_counters(self, row: Row) -> TubeCounters:
        _, last, ms, seq, serial, paused, _, *numbers = row
        counts = Counts(*numbers)
        return TubeCounters(last, (ms, seq), replace(counts, take=max(counts.take, serial)), bool(paused))

    def add_counts(self, tube: Tube, counts: Mapping[str, int], last_id: int = 0) -> None:
        self.change(self.Q.add_counts, tube=tube.no, last_id=last_id, **{**dict.fromkeys(COUNTERS, 0), **counts})

    # reading

    def _selected(
        self, tube: Tube, select: port.Select, queries: SimpleNamespace | None = None
    ) -> tuple[str, dict[str, object]]:
        self.skips_locked = isinstance(select, (port.Due, port.Members))
        return super()._selected(tube, select, self.on(tube))

    def watch(self, tube: Tube) -> None:
        """Register this process as watching the tube. An end in flight may not see that, so waiters retry once more."""
        watcher = self.db.watcher
        if watcher and not self.write and self.rows(self.Q.watch, tube=tube.no, process=this_process()):
            watcher.look_again()

    def open_group(self, tube: Tube, name: str) -> Group:
        while not (found := self.groups(tube, name=name)):
            self.run([*self.locks(tube), self.call(self.Q.add_group, tube=tube.no, name=name)], safe=True)
        return found[0]

    # sessions

    def remove_handle(self, id: str, session: int, lapse: int | None = None) -> None:
        # A take of the handle may be running.
        try:
            with self.transaction():
                self.run([self.call(self.Q.lock_handle, handle=id, at_once=lapse is not None)])
                super().remove_handle(id, session, lapse)
        except Conflict:
            if lapse is None:
                raise

    # integrity

    def audit(self, tube: Tube) -> Audit:
        if self.write:  # lock the tube, and reset its bounds so that takes find repaired tasks
            self.lock_alone(tube)
            self.run([self.call(self.Q.lower_all, tube=tube.no)])
        return super().audit(tube)

    # hot calls and changes

    ack, flush = writes.ack, writes.flush

    def take_once(self, request: TakeRequest, call: int) -> TakeAnswer:
        tubes, handle, blocked = request.tubes, request.handle, request.blocked
        mark = str(call) if blocked is not None or len(tubes) > 1 else None
        calls = self.locks(*tubes, handle=handle)
        calls += [self._take_call(request, place, tube, mark, call) for place, tube in enumerate(tubes)]
        waits = {"tubes": [tube.no for tube in tubes], "handle": handle, "number": request.waiter, "mark": mark}
        if blocked in ("register", "unregister_if_found"):
            calls.append(self.call(self.Q.enter, process=this_process(), **waits))
        if blocked in ("unregister_if_found", "unregister"):
            calls.append(self.call(self.Q.leave, always=blocked == "unregister", **waits))
        answers = self.run(calls)[: len(tubes)]
        handed = first_found(request, self._found(tubes, answers))
        if handed.tube is not None:
            raise_bounds(self, handed.tube, handed.records, answers[tubes.index(handed.tube)][0][4])
            if _singly(handed.tube):
                self._take_more(request, handed, handed.tube, call)
        return handed

    def _found(self, tubes: Sequence[Tube], answers: Sequence[list[Row]]) -> Iterator[Found]:
        for tube, rows in zip(tubes, answers, strict=True):
            if rows[0][0] is None:
                raise self.no_such_tube(tube)
            self.note_clock(rows[0][2])
            found = _found(tube, rows)
            # Deadlines that this step left to another client are applied soon.
            found.retry_ms = 0 if self.applied_some else BUSY_MS
            yield found

    def _take_call(self, request: TakeRequest, place: int, tube: Tube, mark: str | None, call: int) -> Call:
        on, kind, count = self.on(tube), tube.kind, request.count
        return self.call(
            on.take if kind.leased else on.hand_out, tube=tube.no, handle=request.handle, forced=place < request.forced,
            mark=mark, call=call, top=float(_HIGHEST if request.max_pri is None else request.max_pri), fair=tube.fair,
            queued=kind.per_utube, turning=_singly(tube), bounded=writes.bounded(tube),
            count=min(count, 1) if _singly(tube) else count, period=tube.period if kind.hand_out == CLOCK else _HIGHEST,
        )  # fmt: skip

    def _take_more(self, request: TakeRequest, handed: TakeAnswer, tube: Tube, call: int) -> None:
        alone = replace(request, blocked=None, forced=1)
        opening = self.locks(tube, handle=request.handle)
        while (left := request.count - len(handed.records)) > 0:
            size = min(left, _SINGLY)
            answers = self.run([*opening, *[self._take_call(alone, 0, tube, None, call)] * size])
            found = [record for rows in answers for record in _found(tube, rows).records]
            handed.records += found
            if len(found) < size:
                return

    def leased_by(self, lost: LostTake) -> list[list[Record]]:
        """Take the exclusive lock of the handle first, so that the take is no longer running."""
        leave = {"tubes": [tube.no for tube in lost.tubes], "number": lost.waiter, "mark": "none"}
        calls = [self.call(self.Q.lock_handle, handle=lost.handle, at_once=False)]
        calls.append(self.call(self.Q.leave, handle=lost.handle, always=not self.is_registered(lost.waiter), **leave))
        mine = {"handle": lost.handle, "call": lost.call}
        calls += [self.call(self.on(tube).by_call, tube=tube.no, **mine) for tube in lost.tubes]
        return [[Record(*row) for row in rows] for rows in self.run(calls, safe=True)[1:]]

    def recover(self, tube: Tube, count: int, elapsed: int) -> list[Record]:
        calls = [*self.locks(tube), self.call(self.Q.lock_recovering, tube=tube.no)]
        calls.append(self.call(self.on(tube).recover, tube=tube.no, count=count, elapsed=elapsed))
        rows = self.run(calls)[-1]
        if not rows:
            raise self.no_such_tube(tube)
        self.note_clock(rows[0][1])
        return [Record(*row[3:]) for row in rows if row[2] is not None]

    # transfer

    def set_serial(self, tube: Tube, serial: int) -> None:
        self.rows(self.Q.set_sequences, tube=tube.no, serial=serial)


def _singly(tube: Tube) -> bool:
    """Return whether each hand-out moves its micro-queue behind the others, so that tasks must be taken one by one."""
    return tube.kind.per_utube and tube.fair and tube.utube_limit > 1


def _found(tube: Tube, rows: list[Row]) -> Found:
    """Read the rows of a take. Columns: those of the fragment `looked`, the rank, and those of a task."""
    _, session, clock, next_at, _, _, rank, *_ = rows[0]
    found = [row[_LOOKED:] for row in rows if row[_LOOKED] is not None]
    if not tube.kind.leased:
        records = [Record(*row[1:]) for row in sorted(found, key=lambda row: int(row[0]))]
        return Found(session, clock, next_at, records, rank if tube.kind.hand_out == CLOCK else None)
    records = [Record(*row) for row in found]
    if len(records) > 1:
        records.sort(key=lambda record: (record.rank1, record.rank2, record.id))
    return Found(session, clock, next_at, records)


def raise_chance(passed: int) -> float:
    """Return the probability that a take raises the tube's bounds, if its scan skipped `passed` ids."""
    return min(passed / 10_000, 0.2)


def raise_bounds(step: PostgresStep, tube: Tube, records: Sequence[Record], low: int) -> None:
    """Sometimes raise the tube's bounds to the first ready task and deadline; more likely if the scan skipped more ids.

    Not always: the bound cannot rise while an old task of lower priority is ready.
    """
    distance = min(record.id for record in records) - low
    if writes.bounded(tube) and not step.db.server.bound and random.random() < raise_chance(distance):
        due = step.now + min((record.ttr for record in records if record.ttr is not None), default=0)
        calls = [step.call(step.Q.open_alone, tube=tube.no, at_once=True)]
        with suppress(PenstockError, Conflict):  # the tube is in use: a later take retries
            step.run([*calls, step.call(step.on(tube).raise_bounds, tube=tube.no, due=due)])
