"""The store operations of puts, settles and waits. Those of one kind and tube share a store call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from penstock.core.ending import OutcomeLookup
from penstock.core.entry import SINGLE_FIELDS, copies, encode_payload, make_entry
from penstock.core.lifecycle import Move
from penstock.core.options import PutOptions, TimedOptions, with_delay
from penstock.core.options import Tube as StoredTube
from penstock.core.refusals import partly_applied
from penstock.core.task import Entry, Record
from penstock.core.values import Seconds
from penstock.core.values import items as check_items
from penstock.core.values import timeout as check_timeout
from penstock.errors import TubeFull
from penstock.operations.operation import Call, Operation, StoreOp

if TYPE_CHECKING:
    from penstock.runtime.runtime import BrokerRuntime

# The data of a task, its own options, and their names.
Item = tuple[object, Mapping[str, Any], tuple[str, ...]]
_NO_OPTIONS: Mapping[str, Any] = {}
_names: Callable[[Item], tuple[str, ...]] = itemgetter(2)
# put_many stores up to this many tasks in one atomic call.
CHUNK = 10_000
# What a task or a move adds to the size of a call beyond its payload: about ten thousand of them fill one.
_EACH = 400


class PutOp(StoreOp):
    """Store these entries, all or none; TubeFull if the tube has no capacity left. Returns their records."""

    __slots__ = ("_entries", "_runtime", "_tube")

    def __init__(self, runtime: BrokerRuntime, tube: StoredTube, entries: Sequence[Entry]) -> None:
        self._runtime = runtime
        self._tube = tube
        self._entries = entries

    @property
    def key(self) -> tuple[str | int, ...]:
        if self._tube.shards > 1 and any(entry.address is not None for entry in self._entries):
            # Alone: one shard may refuse its part after others have stored theirs, and a retry of the batch
            # would put those again.
            return "put", self._tube.no, id(self)
        return "put", self._tube.no

    @property
    def size(self) -> int:
        entries = self._entries
        if len(entries) == 1:
            return _EACH + len(entries[0].payload)
        return sum(_EACH + len(entry.payload) for entry in entries)

    def run(self) -> list[Record]:
        return self._put(self._entries)

    def run_batch(self, ops: Sequence[PutOp]) -> list[list[Record]]:
        records = iter(self._put([entry for op in ops for entry in op._entries]))
        return [list(islice(records, len(op._entries))) for op in ops]

    def _put(self, entries: Sequence[Entry]) -> list[Record]:
        stored = self._runtime.store.put(self._tube, entries)
        self._runtime.publish(stored.effects, self._tube, stored.records)
        return stored.records


class LatePutOp(PutOp):
    """Like PutOp, but its entries are made when it runs, by the store's clock."""

    __slots__ = ("_remake",)

    def __init__(
        self, runtime: BrokerRuntime, tube: StoredTube, entries: Sequence[Entry], remake: Callable[[int], list[Entry]]
    ) -> None:
        super().__init__(runtime, tube, entries)
        self._remake = remake

    @property
    def key(self) -> tuple[str | int, ...]:
        return "put", self._tube.no, id(self)

    def run(self) -> list[Record]:
        return self._put(self._remake(self._runtime.store.now()))

    def run_batch(self, ops: Sequence[PutOp]) -> list[list[Record]]:
        return [op.run() for op in ops]  # only itself: its key is unique


def put_items(
    runtime: BrokerRuntime, tube: StoredTube, items: Iterable[object], timeout: Seconds | None, shared: TimedOptions,
    bind: Callable[[Entry], Entry] | None = None,
) -> Operation[list[Record]]:  # fmt: skip
    """Put many tasks, each `data` or `(data, options)`, in atomic chunks; `bind` ties each entry to a group."""
    records: list[Record] = []
    feed = iter(check_items(items))
    # All items of a list are checked before any is stored.
    ahead = max(len(items), CHUNK) if isinstance(items, (list, tuple)) else CHUNK
    while chunk := _split(islice(feed, ahead)):
        timed = shared.get("at") is not None or any("at" in _names(item) for item in chunk)
        now: int | None = (yield Call(runtime.store.now)) if timed else None
        entries = _entries(tube, chunk, shared, now, bind)
        for first in range(0, len(entries), CHUNK):
            last = first + CHUNK
            remake = partial(_entries, tube, chunk[first:last], shared, bind=bind) if timed else None
            with partly_applied(records):
                records += yield from put_entries(runtime, tube, entries[first:last], timeout, remake)
    return records


def put_entries(
    runtime: BrokerRuntime, tube: StoredTube, entries: Sequence[Entry], timeout: Seconds | None,
    remake: Callable[[int], list[Entry]] | None = None,
) -> Operation[list[Record]]:  # fmt: skip
    """Put these entries, all or none; if the tube is full, waits up to timeout seconds, then raises TubeFull.

    `remake` makes them again by the store's clock after a wait, where they have an `at`.
    """
    limit, put = check_timeout(timeout), PutOp(runtime, tube, entries)
    try:
        records: list[Record] = yield put
    except TubeFull:
        if len(entries) > (tube.capacity or 0):
            raise
        if remake is not None:
            put = LatePutOp(runtime, tube, entries, remake)
        return (yield from runtime.put_when_not_full(tube, put, limit))
    return records


