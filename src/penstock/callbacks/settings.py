"""What calling callbacks needs to be told."""

from __future__ import annotations

import msgspec

from penstock.callbacks.allow import AllowList

PER_HOST = 8


class Settings(msgspec.Struct, frozen=True):
    """Who may be called, with which keys it is signed, and how many calls one host gets at once."""

    allowed: AllowList
    keys: tuple[bytes, ...]
    per_host: int = PER_HOST
