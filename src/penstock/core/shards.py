"""Sharded tubes: which shard a task goes to, ids that contain the shard, and what sharded tubes do not support.

A store that does not split tubes treats a sharded tube like any other. Imported tasks keep their ids, which do not
contain a shard: these are the ids up to a `floor`, and they are the same in the tube and in its shard.
"""

from __future__ import annotations

from collections.abc import Mapping
from zlib import crc32

from penstock.core.task import NO_UTUBE, Entry, Record
from penstock.core.values import whole
from penstock.errors import UnsupportedOption

# A take that finds nothing has asked every shard.
MAX_SHARDS = 256
# Options that need to see the whole tube; no step sees all shards at once.
_REFUSED = ("capacity", "fair")


def check_shards(what: str, value: object) -> int:
    """Validate the number of shards."""
    return whole(what, value, 1, MAX_SHARDS)


def refuse_with_shards(given: Mapping[str, object]) -> None:
    """Raise UnsupportedOption for options that cannot be combined with shards."""
    for option in _REFUSED:
        if "shards" in given and option in given:
            raise UnsupportedOption(f"a tube with shards={given['shards']} has no option {option}: drop one of the two")


def refuse_sharded(what: str, tube: str, shards: int) -> None:
    """Raise UnsupportedOption if the tube is sharded."""
    if shards > 1:
        raise UnsupportedOption(f"tube {tube} has shards={shards}, so it has no {what}: use a tube without shards")


def shard_of(text: str, shards: int) -> int:
    """The shard of a micro-queue or an address, the same in every process."""
    return crc32(text.encode()) % shards


def home_of(task: Entry | Record, per_utube: bool, shards: int, turn: int) -> int:
    """The shard of a task: by its micro-queue or else its address; otherwise the one whose turn it is."""
    text = (task.utube or NO_UTUBE) if per_utube else task.address
    return turn % shards if text is None else shard_of(text, shards)


def public_id(id: int, place: int, shards: int, floor: int = 0) -> int:
    """The public id of a shard's task."""
    return id if id <= floor else floor + (id - floor - 1) * shards + place + 1


def own_id(id: int, shards: int, floor: int = 0) -> tuple[int, int]:
    """The shard of a task, and its id in that shard. For ids up to the floor, the shard is a guess."""
    return (id - 1 if id <= floor else id - floor - 1) % shards, own_in(id, shards, floor)


def own_in(id: int, shards: int, floor: int = 0) -> int:
    """The id of a task in its shard."""
    return id if id <= floor else floor + (id - floor - 1) // shards + 1


def last_up_to(id: int, place: int, shards: int, floor: int = 0) -> int:
    """The highest id in a shard whose public id is not above the given one."""
    return id if id <= floor else floor + max(0, (id - floor - 1 - place) // shards + 1)
