"""TUBE.* for tubes (create, list, count, control, drop) and for groups."""

from __future__ import annotations

import msgspec

from penstock.broker.group_handle import Progress
from penstock.broker.stats import TubeStats
from penstock.broker.tube import Tube
from penstock.broker.tube_factory import create_tube
from penstock.core.names import shown
from penstock.errors import BadValue
from penstock.operations.operation import Operation
from penstock.server.auth import Role
from penstock.server.resp import command_args
from penstock.server.resp.client_state import Session
from penstock.server.resp.command_args import Args, number, options, text, whole
from penstock.server.resp.commands.command import Command, forbidden, same, single, verb
from penstock.server.resp.replies import OK, Reply
from penstock.server.resp.service import operation_of


async def _create(session: Session, args: Args) -> Reply:
    name, kind = text("tube", args[0]), text("kind", args[1])
    given = options(args[2:], command_args.TUBE)
    tube = await session.service.ask(create_tube, session.service.runtime, session.session_handle, name, kind, given)
    session.handle(tube.stored)
    return OK


async def _list(session: Session, args: Args) -> Reply:
    return [tube.name for tube in await session.service.ask(session.service.broker.tubes)]


def _info(tube: Tube, args: Args) -> Operation[Reply]:
    stored = yield from operation_of(_reloaded, tube)
    return stored


def _reloaded(tube: Tube) -> Reply:
    tube.runtime.apply_due(tube.stored)  # NoSuchTube when it was dropped
    given = {name: _option(value) for name, value in tube.stored.given.items()}
    return {"name": tube.name, "kind": tube.kind, "options": given}


def _option(value: object) -> Reply:
    return value if isinstance(value, bool | int | float | str) else msgspec.json.encode(value)


def _stats(tube: Tube, args: Args) -> Operation[TubeStats]:
    return operation_of(tube.stats)


def _counted(stats: TubeStats) -> Reply:
    return {"tasks": msgspec.structs.asdict(stats.tasks), "calls": msgspec.structs.asdict(stats.calls)}


def _kick(tube: Tube, args: Args) -> Operation[int]:
    if len(args) > 1:
        raise BadValue(f"TUBE.KICK takes a name and a count, not also {shown(args[1])}: leave it out")
    return operation_of(tube.kick, whole("count", args[0]) if args else 1)


_ASKING = (b"PROGRESS", b"WAIT")


async def _group(session: Session, args: Args) -> Reply:
    """TUBE.GROUP tube group verb: start, cancel or query a group."""
    tube, name, word = await session.tube(text("tube", args[0])), text("group", args[1]), args[2].upper()
    asking = word in _ASKING  # a query: creates no group, and also works after the end of one
    if not asking and (session.role is None or session.role < Role.OPERATE):
        raise forbidden("tube.group", Role.OPERATE, session.role)
    group = await session.service.ask(tube.group, name, create=not asking)
    match word, args[3:]:
        case b"START", []:
            await session.service.ask(group.start)
        case b"CANCEL", []:
            await session.service.ask(group.cancel)
        case b"ON_END", [data]:
            await session.service.ask(group.on_end, data)
        case b"ON_CANCEL", [data]:
            await session.service.ask(group.on_cancel, data)
        case b"PROGRESS", []:
            return _progress(await session.service.ask(group.progress))
        case b"WAIT", [*rest]:
            return await _ended(session, operation_of(group.wait, options(rest, {"timeout": number}).get("timeout", 0)))
        case _:
            raise BadValue(
                f"TUBE.GROUP has no {shown(args[2])} with {len(args) - 3} arguments: give START, CANCEL, ON_END data, "
                "ON_CANCEL data, PROGRESS or WAIT [TIMEOUT seconds]"
            )
    return OK


def _progress(progress: Progress) -> Reply:
    return {"done": progress.done, "total": progress.total}


async def _ended(session: Session, operation: Operation[str]) -> Reply:
    (end,) = await session.run_ops([operation])
    if isinstance(end, TimeoutError):
        return None
    if isinstance(end, Exception):
        raise end
    return end


COMMANDS = (
    Command("TUBE.CREATE", -3, single(_create), Role.ADMIN, tube_at=1, usage="name kind [OPTION value ...]"),
    Command("TUBE.LIST", 1, single(_list), Role.READ),
    Command("TUBE.INFO", 2, verb(_info, same), Role.READ, tube_at=1, usage="name"),
    Command("TUBE.STATS", 2, verb(_stats, _counted), Role.READ, tube_at=1, usage="name"),
    Command("TUBE.KICK", -2, verb(_kick, same), tube_at=1, usage="name [count]"),
    Command("TUBE.PAUSE", 2, verb(lambda tube, args: operation_of(tube.pause)), Role.ADMIN, tube_at=1, usage="name"),
    Command("TUBE.RESUME", 2, verb(lambda tube, args: operation_of(tube.resume)), Role.ADMIN, tube_at=1, usage="name"),
    Command("TUBE.RELEASEALL", 2, verb(lambda tube, args: operation_of(tube.release_all), same), Role.ADMIN, tube_at=1,
            usage="name"),
    Command("TUBE.TRUNCATE", 2, verb(lambda tube, args: operation_of(tube.truncate), same), Role.ADMIN, tube_at=1,
            usage="name"),
    Command("TUBE.DROP", 2, verb(lambda tube, args: operation_of(tube.drop)), Role.ADMIN, tube_at=1, usage="name"),
    Command("TUBE.GROUP", -4, single(_group), Role.READ, tube_at=1, waits=lambda args: args[2].upper() == b"WAIT",
            usage="name group START|CANCEL|PROGRESS|ON_END data|ON_CANCEL data|WAIT [TIMEOUT seconds]"),
)  # fmt: skip
