"""MULTI and EXEC, which many clients wrap around every pipeline: the requests between them run in order, at EXEC.

They are no transaction over several tubes: other clients' commands may run in between. What could not be kept without
one, WATCH, is refused.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from penstock.server.auth import Role
from penstock.server.resp.client_state import Session
from penstock.server.resp.command_args import Args
from penstock.server.resp.commands.command import Command, single
from penstock.server.resp.grammar import Request
from penstock.server.resp.replies import OK, Refused, Reply

NAMES = frozenset({"MULTI", "EXEC", "DISCARD", "QUIT", "RESET"})


def commands(execute: Callable[[Session, Sequence[Request]], Awaitable[list[Reply]]]) -> tuple[Command, ...]:
    """The commands; `execute` carries out requests in order."""

    async def run(session: Session, args: Args) -> Reply:
        queued, spoilt = session.queued, session.spoilt
        session.discard()
        if queued is None:
            raise Refused("ERR", "EXEC without MULTI")
        if spoilt:
            raise Refused("EXECABORT", "Transaction discarded because of previous errors.")
        return await execute(session, queued)

    return (
        Command("MULTI", 1, single(_multi), Role.READ, turns=True),
        Command("EXEC", 1, single(run), Role.READ, turns=True),
        Command("DISCARD", 1, single(_discard), Role.READ, turns=True),
    )


async def _multi(session: Session, args: Args) -> Reply:
    if session.queued is not None:
        raise Refused("ERR", "MULTI calls can not be nested")
    session.queued = []
    return OK


async def _discard(session: Session, args: Args) -> Reply:
    if session.queued is None:
        raise Refused("ERR", "DISCARD without MULTI")
    session.discard()
    return OK