def _split(items: Iterable[object]) -> list[Item]:
    """The data of each item, the options given with it, if any, and their names."""
    return [
        (item[0], item[1], tuple(item[1]))
        if isinstance(item, tuple) and len(item) == 2 and isinstance(item[1], dict)
        else (item, _NO_OPTIONS, ())
        for item in items
    ]


def _entries(
    tube: StoredTube, items: Sequence[Item], given: TimedOptions, now: int | None,
    bind: Callable[[Entry], Entry] | None,
) -> list[Entry]:  # fmt: skip
    """The entries of items, in order. Items with options of the same names are made together."""
    if len(set(map(_names, items))) == 1:
        return _alike_entries(tube, items, given, now, bind)
    alike = dict[tuple[str, ...], list[Item]]()
    for item in items:
        alike.setdefault(_names(item), []).append(item)
    made = {names: iter(_alike_entries(tube, some, given, now, bind)) for names, some in alike.items()}
    return [next(made[_names(item)]) for item in items]


def _alike_entries(
    tube: StoredTube, items: Sequence[Item], given: TimedOptions, now: int | None,
    bind: Callable[[Entry], Entry] | None,
) -> list[Entry]:  # fmt: skip
    """The entries of items with options of the same names. If possible, one is made, and copied for the others."""
    names, made = _names(items[0]), list[Entry]()
    copied = SINGLE_FIELDS.issuperset(names) and not (bind and "group" in names)
    columns = {name: [options[name] for _, options, _ in items] for name in names if copied}
    copied = copied and not any(value is None for column in columns.values() for value in column)
    for data, options, _ in items[:1] if copied else items:
        own = {option: value for option, value in options.items() if value is not None}
        entry = make_entry(tube, data, _delayed(tube, {**given, **own}, now))  # type: ignore[typeddict-item]
        made.append(entry if bind is None else bind(entry))
    if copied and len(items) > 1:
        payloads = [made[0].payload, *[encode_payload(tube, "data", data) for data, _, _ in items[1:]]]
        made = list(copies(made[0], payloads, columns))
    return made


def _delayed(tube: StoredTube, options: TimedOptions, now: int | None) -> PutOptions:
    return options if now is None else with_delay(tube.kind, options, now)


class SettleOp(StoreOp):
    """Apply these moves. Returns for each the record afterwards, or None if its guard failed."""

    __slots__ = ("_moves", "_runtime", "_tube")

    def __init__(self, runtime: BrokerRuntime, tube: StoredTube, moves: Sequence[Move]) -> None:
        self._runtime = runtime
        self._tube = tube
        self._moves = moves

    @property
    def key(self) -> tuple[str, int]:
        return "settle", self._tube.no

    @property
    def size(self) -> int:
        return sum(_EACH + len(move.result or b"") for move in self._moves)

    @property
    def run_if_cancelled(self) -> bool:
        return True  # the work was done, or must be released, even if the caller no longer waits

    def run(self) -> list[Record | None]:
        return settle(self._runtime, self._tube, self._moves)

    def run_batch(self, ops: Sequence[SettleOp]) -> list[list[Record | None]]:
        records = iter(settle(self._runtime, self._tube, [move for op in ops for move in op._moves]))
        return [list(islice(records, len(op._moves))) for op in ops]


def settle(runtime: BrokerRuntime, tube: StoredTube, moves: Sequence[Move]) -> list[Record | None]:
    """Apply guarded moves in one store call. Returns for each the record afterwards, or None if its guard failed."""
    settled = runtime.store.settle(tube, moves, brief=not runtime.has_listener(tube))
    runtime.publish(settled.effects, tube, settled.records)
    return settled.records


class ApplyDueOp(StoreOp):
    """Apply everything that is due in a tube. Returns the milliseconds until the next deadline."""

    __slots__ = ("_runtime", "_tube")

    def __init__(self, runtime: BrokerRuntime, tube: StoredTube) -> None:
        self._runtime = runtime
        self._tube = tube

    @property
    def key(self) -> tuple[str, int]:
        return "apply due", self._tube.no

    def run(self) -> int | None:
        return self._runtime.apply_due(self._tube)

    def run_batch(self, ops: Sequence[ApplyDueOp]) -> list[int | None]:
        return [self.run()] * len(ops)


class OutcomeOp(StoreOp):
    """Look up how the task of an address ended, or that it has not, after everything due is applied."""

    __slots__ = ("_address", "_runtime", "_tube")

    def __init__(self, runtime: BrokerRuntime, tube: StoredTube, address: str) -> None:
        self._runtime = runtime
        self._tube = tube
        self._address = address

    @property
    def key(self) -> tuple[str, int]:
        return "outcome", self._tube.no

    def run(self) -> OutcomeLookup:
        return self.run_batch([self])[0]

    def run_batch(self, ops: Sequence[OutcomeOp]) -> list[OutcomeLookup]:
        self._runtime.reap_if_due()
        self._runtime.apply_due(self._tube)
        return self._runtime.store.outcomes(self._tube, [op._address for op in ops])
