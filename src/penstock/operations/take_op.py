"""Takes: one store call for one caller, or for all that ask at the same time.

Blocked takes of one session on the same tubes share a WaiterGroup: the store registers them as one waiter, so that drop
and sessions see that someone waits, and thousands of blocked takes cost no more than one.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, cast

from penstock.broker.tube import Tube, release_untaken
from penstock.core.results import Blocked, Taken
from penstock.core.task import Task, home_of
from penstock.errors import PenstockError
from penstock.operations.operation import Failure, StoreOp, copy_error

if TYPE_CHECKING:
    from penstock.broker.session import SessionHandle

# What one task may add to the size of a call: its data is not known before.
_EACH = 4096

TakeResult = tuple[list[Task], Taken]


class WaiterGroup:
    """Blocked takes of one session on the same tubes: how many, and the handle they are registered under."""

    __slots__ = ("handle", "waiting")

    def __init__(self) -> None:
        self.waiting = 0
        self.handle = ""


class TakeOp(StoreOp):
    """Take up to count tasks of the first of these tubes that has any; the same operation may be repeated.

    Returns the leased tasks and the store's answer. With `blocks`, its caller sleeps if nothing came; with `leaving`,
    it only unregisters the caller, and there is no answer.
    """

    __slots__ = ("_group", "blocks", "count", "leaving", "max_pri", "registered", "session", "tubes")

    def __init__(self, session: SessionHandle, tubes: Sequence[Tube], count: int, max_pri: int | None) -> None:
        self.session = session
        self.tubes = tubes
        self.count = count
        self.max_pri = max_pri
        self.blocks = False
        self.registered = False  # counted in its WaiterGroup
        self.leaving = False
        self._group: WaiterGroup | None = None

    @property
    def key(self) -> tuple[object, ...]:
        return "take", self.session, self.max_pri, *(tube.stored.no for tube in self.tubes)

    @property
    def size(self) -> int:
        return self.count * _EACH

    @property
    def run_if_cancelled(self) -> bool:
        return self.leaving

    def leave(self) -> TakeOp:
        """Make it an operation that only unregisters its caller."""
        self.blocks, self.leaving = False, True
        return self

    def run(self) -> TakeResult:
        if self.blocks or self.leaving:
            self._group = self._group or WaiterGroup()
            result: TakeResult = _run_group(self._group, [self])[0]
            return result
        while True:
            tasks, taken = self.session.take_now(self.tubes, self.count, self.max_pri, None)
            if tasks or not _try_again(None, [self], tasks, taken):
                return tasks, taken

    def run_batch(self, ops: Sequence[TakeOp]) -> list[Any]:
        groups = self.session.waiter_groups
        group = groups.setdefault(self.key, WaiterGroup())
        try:
            return _run_group(group, ops)
        finally:
            if not group.waiting:
                groups.pop(self.key, None)

    def compensate(self, answer: TakeResult | None) -> StoreOp | None:
        tasks = answer[0] if answer else []
        if not tasks:
            return None
        return release_untaken(cast(Tube, home_of(tasks[0])), tasks)


Answers = dict[TakeOp, TakeResult | Failure]


def _run_group(group: WaiterGroup, ops: Sequence[TakeOp]) -> list[Any]:
    """Answer each operation: first those that were blocked, then the others in order of arrival."""
    for op in ops:
        if op.leaving:
            _register(group, op, waits=False)
    unserved = [op for op in ops if op.blocks]
    unserved += [op for op in ops if not (op.blocks or op.leaving)]
    try:
        answers = _take_for(group, unserved)
        for op, answer in answers.items():
            if not isinstance(answer, Failure):
                _register(group, op, waits=op.blocks and not answer[0] and answer[1].alive)
    finally:
        _unregister_empty(group, ops[0])
    return [answers.get(op) for op in ops]


def _take_for(group: WaiterGroup, unserved: list[TakeOp]) -> Answers:
    """Take for all of them, in as few store calls as possible."""
    answers: Answers = {}
    while unserved:
        try:
            tasks, taken = _take_once(group, unserved)
        except PenstockError as error:
            if not answers:
                raise
            answers |= {op: Failure(copy_error(error)) for op in unserved}  # the others have their tasks
            break
        unserved = _distribute(tasks, taken, unserved, answers)
        if not unserved or not _try_again(group, unserved, tasks, taken):
            answers |= dict.fromkeys(unserved, ([], taken))
            break
    return answers


def _take_once(group: WaiterGroup, unserved: Sequence[TakeOp]) -> TakeResult:
    """One store call for all of them."""
    first, mode = unserved[0], _blocked_mode(group, unserved)
    tasks, taken = first.session.take_now(first.tubes, sum(op.count for op in unserved), first.max_pri, mode)
    if mode is not None:
        group.handle = "" if tasks or not taken.alive else first.session.handle
    return tasks, taken


def _blocked_mode(group: WaiterGroup, unserved: Sequence[TakeOp]) -> Blocked:
    blocked = [op for op in unserved if op.blocks]
    if not blocked:
        return None
    if group.handle != blocked[0].session.handle:
        return "register"
    alone = group.waiting == len(blocked) == 1 and blocked[0].registered
    return "unregister_if_found" if alone else None


def _distribute(tasks: Sequence[Task], taken: Taken, unserved: Sequence[TakeOp], answers: Answers) -> list[TakeOp]:
    """Give the tasks to the operations in order. Returns those that got none."""
    left = iter(tasks)
    for op in unserved:
        own = list(islice(left, op.count))
        if own:
            answers[op] = own, taken
    return [op for op in unserved if op not in answers]


def _try_again(group: WaiterGroup | None, unserved: Sequence[TakeOp], tasks: Sequence[Task], taken: Taken) -> bool:
    """Whether another store call may bring tasks to those that got none, or must be made before they sleep."""
    first = unserved[0]
    if not taken.alive:
        return False
    if group is not None and first.blocks and group.handle != first.session.handle:
        return True
    if tasks and len(first.tubes) > 1:  # the next tube may have some
        return True
    if all(op.blocks for op in unserved):
        return False
    # What is still due may make a task ready, and so may the end of a dead peer.
    return taken.wait_ms == 0 or (not tasks and first.session.runtime.reap_if_due())


def _register(group: WaiterGroup, op: TakeOp, *, waits: bool) -> None:
    if waits != op.registered:
        op.registered = waits
        group.waiting += 1 if waits else -1


def _unregister_empty(group: WaiterGroup, op: TakeOp) -> None:
    """Unregister the group in the store when nobody in it waits any more."""
    if not group.waiting and group.handle:
        if group.handle == op.session.handle:
            op.session.unregister(op.tubes)
        group.handle = ""
