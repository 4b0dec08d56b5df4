"""Why a callback is not called."""

from __future__ import annotations


class Refused(Exception):
    """The callback must not be called as it is; the message says why, and what would open it."""
