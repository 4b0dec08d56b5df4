"""Calls of several steps: what it means when one of them fails. Knows no store."""

from __future__ import annotations

from collections.abc import Sized
from types import TracebackType

from penstock.errors import OutcomeUnknown, StoreError


class stepwise:  # noqa: N801
    """Around a step of a call that has several: what fails when some are done has changed something, and says so."""

    __slots__ = ("_done",)

    def __init__(self, done: Sized) -> None:
        self._done = done

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if isinstance(error, StoreError) and not isinstance(error, OutcomeUnknown) and self._done:
            what = f"the call goes in steps, and {len(self._done)} tasks are done: look first"
            raise OutcomeUnknown(f"{error}; {what}") from error
