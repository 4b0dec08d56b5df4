"""COMMAND and INFO."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable

import penstock
from penstock.server.auth import Role
from penstock.server.resp.client_state import Session
from penstock.server.resp.command_args import Args
from penstock.server.resp.commands.command import Command, single
from penstock.server.resp.replies import Refused, Reply

# Clients choose commands by the server's version; this Redis version has all commands that we support.
REDIS_VERSION = "7.4.0"


async def _info(session: Session, args: Args) -> Reply:
    service = session.service
    up = int(time.time() - service.began)
    sections: dict[str, dict[str, object]] = {
        "Server": {
            "redis_version": REDIS_VERSION, "penstock_version": penstock.__version__, "redis_mode": "standalone",
            "process_id": os.getpid(), "uptime_in_seconds": up, "loading": 0,
        },
        "Clients": {"connected_clients": service.connections, "blocked_clients": service.blocked},
        "Stats": {
            "total_connections_received": service.accepted, "total_commands_processed": service.commands,
        },
        "Replication": {"role": "master", "connected_slaves": 0},
    }  # fmt: skip
    wanted = {word.decode("utf-8", "replace").lower() for word in args} - {"default", "all", "everything"}
    shown = (name for name in sections if not wanted or name.lower() in wanted)
    return "\r\n".join(f"# {name}\r\n{_lines(sections[name])}" for name in shown)


def _lines(section: dict[str, object]) -> str:
    return "".join(f"{key}:{value}\r\n" for key, value in section.items())


def command_about(commands: Iterable[Command]) -> Command:
    """The command COMMAND, which describes these commands and itself."""

    async def run(session: Session, args: Args) -> Reply:
        match [args[0].upper(), *args[1:]] if args else []:
            case []:
                return [_entry(command) for command in known.values()]
            case [b"COUNT"]:
                return len(known)
            case [b"LIST"]:
                return [name.lower() for name in known]
            case [b"INFO", *names]:
                return [_entry(known[name]) if name in known else None for name in _asked(names)]
            case [b"DOCS", *names]:
                return {name.lower(): _docs(known[name]) for name in _asked(names) if name in known}
            case _:
                raise Refused("ERR", "unknown subcommand. Try COMMAND, COMMAND COUNT, LIST, INFO or DOCS.")

    def _asked(names: Iterable[bytes]) -> list[str]:
        return [name.decode("utf-8", "replace").upper() for name in names] or list(known)

    own = Command("COMMAND", -1, single(run), Role.READ, usage="[COUNT|LIST|INFO [name ...]|DOCS [name ...]]")
    known = {command.name: command for command in (*commands, own)}
    return own


def _entry(command: Command) -> Reply:
    flag = "readonly" if command.role in (None, Role.READ) else "write"
    place = command.tube_at
    return [command.name.lower(), command.arity, [flag], place, place, 1 if place else 0, [], [], [], []]


def _docs(command: Command) -> Reply:
    group = command.name.partition(".")[0].lower() if "." in command.name else "connection"
    return {"summary": f"{command.name} {command.usage}".strip(), "since": "0.1.0", "group": group}


COMMANDS = (Command("INFO", -1, single(_info), Role.READ, usage="[section ...]"),)
