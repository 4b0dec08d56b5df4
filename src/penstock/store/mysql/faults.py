"""PyMySQL's errors as penstock's, in one place, and which of them may be tried again."""

from __future__ import annotations

import pymysql

from penstock.errors import (
    SchemaMismatch,
    StoreBusy,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreUnavailable,
)  # fmt: skip

# What our own statements fail with where a guard does not hold: a subquery of two rows (`abort` of queries.sql), an
# address that is in use, and the id of a task for a tube that is gone, which is NULL.
ABORTED = 1242
DUPLICATE_KEY = 1062
NO_ID = 1048
GUARDS = frozenset({ABORTED, DUPLICATE_KEY, NO_ID})

TOO_MANY_PREPARED = 1461
DEADLOCK = 1213
LOCK_WAIT = 1205
# The server has undone the transaction, or will when told: the whole of it may be tried again.
RESTARTABLE = frozenset({DEADLOCK, LOCK_WAIT, 1020})  # 1020: the row changed since it was read (MariaDB snapshots)

# The connection is gone, and what was under way may or may not have been done.
_LOST = frozenset({2006, 2013, 2055, 4031, 1927, 1152, 1159, 1160, 1161, 0})
# The server refused or ended the statement itself, so nothing of it was done.
_AWAY = frozenset({2002, 2003, 2005, 1040, 1042, 1043, 1053, 1129, 1130, 1203, 1226, 1290, 1836, 1317})
_DENIED = frozenset({1044, 1045, 1142, 1143, 1227, 1370, 1698, 2059, 2061})
_NO_DATABASE = 1049
_FULL = frozenset({1021, 1041, 1114, 1037, 1038, 28})
# The check of penstock_id.
_IDS_USED_UP = frozenset({4025, 3819})
_DAMAGED = frozenset({126, 127, 1030, 1034, 1035, 1194, 1195, 1712, 1877, 1932})
_FOREIGN = frozenset({1054, 1109, 1146, 1304, 1305, 1318, 1356})


def number(error: BaseException) -> int:
    """The server's or the driver's error number; 0 where it has none."""
    first = error.args[0] if error.args else 0
    return first if isinstance(first, int) else 0


def lost(error: BaseException) -> bool:
    """Whether the connection broke, so that nobody knows what became of the call."""
    if isinstance(error, (pymysql.err.OperationalError, pymysql.err.InterfaceError)):
        return number(error) in _LOST
    return isinstance(error, OSError)


def translated(error: BaseException, where: str) -> StoreError:
    """The error to raise instead, saying what to do next."""
    code = number(error)
    text = (error.args[1] if len(error.args) > 1 else error) or "the connection is closed"  # by the caller of bind
    if lost(error) or code in _AWAY:
        return StoreUnavailable(f"database {where} cannot be reached ({text}): check the server, and try again")
    if code in RESTARTABLE:
        return StoreBusy(f"others kept locking what this call needed in database {where}: try again")
    if code == _NO_DATABASE:
        return StoreUnavailable(f"database {where} does not exist: create it, or name another one in the URL")
    if code in _DENIED:
        return StoreUnavailable(f"database {where} refused this user ({text}): check the URL and the user's rights")
    if code in _IDS_USED_UP:
        return StoreFull(f"a tube in database {where} has used up its 2**40 ids: use another tube")
    if code in _FULL:
        return StoreFull(f"no space left for database {where} ({text}): free some; deletes and acks still work")
    if code in _DAMAGED:
        return StoreCorrupt(f"database {where} is damaged ({text}): it was left as it is; restore a backup")
    if code in _FOREIGN:
        return SchemaMismatch(
            f"database {where} lacks what penstock made there ({text}): restore it, or use an empty one"
        )
    return StoreError(f"database {where}: {text}")
