"""psycopg's errors as penstock's, in one place."""

from __future__ import annotations

import psycopg
from psycopg import errors as pg

from penstock.errors import (
    OutcomeUnknown,
    PenstockError,
    StoreBusy,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreUnavailable,
)

# The whole transaction was undone, and may be tried again.
AGAIN = (pg.DeadlockDetected, pg.SerializationFailure)
# The same, of a call on the engine, which looks again: also where a guard failed (1 / 0), an address or a name has come
# into use, or somebody held what it needs for two seconds.
CONFLICTS = (*AGAIN, pg.DivisionByZero, pg.UniqueViolation, pg.LockNotAvailable)


def translated(error: psycopg.Error, place: str) -> PenstockError:
    """The error to raise instead when the connection lives or was never made, saying what to do next."""
    text = str(error).strip().partition("\n")[0]
    match error:
        case pg.LockNotAvailable() | pg.QueryCanceled() | pg.DeadlockDetected() | pg.SerializationFailure():
            return StoreBusy(f"{place}: somebody held what this call needs for too long ({text}): try again")
        case pg.TooManyConnections():
            return StoreBusy(f"{place} takes no more connections: raise max_connections, or lower pool_size")
        case pg.SequenceGeneratorLimitExceeded():
            return StoreFull(f"{place} has used up the ids of a tube ({text}): use another tube")
        case pg.DiskFull() | pg.OutOfMemory() | pg.ConfigurationLimitExceeded():
            return StoreFull(f"{place} has no room left ({text}): free some; deletes and acks may still work")
        case pg.DataCorrupted() | pg.IndexCorrupted():
            return StoreCorrupt(f"{place} is damaged ({text}): it was left as it is; restore a backup")
        case pg.ReadOnlySqlTransaction():
            return StoreUnavailable(f"{place} is read-only, a standby perhaps: connect to the primary")
        case pg.InsufficientPrivilege():
            return StoreUnavailable(f"{place} refuses this user ({text}): grant it the schema")
        case pg.UndefinedTable() | pg.UndefinedFunction() | pg.InvalidSchemaName() | pg.UndefinedObject():
            return StoreCorrupt(f"{place} lost a part of its schema ({text}): restore a backup")
        case psycopg.OperationalError():
            return StoreUnavailable(f"{place} cannot be reached ({text}): check that it runs and accepts this user")
    return StoreError(f"{place}: {text}")


def unknown(place: str) -> OutcomeUnknown:
    """The connection broke while a call was under way that must not be made twice."""
    return OutcomeUnknown(f"the connection to {place} broke during the call: it may or may not be stored; look before")


def lost(place: str) -> StoreUnavailable:
    """The connection broke, and again at the next try."""
    return StoreUnavailable(f"the connection to {place} broke: check that it runs")
