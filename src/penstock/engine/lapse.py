"""How long a session of this process lives without a heartbeat."""

from __future__ import annotations

import os

from penstock.core.names import shown
from penstock.errors import BadValue

_VARIABLE = "PENSTOCK_LAPSE"
_DEFAULT = 15_000
# Seconds. Below a few, every slow query would end a session.
_SHORTEST, _LONGEST = 3, 86_400


def read_lapse() -> int:
    """The milliseconds that PENSTOCK_LAPSE says, in seconds; BadValue if it says none."""
    given = os.environ.get(_VARIABLE)
    if not given:
        return _DEFAULT
    try:
        seconds = float(given)
    except ValueError:
        seconds = 0.0
    if not _SHORTEST <= seconds <= _LONGEST:
        raise BadValue(
            f"{_VARIABLE} {shown(given)} is not a number of seconds: give one from {_SHORTEST} to {_LONGEST}"
        )
    return round(seconds * 1000)


def _at_start() -> int:
    try:
        return read_lapse()
    except BadValue:  # connect raises it, where a program can report it
        return _DEFAULT


#: A session of this process lapses when it was not heard of for this long. The variable is read once, at the start.
LAPSE_MS = _at_start()
