"""The type of a command, and its two kinds: a coroutine, or the verb of a tube."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from penstock.broker.tube import Tube
from penstock.errors import BadValue, NoSuchTube, PenstockError
from penstock.operations.operation import Operation
from penstock.server.auth import Role
from penstock.server.resp.client_state import Session
from penstock.server.resp.command_args import Args, text
from penstock.server.resp.replies import OK, Refused, Reply, fault_of

Run = Callable[[Session, Sequence[Args]], Awaitable[list[Reply]]]


def _never(args: Args) -> bool:
    return False


def _none(args: Args) -> int:
    return 0


def _alone(args: Args) -> bytes | None:
    return None


class Command(msgspec.Struct, frozen=True):
    """One command. `arity` includes the name and is negative if more words may follow, as in Redis."""

    name: str
    arity: int
    run: Run
    #: The role that the caller needs; None: not even a token.
    role: Role | None = Role.OPERATE
    #: The position of the tube's name among the arguments; 0 if there is none.
    tube_at: int = 0
    #: The join key of a call: consecutive calls with the same key become one step; None: this call runs alone.
    joins: Callable[[Args], bytes | None] = _alone
    #: The most tasks that a call with these arguments takes.
    takes_out: Callable[[Args], int] = _none
    #: Whether a call with these arguments may block.
    waits: Callable[[Args], bool] = _never
    #: Whether it changes how later requests are interpreted, so that these must wait for it.
    turns: bool = False
    #: Whether its reply contains the data of tasks; only few such replies are made at a time.
    large: bool = False
    usage: str = ""

    def takes(self, count: int) -> bool:
        """Whether this number of words, including the name, is valid."""
        return count == self.arity if self.arity >= 0 else count >= -self.arity


def forbidden(command: str, needed: Role, role: Role | None) -> Refused:
    """The reply to a call that the token's role does not allow."""
    if role is None:
        return Refused("NOAUTH", "Authentication required.")
    why = f"its role is {role.name.lower()}, and '{command}' needs {needed.name.lower()}"
    return Refused("NOPERM", f"this token may not do that: {why}")


def by_tube(args: Args) -> bytes | None:
    """The join key for calls on the same tube: its name."""
    return args[0]


def timeout_from(place: int) -> Callable[[Args], bool]:
    """Return a function that checks whether the arguments from position `place` on include the option TIMEOUT."""

    def waits(args: Args) -> bool:
        return any(args[at].upper() == b"TIMEOUT" for at in range(place, len(args), 2))

    return waits


def single(run: Callable[[Session, Args], Awaitable[Reply]]) -> Run:
    """A command whose calls run one by one."""

    async def each(session: Session, calls: Sequence[Args]) -> list[Reply]:
        return [await run(session, args) for args in calls]

    return each


def done(result: None) -> Reply:
    """OK, the reply of a verb that returns nothing."""
    return OK


def same(result: Reply) -> Reply:
    """The reply of a verb whose result is one already."""
    return result


def verb(operation: Callable[[Tube, Args], Operation[Any]], show: Callable[[Any], Reply] = done) -> Run:
    """A command that is a verb of the tube in its first argument. Calls that arrive together start together."""

    async def run(session: Session, calls: Sequence[Args]) -> list[Reply]:
        name = text("tube", calls[0][0])
        answers = await _attempt(session, name, operation, calls, refresh=False)
        gone = [at for at, answer in enumerate(answers) if isinstance(answer, NoSuchTube)]
        if gone:  # the tube was dropped since it was cached, and perhaps created again
            try:
                retried = await _attempt(session, name, operation, [calls[at] for at in gone], refresh=True)
            except NoSuchTube as error:
                retried = [error] * len(gone)  # not raised, because other calls may have succeeded
            for at, answer in zip(gone, retried, strict=True):
                answers[at] = answer
        return [_shown(answer, show) for answer in answers]

    return run


async def _attempt(
    session: Session,
    name: str,
    operation: Callable[[Tube, Args], Operation[Any]],
    calls: Sequence[Args],
    *,
    refresh: bool,
) -> list[Any]:
    tube = await session.tube(name, refresh=refresh)
    return await session.run_ops([_read(operation, tube, args[1:]) for args in calls])


def _read(operation: Callable[[Tube, Args], Operation[Any]], tube: Tube, args: Args) -> Operation[Any]:
    """The operation of one call; bad arguments are an error of this call only."""
    try:
        return operation(tube, args)
    except BadValue as error:
        return _raising(error)


def _raising(error: PenstockError) -> Operation[None]:
    raise error
    yield


def _shown(answer: Any, show: Callable[[Any], Reply]) -> Reply:
    if isinstance(answer, PenstockError):
        return fault_of(answer)
    return None if isinstance(answer, TimeoutError) else show(answer)
