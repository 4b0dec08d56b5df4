"""Commands that clients send when they connect: AUTH, HELLO, PING, CLIENT and others."""

from __future__ import annotations

import asyncio

import penstock
from penstock.server.auth import Role
from penstock.server.resp.client_state import Session
from penstock.server.resp.command_args import Args
from penstock.server.resp.commands.command import Command, single
from penstock.server.resp.replies import OK, RESP2, RESP3, Refused, Reply, Word

# The longest client or library name; clients use short ones, and CLIENT INFO shows them.
_MAX_NAME = 200


async def _auth(session: Session, args: Args) -> Reply:
    if len(args) > 2:
        raise Refused("ERR", "syntax error")
    await _enter(session, args[-1])
    return OK


async def _enter(session: Session, token: bytes) -> None:
    """Authenticate with a token; a user name is ignored."""
    if not session.service.tokens.required:
        raise Refused(
            "ERR",
            "AUTH <password> called without any password configured for the default user. "
            "Are you sure your configuration is correct?",
        )
    if not session.authenticate(token.decode("utf-8", "replace")):
        wait = session.service.tokens.wait(session.peer)
        await asyncio.sleep(session.service.tokens.delay(session.peer))
        when = f" Too many failures: try again in {wait:.0f} s." if wait else ""
        raise Refused("WRONGPASS", f"invalid username-password pair or user is disabled.{when}")


async def _hello(session: Session, args: Args) -> Reply:
    version, name = session.version, session.name
    if args:
        if args[0] not in (b"2", b"3"):
            raise Refused("NOPROTO", "unsupported protocol version")
        version = RESP2 if args[0] == b"2" else RESP3
    at = 1
    while at < len(args):
        match args[at].upper(), args[at + 1 : at + 3]:
            case b"AUTH", [_, token]:
                await _enter(session, token)
                at += 3
            case b"SETNAME", [given, *_]:
                name = _printable(given)
                at += 2
            case _:
                raise Refused("ERR", f"Syntax error in HELLO option '{_printable(args[at])}'")
    if session.role is None:
        raise Refused(
            "NOAUTH",
            "HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH <user> <pass>"
            " option can be used to authenticate the client and select the RESP protocol version at the same time",
        )
    session.version, session.name = version, name
    return {
        "server": "penstock", "version": penstock.__version__, "proto": version, "id": session.id,
        "mode": "standalone", "role": "master", "modules": [],
    }  # fmt: skip


async def _ping(session: Session, args: Args) -> Reply:
    if len(args) > 1:
        raise Refused("ERR", "wrong number of arguments for 'ping' command")
    return args[0] if args else Word("PONG")


async def _echo(session: Session, args: Args) -> Reply:
    return args[0]


async def _quit(session: Session, args: Args) -> Reply:
    session.leaving = True
    return OK


async def _reset(session: Session, args: Args) -> Reply:
    session.reset()
    return Word("RESET")


async def _select(session: Session, args: Args) -> Reply:
    if not args[0].isdigit():
        raise Refused("ERR", "value is not an integer or out of range")
    if args[0].strip(b"0"):
        raise Refused("ERR", "DB index is out of range")
    return OK


async def _client(session: Session, args: Args) -> Reply:
    match [args[0].upper(), *args[1:]]:
        case [b"ID"]:
            return session.id
        case [b"GETNAME"]:
            return session.name or None
        case [b"SETNAME", name]:
            session.name = _printable(name)
        case [b"SETINFO", attribute, value]:
            _describe(session, attribute, value)
        case [b"INFO"]:
            return _described(session)
        case [b"NO-EVICT" | b"NO-TOUCH", _] | [b"REPLY", b"ON" | b"on"] | [b"TRACKING", b"OFF" | b"off"]:
            pass
        case _:
            raise Refused("ERR", f"unknown subcommand or wrong number of arguments for '{_printable(args[0])}'")
    return OK


def _describe(session: Session, attribute: bytes, value: bytes) -> None:
    key = attribute.lower().decode("utf-8", "replace")
    if key not in ("lib-name", "lib-ver"):
        raise Refused("ERR", f"Unrecognized option '{_printable(attribute)}'")
    session.library[key] = _printable(value)


def _described(session: Session) -> str:
    facts = {
        "id": session.id, "addr": session.peer, "name": session.name, "db": 0, "resp": session.version,
        "lib-name": session.library.get("lib-name", ""), "lib-ver": session.library.get("lib-ver", ""),
    }  # fmt: skip
    return " ".join(f"{key}={value}" for key, value in facts.items())


def _printable(raw: bytes) -> str:
    text = raw.decode("utf-8", "replace")
    if len(text) > _MAX_NAME or not text.isprintable() or " " in text:
        raise Refused("ERR", "Client names cannot contain spaces, newlines or special characters.")
    return text


COMMANDS = (
    Command("AUTH", -2, single(_auth), None, turns=True, usage="[username] token"),
    Command("HELLO", -1, single(_hello), None, turns=True, usage="[2|3 [AUTH username token] [SETNAME name]]"),
    Command("QUIT", -1, single(_quit), None, turns=True),
    Command("RESET", 1, single(_reset), None, turns=True),
    Command("PING", -1, single(_ping), Role.READ, usage="[message]"),
    Command("ECHO", 2, single(_echo), Role.READ, usage="message"),
    Command("SELECT", 2, single(_select), Role.READ, usage="0"),
    Command("CLIENT", -2, single(_client), Role.READ,
            usage="ID|INFO|GETNAME|SETNAME name|SETINFO LIB-NAME|LIB-VER value"),
)  # fmt: skip
