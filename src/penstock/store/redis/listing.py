"""What a tube has, in the order of ids: its tasks, or its outcomes. Redis keeps neither so.

The ids are listed once for all pages, which costs eight bytes each; those of a sharded tube, of all shards together.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple, cast

from penstock.core.options import Tube
from penstock.core.shards import own_in
from penstock.store.redis import finding
from penstock.store.redis.keys import task_id, task_key
from penstock.store.redis.runner import Runner
from penstock.store.redis.shards import Shards

# An entry is an id above the place of its shard: see MAX_SHARDS in penstock.core.shards.
_PLACE_BITS = 8
_PLACES = (1 << _PLACE_BITS) - 1


class Found(NamedTuple):
    """Something that is stored: the id that people know, where it is, and its id there."""

    id: int
    shard: Tube
    own: int
    value: bytes


class Listing:
    """The pages of the tube that is read now."""

    def __init__(self, runner: Runner, shards: Shards) -> None:
        self._runner = runner
        self._shards = shards
        self._listed: dict[tuple[int, str], array[int]] = {}

    def pages(self, tube: Tube, part: str, after: int, limit: int) -> Iterator[list[Found]]:
        """All above an id, so many ids at a time; what went since they were listed is left out."""
        which = tube.no, part
        if after == 0 or which not in self._listed:
            self._listed = {which: array("Q", sorted(self._entries(tube, part)))}
        entries = self._listed[which]
        start = bisect_right(entries, after << _PLACE_BITS | _PLACES)
        for at in range(start, len(entries), limit):
            yield self._values(tube, part, entries[at : at + limit])

    def _entries(self, tube: Tube, part: str) -> set[int]:
        return {
            self._shards.public_id(shard.no, task_id(field)) << _PLACE_BITS | place
            for place, shard in enumerate(self._shards.of(tube))
            for field, _ in finding.scan(self._runner, shard, part)
        }

    def _values(self, tube: Tube, part: str, entries: Sequence[int]) -> list[Found]:
        shards, floor = self._shards.of(tube), self._shards.floor(tube)
        ids: dict[int, list[int]] = {}
        for entry in entries:
            ids.setdefault(entry & _PLACES, []).append(entry >> _PLACE_BITS)
        owns = {place: [own_in(id, len(shards), floor) for id in here] for place, here in ids.items()}
        keys = {place: self._runner.keys.name(shards[place].no, part) for place in ids}
        replies = self._runner.servers.command_all(
            [(key, (b"HMGET", key, *map(task_key, owns[place]))) for place, key in keys.items()]
        )
        found = [
            Found(id, shards[place], own, value)
            for place, values in zip(ids, cast("list[list[bytes | None]]", replies), strict=True)
            for id, own, value in zip(ids[place], owns[place], values, strict=True)
            if value is not None
        ]
        return sorted(found, key=lambda one: one.id)
