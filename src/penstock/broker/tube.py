"""A tube as programs hold it: every verb, for one session."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Unpack

from penstock.broker.group import Group
from penstock.broker.looking import Looking
from penstock.broker.outcome import Outcome, await_outcome
from penstock.core import codec, names
from penstock.core.entry import encode_payload, make_entry, plain_entry
from penstock.core.kind import unsupported
from penstock.core.lifecycle import Move
from penstock.core.numbers import timeout as check_timeout
from penstock.core.numbers import whole
from penstock.core.options import PutOptions
from penstock.core.options import Tube as StoredTube
from penstock.core.select import Sweep
from penstock.core.shapes import several
from penstock.core.shards import refuse_group
from penstock.core.stepwise import stepwise
from penstock.core.task import Entry, Record, Task, make_task
from penstock.errors import BadValue, TubeFull, UnsupportedOption
from penstock.operations.operation import Flow, Step, verb, verb_with
from penstock.operations.store_ops import Moves, Puts

if TYPE_CHECKING:
    from penstock.broker.session_handle import Seat
    from penstock.runtime.runtime import Hub, OnChange

log = logging.getLogger("penstock")

# put_many stores up to so many tasks in one step.
CHUNK = 10_000

_NOTHING = (None,) * 11
# Data of these types is its own decoded form.
ATOMS = frozenset({str, int, float, bool, bytes, type(None)})


class Tube(Looking):
    """A named queue of one kind. Safe to use from several threads."""

    def __init__(self, hub: Hub, seat: Seat, stored: StoredTube) -> None:
        self._hub = hub
        self._seat = seat
        self._stored = stored
        self._plain = self._short_way(plain_entry(stored, b""))

    def __repr__(self) -> str:
        return f"<Tube {self.name} ({self.kind})>"

    # putting

    def _short_way(self, entry: Entry) -> Callable[[object], Record | None] | None:
        """Stores data each time it is called, with all else as in the entry, by the store's own short way.

        None, here or then: it must be put the long way.
        """
        hub, stored, plain = self._hub, self._stored, self._hub.plain_put(self._stored, entry)
        if plain is None:
            return None

        def put(data: object) -> Record | None:
            record = plain(encode_payload(stored, "data", data))
            if record is not None:
                hub.arrived(stored, record)
            return record

        return put

    def _put_plain(self, data: object) -> Task | None:
        """Store one task without options by the store's own short way; None where it has none for this tube."""
        record = self._plain and self._plain(data)
        if record is None:
            return None
        return Task(record, self, data) if type(data) in ATOMS else make_task(record, self)

    def _plain_step(self, data: object) -> Puts | None:
        """The one step of a put without options; None where the tube may be full, so that more may be needed."""
        stored = self._stored
        return Puts(self, (make_entry(stored, data, {}),)) if stored.capacity is None else None

    @verb_with(_put_plain)
    def put(
        self, data: object, *, pri: int | None = None, ttl: float | None = None, ttr: float | None = None,
        delay: float | None = 0, utube: str | int | None = None, id: str | None = None, rank: float | None = None,
        address: str | None = None, on_duplicate: str = "error", group: str | None = None,
        callback: str | None = None, reply_to: str | None = None, max_attempts: int | None = None,
        timeout: float | None = 0,
    ) -> Flow[Task]:  # fmt: skip
        """Store one task; when this returns, it is stored as durably as the store promises.

        A full tube makes it wait up to timeout (None: for ever), then raises TubeFull.
        """
        options: PutOptions = {}
        rare = (pri, ttl, ttr, utube, id, rank, address, group, callback, reply_to, max_attempts)
        if rare != _NOTHING or type(delay) is not int or delay or on_duplicate != "error":
            options = {
                "pri": pri, "ttl": ttl, "ttr": ttr, "delay": delay, "utube": utube, "id": id, "rank": rank,
                "address": address, "on_duplicate": on_duplicate, "group": group, "callback": callback,
                "reply_to": reply_to, "max_attempts": max_attempts,
            }  # fmt: skip
        record = (yield from self._store([make_entry(self._stored, data, options)], timeout))[0]
        same = type(data) in ATOMS and address is id is None  # with one, it may be the task that was there
        return Task(record, self, data) if same else make_task(record, self)

    @verb
    def put_many(
        self, items: Iterable[object], *, timeout: float | None = 0, **shared: Unpack[PutOptions]
    ) -> Flow[list[Task]]:
        """Store many tasks in order, each `data` or `(data, {"pri": 1})`; atomic up to 10,000, then in such chunks."""
        return (yield from self._put_many(items, timeout, shared, None))

    def _put_many(
        self, items: Iterable[object], timeout: float | None, shared: PutOptions, bind: Callable[[Entry], Entry] | None
    ) -> Flow[list[Task]]:
        """As put_many; `bind` ties each entry to a group."""
        records: list[Record] = []
        feed = iter(several("items", items))
        # What is all there is all checked before any of it is stored.
        ahead = max(len(items), CHUNK) if isinstance(items, (list, tuple)) else CHUNK
        while entries := [self._entry(item, shared) for item in islice(feed, ahead)]:
            if bind is not None:
                entries = [bind(entry) for entry in entries]
            for first in range(0, len(entries), CHUNK):
                with stepwise(records):
                    records += yield from self._store(entries[first : first + CHUNK], timeout)
        return [make_task(record, self) for record in records]

    def _entry(self, item: object, shared: PutOptions) -> Entry:
        if not (isinstance(item, tuple) and len(item) == 2 and isinstance(item[1], dict)):
            return make_entry(self._stored, item, shared)
        own = {option: value for option, value in item[1].items() if value is not None}
        return make_entry(self._stored, item[0], {**shared, **own})

    def _store(self, entries: Sequence[Entry], timeout: float | None) -> Flow[list[Record]]:
        limit, put = check_timeout(timeout), Puts(self, entries)
        try:
            records: list[Record] = yield put
        except TubeFull:
            if len(entries) > (self._stored.capacity or 0):
                raise
            return (yield from self._hub.put_when_room(self._stored, put, limit))
        return records

    def _put_now(self, entries: Sequence[Entry]) -> list[Record]:
        hub = self._hub
        stored = hub.store.put(self._stored, entries)
        hub.after(stored.effects)
        hub.note_records(self._stored, stored.records)
        return stored.records

    # taking

    @verb
    def take(self, timeout: float | None = None, *, max_pri: int | None = None) -> Flow[Task | None]:
        """The first ready task in the tube's order, leased to this session alone; None when nothing came.

        timeout None waits for ever, 0 never waits.
        """
        check_max_pri(self._stored, max_pri)
        tasks = yield from self._seat.take_tasks((self,), 1, timeout, max_pri)
        return tasks[0] if tasks else None

    @verb
    def take_many(self, count: int, timeout: float | None = 0, *, max_pri: int | None = None) -> Flow[list[Task]]:
        """Up to count ready tasks, in order; waits up to timeout for the first."""
        check_max_pri(self._stored, max_pri)
        return (yield from self._seat.take_tasks((self,), whole("count", count), timeout, max_pri))

    def _handed_out(self, records: Iterable[Record]) -> list[Task]:
        """What was taken, for people; a task whose data cannot be decoded is set aside and left out."""
        tasks = []
        for record in records:
            try:
                tasks.append(Task(record, self, codec.decode(record.payload), leased=True))
            except BadValue as error:
                self._set_aside(record, error)
        return tasks

    # settling, of many

    def kick(self, count: int | None = 1) -> int:
        """Kick up to `count` buried tasks, in take order. Returns how many were kicked."""
        return self._sweep(Sweep("kick", 1 if count is None else whole("count", count)))

    def release_all(self) -> int:
        """Release every taken task, whoever holds it. Returns how many were released."""
        return self._sweep(Sweep("release"))

    def truncate(self) -> int:
        """Remove every task, leases too. Returns how many were removed."""
        return self._sweep(Sweep("delete"))

    def _sweep(self, sweep: Sweep) -> int:
        settled = self._hub.store.sweep(self._stored, sweep)
        self._hub.after(settled.effects)
        return len(settled.records)

    def drop(self) -> None:
        """Remove the tube with all its tasks. TubeBusy while tasks are taken or someone waits in take."""
        self._hub.tend()
        self._hub.catch_up(self._stored)  # told here: the drop itself may be refused, and then tells nothing
        effects = self._hub.store.drop_tube(self._stored)
        if effects is not None:
            self._hub.after(effects)
        self._hub.hint_waiters()

    def _set_aside(self, record: Record, error: BadValue) -> None:
        """Bury a task that was handed out and cannot be decoded."""
        self._settle_now([Move("bury", record.id, lease=record.lease, reason=str(error), seen=record)])

    def _untaken(self, tasks: Iterable[Task]) -> Step | None:
        """What gives back tasks that were handed out to a caller who never saw them."""
        session = self._seat.number
        return Moves(self, [Move("release", task.id, session, task.lease, unstarted=True) for task in tasks])

    def _settle_now(self, moves: Sequence[Move]) -> list[Record | None]:
        """Guarded moves; of each the task afterwards, or None where the guard failed."""
        brief = not self._hub.is_listened(self._stored)
        settled = self._hub.store.settle(self._stored, moves, brief=brief)
        self._hub.after(settled.effects)
        self._hub.note_records(self._stored, [record for record in settled.records if record is not None])
        return settled.records

    # addresses and groups

    @verb
    def wait(self, address: str, timeout: float | None = None) -> Flow[Outcome]:
        """How the task ends that holds the address now; TimeoutError when that does not come in time.

        An address without a task gives its last outcome, or done without a result when none is known (any more).
        """
        return (yield from await_outcome(self._hub, self._stored, address, timeout))

    def group(self, name: str) -> Group:
        """The live group of that name, or a new one."""
        refuse_group(self.name, self._stored.shards)
        return Group(self, name)

    # steering

    def pause(self) -> None:
        """From now on take returns nothing, everywhere; puts go on."""
        self._hub.store.pause_tube(self._stored, True)

    def resume(self) -> None:
        """End a pause, and wake those who wait."""
        self._hub.store.pause_tube(self._stored, False)
        self._hub.room.wake(("ready", self._stored.no), hint=True)

    def on_change(self, callback: OnChange | None) -> OnChange | None:
        """Call callback(task, event) after each change this broker makes to the tube; the previous one.

        It belongs to the tube in this broker, whichever handle set it; None ends it.
        """
        if callback is not None and not callable(callback):
            raise BadValue(f"on_change callback {names.shown(callback)} cannot be called: give a function or None")
        return self._hub.listen(self._stored, self, callback)

    # kind reliable

    def recover(self, count: int, elapsed: float) -> list[Task]:
        """Hand out again what was delivered at least elapsed seconds ago and never acked (kind reliable)."""
        raise unsupported(self._stored.kind, "recover")

    def inspect(self, start: int, count: int, pending: bool | None = False) -> list[Task]:
        """Read the undelivered or the delivered list (kind reliable)."""
        raise unsupported(self._stored.kind, "inspect")


def check_max_pri(tube: StoredTube, max_pri: int | None) -> None:
    """UnsupportedOption where pri does not lead the order."""
    if max_pri is None:
        return
    whole("max_pri", max_pri, 0)
    if tube.kind.order[0] != "pri" or tube.aging is not None:
        raise UnsupportedOption(f"tube {tube.name} is not ordered by pri first, so it has no max_pri: leave it out")
