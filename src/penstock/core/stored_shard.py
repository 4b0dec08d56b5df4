"""One shard of a sharded tube, as a stored tube with its own ids, and the public ids of its tasks and groups."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from msgspec.structs import replace

from penstock.core.options import Tube
from penstock.core.results import Finding
from penstock.core.shards import public_id
from penstock.core.task import Record
from penstock.core.transfer import StoredOutcome

R = TypeVar("R", bound="Record | StoredOutcome | Finding | None")


class Shard(Tube, frozen=True):
    """One stored tube of a sharded tube. Its number follows that of the tube, which has no keys itself."""

    tube_no: int = 0
    place: int = 0
    of: int = 1
    #: Ids up to this one came from another store.
    floor: int = 0

    @property
    def public_no(self) -> int:
        return self.tube_no

    def public_id(self, id: int) -> int:
        return public_id(id, self.place, self.of, self.floor)

    def shown(self, record: Record) -> Record:
        return replace(record, id=self.public_id(record.id))


def public(stored: Tube, items: Iterable[R]) -> list[R]:
    """Tasks, outcomes or findings of a stored tube with their public ids."""
    if not isinstance(stored, Shard):
        return list(items)

    def shown(item: Any) -> Any:
        return replace(item, id=stored.public_id(item.id)) if item and isinstance(item.id, int) else item

    return list(map(shown, items))


def shard_at(tube: Tube, place: int, floor: int) -> Shard:
    """The shard of a tube at that place."""
    fields = {**{name: getattr(tube, name) for name in tube.__struct_fields__}, "no": tube.no + 1 + place, "shards": 1}
    return Shard(**fields, tube_no=tube.no, place=place, of=tube.shards, floor=floor)
