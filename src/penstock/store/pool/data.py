"""Data put back into records that came from an index without it."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Sequence

from msgspec.structs import replace

from penstock.core.results import Effects, Event
from penstock.core.task import Record
from penstock.store.pool.vault import Vault

# Data of taken tasks that is kept in all; beyond it, the oldest is dropped and read from the vault when it is needed.
_MOST_BYTES = 16 * 1024 * 1024


class Data:
    """Reads what records lack, each tube's in one query; holds the data of tasks that this process has taken."""

    def __init__(self, vault: Vault) -> None:
        self._vault = vault
        self.reset()

    def reset(self) -> None:
        """Forget what is held; in a forked child, too."""
        self._lock = threading.Lock()
        self._held: dict[tuple[int, int], bytes] = {}  # by tube number and task id
        self._bytes = 0

    def keep(self, tube: int, id: int, data: bytes) -> None:
        """Hold the data of a task that was handed out, so that settling it asks nobody."""
        with self._lock:
            self._forget(tube, id)
            self._held[tube, id] = data
            self._bytes += len(data)
            while self._bytes > _MOST_BYTES:
                self._forget(*next(iter(self._held)))

    def forget(self, tube: int, id: int) -> None:
        """The hand-out is over."""
        with self._lock:
            self._forget(tube, id)

    def _forget(self, tube: int, id: int) -> None:
        self._bytes -= len(self._held.pop((tube, id), b""))

    def fill(self, tube: int, records: list[Record | None], effects: Effects, *, held: bool = False) -> None:
        """Complete the records of a tube and those of the events; `held`: with what is held, if it is."""
        wanted = {(tube, record.id) for record in records if record is not None and not record.payload}
        wanted |= {(event.tube, event.record.id) for event in effects.events if not event.record.payload}
        found = {key: data for key in wanted if (data := self._held.get(key)) is not None} if held else {}
        missing: defaultdict[int, list[int]] = defaultdict(list)
        for no, id in wanted - found.keys():
            missing[no].append(id)
        for no, ids in missing.items():
            found.update(((no, id), data) for id, data in self._vault.data(no, ids).items())

        def completed(no: int, record: Record) -> Record:
            data = None if record.payload else found.get((no, record.id))
            return record if data is None else replace(record, payload=data)

        records[:] = [record and completed(tube, record) for record in records]
        effects.events[:] = [
            Event(event.tube, event.name, completed(event.tube, event.record)) for event in effects.events
        ]

    def complete(self, tube: int, records: Sequence[Record | None]) -> list[Record | None]:
        """The records of a tube with their data."""
        filled = list(records)
        self.fill(tube, filled, Effects())
        return filled
