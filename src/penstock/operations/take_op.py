"""Looks for ready tasks on behalf of one take, or of all that ask at one moment.

Blocked takes that share their looks share their place in the store, too: it counts them as one, so that drop and
sessions see that somebody waits, and no step is spent on each of thousands.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, cast

from penstock.core.results import Blocked, Taken
from penstock.core.task import Task
from penstock.errors import PenstockError
from penstock.operations.batch import twin
from penstock.operations.operation import Failure, Step

if TYPE_CHECKING:
    from penstock.broker.session_handle import Seat
    from penstock.broker.tube import Tube

# What one task may add to the size of a call: its data is not known before.
_EACH = 4096

Got = tuple[list[Task], Taken]


class Line:
    """Blocked takes of one session on the same tubes: how many, and the handle that the store has them under."""

    __slots__ = ("handle", "waiting")

    def __init__(self) -> None:
        self.waiting = 0
        self.handle = ""


class Takes(Step):
    """A look for up to count tasks of the first of these tubes that has any; the same step is asked for again.

    Answers the tasks, leased, and what the store said. When it `blocks`, its taker sleeps if nothing came; when it is
    `leaving`, there is no answer.
    """

    __slots__ = ("_line", "blocks", "count", "leaving", "max_pri", "registered", "seat", "tubes")

    def __init__(self, seat: Seat, tubes: Sequence[Tube], count: int, max_pri: int | None) -> None:
        self.seat = seat
        self.tubes = tubes
        self.count = count
        self.max_pri = max_pri
        self.blocks = False
        self.registered = False  # it is one of those the store knows as waiting
        self.leaving = False
        self._line: Line | None = None

    @property
    def key(self) -> tuple[object, ...]:
        return "take", self.seat, self.max_pri, *(tube._stored.no for tube in self.tubes)

    @property
    def size(self) -> int:
        return self.count * _EACH

    @property
    def binding(self) -> bool:
        return self.leaving

    def leave(self) -> Takes:
        """It looks no more, and is only to be counted out."""
        self.blocks, self.leaving = False, True
        return self

    def run(self) -> Got:
        if self.blocks or self.leaving:
            self._line = self._line or Line()
            got: Got = _serve(self._line, [self])[0]
            return got
        while True:
            tasks, taken = self.seat.attempt(self.tubes, self.count, self.max_pri, None)
            if tasks or not _again(None, [self], tasks, taken):
                return tasks, taken

    def together(self, steps: Sequence[Takes]) -> list[Any]:
        lines = self.seat.lines
        line = lines.setdefault(self.key, Line())
        try:
            return _serve(line, steps)
        finally:
            if not line.waiting:
                lines.pop(self.key, None)

    def undo(self, answer: Got | None) -> Step | None:
        tasks = answer[0] if answer else []
        if not tasks:
            return None
        return cast("Tube", tasks[0]._home)._untaken(tasks)


Answers = dict[Takes, Got | Failure]


def _serve(line: Line, steps: Sequence[Takes]) -> list[Any]:
    """An answer for each: first for those who were waiting, then as they came."""
    for step in steps:
        if step.leaving:
            _count(line, step, waits=False)
    hungry = [step for step in steps if step.blocks]
    hungry += [step for step in steps if not (step.blocks or step.leaving)]
    try:
        answers = _find(line, hungry)
        for step, got in answers.items():
            if not isinstance(got, Failure):
                _count(line, step, waits=step.blocks and not got[0] and got[1].alive)
    finally:
        _count_out(line, steps[0])
    return [answers.get(step) for step in steps]


def _find(line: Line, hungry: list[Takes]) -> Answers:
    """What each of them gets, in as few store calls as can be."""
    answers: Answers = {}
    while hungry:
        try:
            tasks, taken = _look(line, hungry)
        except PenstockError as error:
            if not answers:
                raise
            answers |= {step: Failure(twin(error)) for step in hungry}  # the others have their tasks
            break
        hungry = _hand_out(tasks, taken, hungry, answers)
        if not hungry or not _again(line, hungry, tasks, taken):
            answers |= dict.fromkeys(hungry, ([], taken))
            break
    return answers


def _look(line: Line, hungry: Sequence[Takes]) -> Got:
    """One store call for all of them."""
    first, mode = hungry[0], _mode(line, hungry)
    tasks, taken = first.seat.attempt(first.tubes, sum(step.count for step in hungry), first.max_pri, mode)
    if mode is not None:
        line.handle = "" if tasks or not taken.alive else first.seat.handle
    return tasks, taken


def _mode(line: Line, hungry: Sequence[Takes]) -> Blocked:
    blocked = [step for step in hungry if step.blocks]
    if not blocked:
        return None
    if line.handle != blocked[0].seat.handle:
        return "enter"
    alone = line.waiting == len(blocked) == 1 and blocked[0].registered
    return "stay" if alone else None


def _hand_out(tasks: Sequence[Task], taken: Taken, hungry: Sequence[Takes], answers: Answers) -> list[Takes]:
    """Those who got nothing."""
    left = iter(tasks)
    for step in hungry:
        mine = list(islice(left, step.count))
        if mine:
            answers[step] = mine, taken
    return [step for step in hungry if step not in answers]


def _again(line: Line | None, hungry: Sequence[Takes], tasks: Sequence[Task], taken: Taken) -> bool:
    """Whether another look may bring something to those who got nothing, or must be made before they sleep."""
    first = hungry[0]
    if not taken.alive:
        return False
    if line is not None and first.blocks and line.handle != first.seat.handle:
        return True
    if tasks and len(first.tubes) > 1:  # the next tube may have some
        return True
    if all(step.blocks for step in hungry):
        return False
    # What is left to be done may bring a task, and so may the end of a dead peer.
    return taken.wait_ms == 0 or (not tasks and first.seat._hub.tend())


def _count(line: Line, step: Takes, *, waits: bool) -> None:
    if waits != step.registered:
        step.registered = waits
        line.waiting += 1 if waits else -1


def _count_out(line: Line, step: Takes) -> None:
    """With the last one who waits, the line leaves the store."""
    if not line.waiting and line.handle:
        if line.handle == step.seat.handle:
            step.seat.unregister(step.tubes)
        line.handle = ""
