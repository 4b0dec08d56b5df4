"""What a SQLite store promises by its real settings, and what should be done about them."""

from __future__ import annotations

import os
import shutil

import apsw

from penstock.core.results import Description

# A WAL far beyond its checkpoint size means that some reader never ends.
_LARGE_WAL = 256 * 1024 * 1024
_LITTLE_SPACE = 256 * 1024 * 1024

PROMISES = {
    "FULL": "a put that returned survives a power cut (WAL, synchronous=FULL)",
    "NORMAL": "a put that returned survives the end of any process; a power cut may lose the last moments "
    "(WAL, synchronous=NORMAL)",
}


def describe(db: apsw.Connection, path: str, synchronous: str, schema: int) -> Description:
    """The store as it is now."""
    problem = db.execute("PRAGMA quick_check(1)").get
    advice = [] if problem == "ok" else [f"the file is damaged ({problem}): restore a backup"]
    wal = f"{path}-wal"
    if os.path.exists(wal) and os.path.getsize(wal) > _LARGE_WAL:
        advice.append(f"{wal} has {os.path.getsize(wal) >> 20} MiB: end the reader that keeps it from being reset")
    free = shutil.disk_usage(os.path.dirname(path)).free
    if free < _LITTLE_SPACE:
        advice.append(f"only {free >> 20} MiB are free for {path}: make room before puts fail")
    return Description("SQLite", apsw.sqlite_lib_version(), path, PROMISES[synchronous], schema, advice)
