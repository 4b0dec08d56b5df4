"""The audit trail of the dashboard: who did what and when, in the log and in the store."""

from __future__ import annotations

import itertools
import logging
import os
import time

import msgspec

from penstock.broker.notes import Notes
from penstock.errors import PenstockError
from penstock.server.http.store_access import Access

log = logging.getLogger("penstock.audit")

KEPT_SECONDS = 30 * 24 * 3600.0
MAX_KEPT = 1000


class AuditLine(msgspec.Struct, frozen=True):
    """One action: `what` in words, and `where`, a path of the dashboard or ""."""

    at: float
    who: str
    what: str
    where: str = ""


class AuditTrail:
    """The audit lines of the store, from all its servers."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._notes = Notes(access.broker.sync.runtime, "audit", MAX_KEPT)
        self._server, self._numbers = os.urandom(6).hex(), itertools.count(1)

    async def note(self, who: str, what: str, where: str = "") -> None:
        """Write an audit line. The action is already done, so if the store fails, only the stored line is lost."""
        log.info("%s: %s", who, what)
        line = AuditLine(time.time(), who, what, where)
        key = f"{self._server} {next(self._numbers)}"
        try:
            await self._access.call(self._notes.write, key, msgspec.to_builtins(line), KEPT_SECONDS)
        except PenstockError as error:
            log.warning("could not store an audit line (%s); it is in this log only", error)

    async def newest_first(self) -> list[AuditLine]:
        """All stored audit lines, newest first."""
        kept = await self._access.call(self._notes.read)
        return list(reversed([msgspec.convert(value, AuditLine) for value in kept.values()]))

    async def count(self) -> int:
        """The number of stored lines, without reading them."""
        return await self._access.call(self._notes.count)
