"""PyMySQL's errors as penstock's, in one place, and which of them may be retried."""

from __future__ import annotations

import pymysql

from penstock.errors import SchemaMismatch, StoreBusy, StoreCorrupt, StoreError, StoreFull, StoreUnavailable
from penstock.store.sql.migrations import ANOTHER_SCHEMA

# Our own statements fail with these where a guard does not hold: a subquery of two rows (`require` of queries.sql), an
# address that is in use, and the id of a task for a tube that is gone, which is NULL.
DUPLICATE_KEY = 1062
GUARDS = frozenset({1242, DUPLICATE_KEY, 1048})

TOO_MANY_PREPARED = 1461
NO_SUCH_TABLE = 1146
# A column that is there, is not there, or cannot be dropped: what a migration says that has run before.
CHANGED_BEFORE = (1060, 1054, 1091)
DEADLOCK = 1213
LOCK_WAIT = 1205
# The transaction was undone, or is when we say so: all of it may be retried.
RESTARTABLE = frozenset({DEADLOCK, LOCK_WAIT, 1020})  # 1020: the row changed since it was read (MariaDB snapshots)

# The connection is gone, and the call may or may not have been done.
_LOST = frozenset({2006, 2013, 2055, 4031, 1927, 1152, 1159, 1160, 1161, 0})
# The server refused or ended the statement itself, so nothing of it was done.
_AWAY = frozenset({2002, 2003, 2005, 1040, 1042, 1043, 1053, 1129, 1130, 1203, 1226, 1290, 1836, 1317})
_DENIED = frozenset({1044, 1045, 1142, 1143, 1227, 1370, 1698, 2059, 2061})
_NO_DATABASE = frozenset({1049})
_FULL = frozenset({1021, 1041, 1114, 1037, 1038, 28})
_IDS_USED_UP = frozenset({4025, 3819})  # the check of penstock_id
_DAMAGED = frozenset({126, 127, 1030, 1034, 1035, 1194, 1195, 1712, 1877, 1932})
_FOREIGN = frozenset({1054, 1109, NO_SUCH_TABLE, 1304, 1305, 1318, 1356})

_MEANINGS: list[tuple[frozenset[int], type[StoreError], str]] = [
    (_AWAY, StoreUnavailable, "database {where} cannot be reached ({text}): check the server, and try again"),
    (RESTARTABLE, StoreBusy, "others kept locking what this call needed in database {where}: try again"),
    (_NO_DATABASE, StoreUnavailable, "database {where} does not exist: create it, or name another one in the URL"),
    (_DENIED, StoreUnavailable, "database {where} refused this user ({text}): check the URL and the user's rights"),
    (_IDS_USED_UP, StoreFull, "a tube in database {where} has used up its 2**40 ids: use another tube"),
    (_FULL, StoreFull, "no space left for database {where} ({text}): free some; deletes and acks still work"),
    (_DAMAGED, StoreCorrupt, "database {where} is damaged ({text}): it was left as it is; restore a backup"),
    (
        _FOREIGN,
        SchemaMismatch,
        f"database {{where}} has another schema than this penstock ({{text}}): {ANOTHER_SCHEMA}",
    ),
]


def number(error: BaseException) -> int:
    """The server's or the driver's error number; 0 if it has none."""
    first = error.args[0] if error.args else 0
    return first if isinstance(first, int) else 0


def lost(error: BaseException) -> bool:
    """Whether the connection broke, so that nobody knows what became of the call."""
    if isinstance(error, (pymysql.err.OperationalError, pymysql.err.InterfaceError)):
        return number(error) in _LOST
    return isinstance(error, OSError)


def translated(error: BaseException, where: str) -> StoreError:
    """The error to raise instead, saying what to do next."""
    code = next(iter(_AWAY)) if lost(error) else number(error)
    text = (error.args[1] if len(error.args) > 1 else error) or "the connection is closed"  # by the caller of bind
    for codes, kind, message in _MEANINGS:
        if code in codes:
            return kind(message.format(where=where, text=text))
    return StoreError(f"database {where}: {text}")
