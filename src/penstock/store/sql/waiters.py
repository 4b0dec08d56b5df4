"""Blocked takes as the SQL servers know them: each has a number, so that none is counted in or out twice."""

from __future__ import annotations

from collections.abc import Sequence
from random import getrandbits

from penstock.core.results import Blocked


class Waiter:
    """A blocked take. `number` is what the server knows it by, once it is counted in."""

    __slots__ = ("counted", "number")

    def __init__(self) -> None:
        self.number = getrandbits(63)
        self.counted = False

    def word(self, blocked: Blocked) -> Blocked:
        """What a take that is sent now has to do to it."""
        if blocked == "unregister":
            return "unregister" if self.counted else None
        return blocked and ("unregister_if_found" if self.counted else "register")

    def undo(self, number: int) -> None:
        """The server was told to count that number out, whether it was in or not."""
        if number == self.number:
            self.number, self.counted = getrandbits(63), False


class Waiters:
    """The blocked takes of one store. Those of one handle on the same tubes stand for each other."""

    def __init__(self) -> None:
        self._waiting: dict[tuple[str, tuple[int, ...]], list[Waiter]] = {}

    def find(self, handle: str, tubes: Sequence[int], blocked: Blocked) -> Waiter:
        """Whom a take is about."""
        place = (handle, tuple(tubes))
        waiting = self._waiting.get(place)
        if not waiting or blocked not in ("unregister_if_found", "unregister"):
            return Waiter()
        waiter = waiting.pop()
        if not waiting:
            self._waiting.pop(place, None)
        return waiter

    def keep(self, handle: str, tubes: Sequence[int], waiter: Waiter, counted: bool = True) -> None:
        """It goes on waiting; whether the server has counted it in."""
        waiter.counted = counted
        self._waiting.setdefault((handle, tuple(tubes)), []).append(waiter)
