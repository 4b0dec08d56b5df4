"""Steps of one key, gathered in order of arrival and carried out by as few store calls as can be."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from copy import copy
from typing import Any, Generic, TypeVar

from penstock.errors import NoSuchTube, PenstockError, StoreError
from penstock.operations.operation import Failure, Step

C = TypeVar("C", bound=Hashable)
# One store call carries at most so much: a long batch holds up the others, and servers refuse huge statements.
BATCH_SIZE = 4 * 1024 * 1024


class Lane(Generic[C]):
    """The steps of one key, by their callers: while some are away, those asked for meanwhile wait here."""

    __slots__ = ("busy", "key", "waiting")

    def __init__(self, key: Hashable) -> None:
        self.key = key
        self.waiting: dict[C, Step] = {}
        self.busy = False

    def cut(self) -> dict[C, Step]:
        """What goes into the next store call; the rest stays."""
        size = sum(step.size for step in self.waiting.values())
        batch, left = self.waiting, list[tuple[C, Step]]()
        while size > BATCH_SIZE and len(batch) > 1:
            left.append(batch.popitem())
            size -= left[-1][1].size
        self.waiting = dict(reversed(left))
        return batch


def carry_out(steps: Sequence[Step]) -> list[Any]:
    """An answer, or a Failure, for each of these steps of one key. Blocks.

    A batch that is refused because of one of them is halved, until each has its own answer.
    """
    try:
        return steps[0].together(steps)
    except BaseException as error:
        # The same for all: what is wrong with the store or the tube, and what may have happened all the same.
        if len(steps) == 1 or not isinstance(error, PenstockError) or isinstance(error, (StoreError, NoSuchTube)):
            return [Failure(twin(error)) for _ in steps]
    middle = len(steps) // 2
    return carry_out(steps[:middle]) + carry_out(steps[middle:])


def twin(error: BaseException) -> BaseException:
    """An error of its own for each caller, because one that is raised carries its caller's traceback."""
    if not isinstance(error, PenstockError):
        return error
    same = copy(error).with_traceback(error.__traceback__)
    same.__cause__ = error.__cause__
    return same
