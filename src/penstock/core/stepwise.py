"""Calls of several steps: what it means when one of them fails. Knows no store."""

from __future__ import annotations

from collections.abc import Iterator, Sized
from contextlib import contextmanager

from penstock.errors import OutcomeUnknown, StoreError


@contextmanager
def stepwise(done: Sized) -> Iterator[None]:
    """Around a step of a call that has several: what fails when some are done has changed something, and says so."""
    try:
        yield
    except OutcomeUnknown:
        raise
    except StoreError as error:
        if not done:
            raise
        raise OutcomeUnknown(f"{error}; the call goes in steps, and {len(done)} tasks are done: look first") from error
