"""apsw's errors as penstock's, in one place."""

from __future__ import annotations

import apsw

from penstock.errors import StoreBusy, StoreCorrupt, StoreError, StoreFull, StoreUnavailable


def translated(error: apsw.Error, path: str) -> StoreError:
    """The error to raise instead, saying what to do next."""
    if isinstance(error, (apsw.BusyError, apsw.LockedError)):
        return StoreBusy(f"{path} was locked by another process for too long: try again, or end what holds it")
    if isinstance(error, apsw.FullError):
        return StoreFull(f"no space left for {path}: free some and try again; nothing was half done")
    if isinstance(error, (apsw.CorruptError, apsw.NotADBError)):
        return StoreCorrupt(f"{path} is damaged or no SQLite file ({error}): it was left as it is; restore a backup")
    if isinstance(error, apsw.ReadOnlyError):
        return StoreUnavailable(f"{path} or its folder is read-only: make both writable for this user")
    if isinstance(error, apsw.CantOpenError):
        return StoreUnavailable(f"{path} cannot be opened ({error}): check that its folder exists and is writable")
    if isinstance(error, apsw.IOError):
        return StoreUnavailable(f"reading or writing {path} failed ({error}): check the disk")
    return StoreError(f"{path}: {error}")
