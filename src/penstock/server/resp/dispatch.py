"""From requests to replies: finds the command, checks the role, and joins calls into one store call."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

from penstock.errors import PenstockError, StoreError
from penstock.server.resp.client_state import Session
from penstock.server.resp.command_args import Args
from penstock.server.resp.commands import handshake, mq_commands, multi_exec, server_info, task_commands, tube_commands
from penstock.server.resp.commands.command import Command, forbidden
from penstock.server.resp.grammar import WORD_SIZE, Request
from penstock.server.resp.replies import ArrayHead, Fault, Refused, Reply, Word, fault_of

log = logging.getLogger("penstock")

# The most words of calls that are joined; a put of a joined call is all or nothing.
MAX_WORDS = 10_000
# The most tasks that joined calls take: all of them are in memory until the replies are sent.
MAX_TAKEN = 100


class Calls:
    """Calls of one command that run together."""

    __slots__ = ("args", "command", "key", "taken", "words")

    def __init__(self, command: Command, args: Args, key: bytes | None) -> None:
        self.command = command
        self.args = [args]
        self.key = key
        self.words = len(args)
        self.taken = command.takes_out(args)

    def join(self, request: Request) -> bool:
        """Add a request of the same command if it can be joined. Returns whether it was."""
        args = request[1:]
        if self.key is None or not self.command.takes(len(request)) or self.words + len(args) > MAX_WORDS:
            return False
        taken = self.taken + self.command.takes_out(args)
        if self.command.joins(args) != self.key or taken > MAX_TAKEN:
            return False
        self.args.append(args)
        self.words += len(args)
        self.taken = taken
        return True

    @property
    def waits(self) -> bool:
        """Whether the calls may block."""
        return self.command.waits(self.args[0])


def plan(session: Session, requests: Sequence[Request]) -> Iterator[Calls | Reply]:
    """The calls to run and the replies that need no call, in order."""
    calls: Calls | None = None
    word = b""  # the command name of `calls`
    role = session.role
    for request in requests:
        if calls is not None and request[0] == word and calls.join(request):
            continue
        try:
            command = _find(request)
            if command.role is not None and (role is None or role < command.role):
                raise forbidden(command.name.lower(), command.role, role)
            args = request[1:]
            step: Calls | Reply = _queued(session, request, command) or Calls(command, args, command.joins(args))
        except Refused as error:
            session.aborted = session.aborted or session.queued is not None
            step = error.fault
        if calls is not None:
            yield calls
            calls = None
        if isinstance(step, Calls) and not step.command.turns:
            calls, word = step, request[0]  # following requests may join
        elif isinstance(step, Calls) and step.command.name == "EXEC":
            yield from _executed(session)
        else:
            yield step
            role = session.role
    if calls is not None:
        yield calls


def _executed(session: Session) -> Iterator[Calls | Reply]:
    """EXEC: its replies are sent one after the other, so that few of them are in memory at a time."""
    try:
        queued = multi_exec.end(session)
    except Refused as error:
        yield error.fault
    else:
        yield ArrayHead(len(queued))
        yield from plan(session, queued)


def _queued(session: Session, request: Request, command: Command) -> Reply:
    """Queue a request between MULTI and EXEC. Returns None if it must run now."""
    if session.queued is None or command.name in multi_exec.NAMES:
        return None
    if command.turns or command.waits(request[1:]):
        raise Refused("ERR", f"'{command.name.lower()}' cannot be used in this way between MULTI and EXEC")
    session.queued_size += len(b"".join(request)) + WORD_SIZE * len(request)
    if session.queued_size > session.max_request:
        raise Refused("ERR", f"too many bytes between MULTI and EXEC: send at most {session.max_request}")
    session.queued.append(request)
    return Word("QUEUED")


def _find(request: Request) -> Command:
    command = COMMANDS.get(request[0]) or COMMANDS.get(request[0].upper())
    if command is None:
        name = request[0][:128].decode("utf-8", "replace")
        args = " ".join(f"'{word[:128].decode('utf-8', 'replace')}'" for word in request[1:21])
        raise Refused("ERR", f"unknown command '{name}', with args beginning with: {args}")
    if not command.takes(len(request)):
        raise Refused("ERR", f"wrong number of arguments for '{command.name.lower()}' command")
    return command


async def carry_out(session: Session, calls: Calls) -> list[Reply]:
    """Run the calls. Returns their replies; an invalid call does not affect the others."""
    session.service.commands += len(calls.args)
    try:
        return await calls.command.run(session, calls.args)
    except Refused as error:
        fault = error.fault
    except PenstockError as error:
        if isinstance(error, StoreError):  # the same error for all calls; some of them may be stored
            return [fault_of(error)] * len(calls.args)
        fault = fault_of(error)
    except TimeoutError:
        return [None] * len(calls.args)
    except Exception:
        log.exception("%s failed unexpectedly; replying with an error", calls.command.name)
        return [Fault("ERR", "internal error: the server's log has the details")] * len(calls.args)
    if len(calls.args) == 1:
        return [fault]
    return [(await carry_out(session, Calls(calls.command, args, None)))[0] for args in calls.args]


_OWN = (
    *handshake.COMMANDS, *server_info.COMMANDS, *mq_commands.COMMANDS, *tube_commands.COMMANDS, *task_commands.COMMANDS,
    *multi_exec.COMMANDS,
)  # fmt: skip
COMMANDS = {command.name.encode(): command for command in (*_OWN, server_info.command_about(_OWN))}
