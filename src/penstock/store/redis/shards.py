"""A sharded tube is as many stored tubes, its shards, each in a slot of its own and with ids of its own.

Whoever asks the store sees one tube. Scripts, sessions, outboxes and checks know the shards alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from msgspec.structs import replace

from penstock.core.options import Tube
from penstock.core.shards import public_id, shard_of
from penstock.core.task import NO_UTUBE, Record
from penstock.store.base import Effects, Event, Finding
from penstock.store.moving import is_arriving
from penstock.store.redis.keys import MAX_ID

R = TypeVar("R", bound="Record | None")


class Shard(Tube, frozen=True):
    """One stored tube of a sharded one. Its number follows from the tube's, which names no keys itself."""

    tube_no: int = 0
    place: int = 0
    of: int = 1
    #: Ids up to this one came from another store.
    floor: int = 0


class Shards:
    """The shards that one store has met, by their numbers."""

    def __init__(self) -> None:
        self._of_tube: dict[int, Sequence[Shard]] = {}
        self._by_no: dict[int, Shard] = {}
        self._floors: dict[int, int] = {}

    def learn(self, no: int, floor: int) -> None:
        """The tube of that number came from another store, with ids up to this one; 0: it did not."""
        if floor:
            self._floors[no] = floor

    def floor(self, tube: Tube) -> int:
        """The last id that came from another store; in a tube that is arriving all do."""
        return MAX_ID if is_arriving(tube.name) else self._floors.get(tube.no, 0)

    def of(self, tube: Tube) -> Sequence[Tube]:
        """The stored tubes of a tube: itself, unless it is sharded."""
        if tube.shards == 1:
            return (tube,)
        shards = self._of_tube.get(tube.no)
        if shards is None or shards[0].name != tube.name:  # it has landed since
            floor = self.floor(tube)
            shards = [_shard(tube, place, floor) for place in range(tube.shards)]
            self._by_no.update((shard.no, shard) for shard in shards)
            self._of_tube[tube.no] = shards
        return shards

    def for_replies(self, tube: Tube, source: int) -> Tube:
        """Where replies from another tube go: always to the same shard, which knows what it has got from there."""
        if tube.shards == 1:
            return tube
        laned = tube.kind.per_utube
        return self.of(tube)[shard_of(NO_UTUBE, tube.shards) if laned else source % tube.shards]

    def public_id(self, no: int, id: int) -> int:
        """The id that people know, of a task of that stored tube."""
        shard = self._by_no.get(no)
        return id if shard is None else public_id(id, shard.place, shard.of, shard.floor)

    def public(self, no: int, records: Sequence[R]) -> list[R]:
        """The same of records."""
        shard = self._by_no.get(no)
        if shard is None:
            return list(records)
        place, of, floor = shard.place, shard.of, shard.floor
        return [
            replace(record, id=public_id(record.id, place, of, floor)) if isinstance(record, Record) else record
            for record in records
        ]

    def finding(self, no: int, found: Finding) -> Finding:
        """The same of what a check found."""
        return replace(found, id=self.public_id(no, found.id)) if isinstance(found.id, int) else found

    def translate(self, effects: Effects) -> None:
        """Let the effects of a step speak of sharded tubes in place of their shards. A second time changes nothing."""
        by_no = self._by_no
        if not by_no:
            return
        effects.events = [self._event(event) if event.tube in by_no else event for event in effects.events]
        for counts in (effects.readied, effects.removed):
            for no in [no for no in counts if no in by_no]:
                add(counts, by_no[no].tube_no, counts.pop(no))
        effects.ended = [
            (what, by_no[no].tube_no, self.public_id(no, id)) if no in by_no else (what, no, id)
            for what, no, id in effects.ended
        ]

    def _event(self, event: Event) -> Event:
        [record] = self.public(event.tube, [event.record])
        return Event(self._by_no[event.tube].tube_no, event.name, record)


def add(counts: dict[int, int], no: int, by: int) -> None:
    """Count something of a tube."""
    counts[no] = counts.get(no, 0) + by


def merge(effects: Effects, more: Effects) -> None:
    """Add what a further step did."""
    effects.events += more.events
    effects.ended += more.ended
    for counts, others in ((effects.readied, more.readied), (effects.removed, more.removed)):
        for no, by in others.items():
            add(counts, no, by)


def _shard(tube: Tube, place: int, floor: int) -> Shard:
    fields = {**{name: getattr(tube, name) for name in tube.__struct_fields__}, "no": tube.no + 1 + place, "shards": 1}
    return Shard(**fields, tube_no=tube.no, place=place, of=tube.shards, floor=floor)
