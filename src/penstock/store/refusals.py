"""What a store raises where a tube cannot serve a call: the same words in every store."""

from penstock.core.refusals import (
    name_in_use,
    refuse_busy,
    tube_awaited,
    tube_exists,
    tube_full,
    tube_missing,
    tube_taken,
)

__all__ = ["name_in_use", "refuse_busy", "tube_awaited", "tube_exists", "tube_full", "tube_missing", "tube_taken"]
