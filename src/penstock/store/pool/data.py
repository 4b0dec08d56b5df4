"""Data put back into records that came from an index without it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from msgspec.structs import replace

from penstock.core.results import Effects, Event
from penstock.core.task import Record
from penstock.store.pool.held import Held
from penstock.store.pool.vault import Vault

Found = dict[tuple[int, int], bytes]


class Data:
    """Reads what records lack, each tube's in one query."""

    def __init__(self, vault: Vault) -> None:
        self._vault = vault
        self.held = Held()

    def fill(self, tube: int, records: list[Record | None], effects: Effects, *, held: bool = False) -> None:
        """Complete the records of a tube, and those that are told of; `held`: with what is held, where it is."""
        wanted = {(tube, record.id) for record in records if record is not None and not record.payload}
        wanted |= {(event.tube, event.record.id) for event in effects.events if not event.record.payload}
        found = self._read(wanted, held)
        records[:] = [record and _completed(tube, record, found) for record in records]
        effects.events[:] = [
            Event(event.tube, event.name, _completed(event.tube, event.record, found)) for event in effects.events
        ]

    def complete(self, tube: int, records: Sequence[Record | None]) -> list[Record | None]:
        """The same of records alone."""
        filled = list(records)
        self.fill(tube, filled, Effects())
        return filled

    def settled(self, tube: int, records: Sequence[Record | None]) -> None:
        """What is not taken any more is not held any more."""
        for record in records:
            if record is not None and record.state != "t":
                self.held.forget(tube, record.id)

    def _read(self, wanted: set[tuple[int, int]], held: bool) -> Found:
        found: Found = {}
        missing: defaultdict[int, list[int]] = defaultdict(list)
        for tube, id in wanted:
            data = self.held.find(tube, id) if held else None
            if data is None:
                missing[tube].append(id)
            else:
                found[tube, id] = data
        for tube, ids in missing.items():
            found.update(((tube, id), data) for id, data in self._vault.data(tube, ids).items())
        return found


def _completed(tube: int, record: Record, found: Found) -> Record:
    data = None if record.payload else found.get((tube, record.id))
    return record if data is None else replace(record, payload=data)
