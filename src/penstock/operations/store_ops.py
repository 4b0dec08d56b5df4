"""The steps that verbs are made of, each able to share a store call with others of its sort."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING

from penstock.core.ending import Sought
from penstock.core.lifecycle import Move
from penstock.core.options import Tube as StoredTube
from penstock.core.task import Entry, Record
from penstock.operations.operation import Step

if TYPE_CHECKING:
    from penstock.broker.settling import Settling
    from penstock.broker.tube import Tube
    from penstock.runtime.runtime import Hub

# What a task or a move adds to the size of a call beyond its payload: some ten thousand of them fill one.
_EACH = 400


class Puts(Step):
    """Store these entries, all or none; TubeFull at once where there is no room. Answers their records."""

    __slots__ = ("_entries", "_tube")

    def __init__(self, tube: Tube, entries: Sequence[Entry]) -> None:
        self._tube = tube
        self._entries = entries

    @property
    def key(self) -> tuple[str | int, ...]:
        stored = self._tube._stored
        if stored.shards > 1 and any(entry.address is not None for entry in self._entries):
            # Alone: a part of it may be refused when others are stored, and those of a batch would be put again.
            return "put", stored.no, id(self)
        return "put", stored.no

    @property
    def size(self) -> int:
        entries = self._entries
        if len(entries) == 1:
            return _EACH + len(entries[0].payload)
        return sum(_EACH + len(entry.payload) for entry in entries)

    def run(self) -> list[Record]:
        return self._tube._put_now(self._entries)

    def together(self, steps: Sequence[Puts]) -> list[list[Record]]:
        records = iter(self._tube._put_now([entry for step in steps for entry in step._entries]))
        return [list(islice(records, len(step._entries))) for step in steps]


class Moves(Step):
    """Settle by these moves. Answers for each the record afterwards, or None where its guard failed."""

    __slots__ = ("_moves", "_tube")

    def __init__(self, tube: Settling, moves: Sequence[Move]) -> None:
        self._tube = tube
        self._moves = moves

    @property
    def key(self) -> tuple[str, int]:
        return "settle", self._tube._stored.no

    @property
    def size(self) -> int:
        return sum(_EACH + len(move.result or b"") for move in self._moves)

    @property
    def binding(self) -> bool:
        return True  # a caller that is gone meant it all the same: the work was done, or is to be given back

    def run(self) -> list[Record | None]:
        return self._tube._settle_now(self._moves)

    def together(self, steps: Sequence[Moves]) -> list[list[Record | None]]:
        records = iter(self._tube._settle_now([move for step in steps for move in step._moves]))
        return [list(islice(records, len(step._moves))) for step in steps]


class CatchUp(Step):
    """Do everything that is due in a tube. Answers the milliseconds until the next moment."""

    __slots__ = ("_hub", "_tube")

    def __init__(self, hub: Hub, tube: StoredTube) -> None:
        self._hub = hub
        self._tube = tube

    @property
    def key(self) -> tuple[str, int]:
        return "catch up", self._tube.no

    def run(self) -> int | None:
        return self._hub.catch_up(self._tube)

    def together(self, steps: Sequence[CatchUp]) -> list[int | None]:
        return [self.run()] * len(steps)


class Seek(Step):
    """How the task of an address ended, or that it has not; what is due is done first."""

    __slots__ = ("_address", "_hub", "_tube")

    def __init__(self, hub: Hub, tube: StoredTube, address: str) -> None:
        self._hub = hub
        self._tube = tube
        self._address = address

    @property
    def key(self) -> tuple[str, int]:
        return "seek", self._tube.no

    def run(self) -> Sought:
        return self.together([self])[0]

    def together(self, steps: Sequence[Seek]) -> list[Sought]:
        self._hub.tend()
        self._hub.catch_up(self._tube)
        return [self._hub.store.outcome(self._tube, step._address) for step in steps]
