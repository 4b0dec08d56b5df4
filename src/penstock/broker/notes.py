"""Small records that penstock stores for operators: worker reports, history, audit lines, bulk actions.

They are tasks of a tube whose name users cannot choose, so no listing shows it and no worker takes from it. Each
record has a key and expires.
"""

from __future__ import annotations

from typing import Any

from penstock.broker.session import SessionHandle
from penstock.broker.tube import Tube, find_records
from penstock.broker.tube_factory import DEFAULT_KIND, make_handle
from penstock.core.kind import find_kind
from penstock.core.lifecycle import Move
from penstock.core.options import check_new_tube
from penstock.core.task import Record, make_task
from penstock.core.transfer import internal
from penstock.engine.store import load_tube
from penstock.operations.store_ops import settle
from penstock.runtime.runtime import BrokerRuntime

# Outcomes of records are not needed. A small max_payload lets one call read more records.
_OPTIONS = {"retention": 1.0, "max_payload": 128 * 1024}


class Notes:
    """The records of one subject. Keeps the newest `most` of them."""

    def __init__(self, runtime: BrokerRuntime, subject: str, most: int) -> None:
        self._runtime = runtime
        self._name = internal(subject)
        self._most = most
        self._tube: Tube | None = None

    def write(self, key: str, value: object, seconds: float, *, keep: bool = False) -> Any:
        """Store a value under a key for some seconds. With `keep`, an existing value stays.

        Returns the stored value.
        """
        tube = self._open(create=True)
        assert tube is not None
        self._runtime.apply_due(tube.stored)
        stored = tube.put(value, address=key, ttl=seconds, on_duplicate="ignore" if keep else "replace")
        if self._runtime.store.counters(tube.stored).counts.stored > self._most:
            oldest = self._records(tube, max(1, self._most // 10))
            settle(self._runtime, tube.stored, [Move("delete", record.id) for record in oldest])
        return stored.data

    def read(self) -> dict[str, Any]:
        """Return all records by key, the oldest first."""
        tube = self._open(create=False)
        if tube is None:
            return {}
        return {str(record.address): make_task(record, tube).data for record in self._records(tube, self._most)}

    def count(self) -> int:
        """Return the number of records, by the counter of their tube, which may include some that have just expired."""
        tube = self._open(create=False)
        return 0 if tube is None else self._runtime.store.counters(tube.stored).counts.stored

    def has(self, key: str) -> bool:
        """Return whether a record has that key."""
        tube = self._open(create=False)
        return tube is not None and key in tube

    def remove(self, key: str) -> None:
        """Remove the record with that key, if there is one."""
        if self.has(key):
            assert self._tube is not None
            self._tube.delete(address=key)

    def _records(self, tube: Tube, limit: int) -> list[Record]:
        return list(find_records(tube, None, limit))

    def _open(self, *, create: bool) -> Tube | None:
        if self._tube is None:
            store = self._runtime.store
            stored = load_tube(store, self._name)
            if stored is None and create:
                kind = find_kind(DEFAULT_KIND)
                stored = store.save_tube(self._name, kind, check_new_tube(kind, _OPTIONS), exist_ok=True)
            if stored is not None:
                self._tube = make_handle(self._runtime, SessionHandle(self._runtime, implicit=True), stored)
        return self._tube
