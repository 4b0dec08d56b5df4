"""MULTI and EXEC, which many clients wrap around every pipeline: the queued requests run in order at EXEC.

This is not a transaction over several tubes: commands of other clients may run in between. WATCH, which would need one,
is refused.
"""

from __future__ import annotations

from penstock.server.auth import Role
from penstock.server.resp.client_state import Session
from penstock.server.resp.command_args import Args
from penstock.server.resp.commands.command import Command, single
from penstock.server.resp.grammar import Request
from penstock.server.resp.replies import OK, Refused, Reply

NAMES = frozenset({"MULTI", "EXEC", "DISCARD", "QUIT", "RESET"})


def end(session: Session) -> list[Request]:
    """Return the requests that EXEC runs."""
    queued, aborted = session.queued, session.aborted
    session.discard()
    if queued is None:
        raise Refused("ERR", "EXEC without MULTI")
    if aborted:
        raise Refused("EXECABORT", "Transaction discarded because of previous errors.")
    return queued


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


async def _exec(session: Session, args: Args) -> Reply:
    raise AssertionError("dispatch.plan replaces EXEC by the queued requests")


COMMANDS = (
    Command("MULTI", 1, single(_multi), Role.READ, turns=True),
    Command("EXEC", 1, single(_exec), Role.READ, turns=True),
    Command("DISCARD", 1, single(_discard), Role.READ, turns=True),
)
