"""Sharded tubes: what they refuse on every store, which shard a task goes to, and ids that tell it.

A store that does not split tubes keeps a sharded one as any other. Tasks that came from elsewhere keep their ids, which
tell no shard: these are the ids up to a `floor`, and the same in the tube and in its shard.
"""

from __future__ import annotations

from collections.abc import Mapping
from zlib import crc32

from penstock.core.values import whole
from penstock.errors import UnsupportedOption

# Whoever finds nothing has asked every shard.
MAX_SHARDS = 256
# What is decided by a look at a whole tube: nobody sees all shards at once.
_REFUSED = ("capacity", "fair")


def check_shards(what: str, value: object) -> int:
    """How many shards a tube may have."""
    return whole(what, value, 1, MAX_SHARDS)


def refuse_with_shards(given: Mapping[str, object]) -> None:
    """UnsupportedOption where a tube cannot have its other options together with shards."""
    for option in _REFUSED:
        if "shards" in given and option in given:
            raise UnsupportedOption(f"a tube with shards={given['shards']} has no option {option}: drop one of the two")


def refuse_sharded(what: str, tube: str, shards: int) -> None:
    """UnsupportedOption where a tube is sharded."""
    if shards > 1:
        raise UnsupportedOption(f"tube {tube} has shards={shards}, so it has no {what}: use a tube without shards")


def shard_of(text: str, shards: int) -> int:
    """The shard of a micro-queue or an address, the same in every process."""
    return crc32(text.encode()) % shards


def home_of(id: int, utube: str | None, address: str | None, shards: int) -> int:
    """The shard of a task that comes from elsewhere, as `own_id` guesses it where neither decides."""
    text = address if utube is None else utube
    return (id - 1) % shards if text is None else shard_of(text, shards)


def public_id(id: int, place: int, shards: int, floor: int = 0) -> int:
    """The id in the tube of a shard's task."""
    return id if id <= floor else floor + (id - floor - 1) * shards + place + 1


def own_id(id: int, shards: int, floor: int = 0) -> tuple[int, int]:
    """The shard of a task of the tube, and its id there; up to the floor, the shard is a guess."""
    return (id - 1 if id <= floor else id - floor - 1) % shards, own_in(id, shards, floor)


def own_in(id: int, shards: int, floor: int = 0) -> int:
    """The id of a task of the tube in its shard, whichever that is."""
    return id if id <= floor else floor + (id - floor - 1) // shards + 1


def last_up_to(id: int, place: int, shards: int, floor: int = 0) -> int:
    """The last id of a shard that is not above an id of the tube."""
    return id if id <= floor else floor + max(0, (id - floor - 1 - place) // shards + 1)
