"""An action needs the same role over HTTP and over the Redis protocol."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from penstock.server.auth import Role, Tokens, token_line
from penstock.server.http.routes import OPERATIONS
from penstock.server.resp.dispatch import COMMANDS
from tests.wire.conversation import Client, serving

SAME = {
    "TUBE.CREATE": "create_tube", "TUBE.LIST": "list_tubes", "TUBE.INFO": "show_tube", "TUBE.STATS": "stats",
    "TUBE.PUT": "put", "MQ.PUSH": "put_many", "TUBE.TAKE": "take", "TUBE.TAKEANY": "take_first", "MQ.POP": "take",
    "TUBE.ACK": "ack", "MQ.ACK": "ack_many", "TUBE.RELEASE": "release", "TUBE.TOUCH": "touch", "TUBE.FAIL": "fail",
    "TUBE.BURY": "bury", "TUBE.CANCEL": "cancel", "TUBE.KICK": "kick", "TUBE.DELETE": "delete", "TUBE.PEEK": "peek",
    "TUBE.SHOW": "peek", "TUBE.TASKS": "list_tasks", "TUBE.WHY": "why", "TUBE.WAIT": "wait_for",
    "TUBE.RECOVER": "recover", "MQ.RECOVER": "recover", "TUBE.INSPECT": "inspect", "MQ.INSPECT": "inspect",
    "TUBE.PAUSE": "pause", "TUBE.RESUME": "resume", "TUBE.RELEASEALL": "release_all", "TUBE.TRUNCATE": "truncate",
    "TUBE.DROP": "drop", "TUBE.SESSION": "begin_session", "TUBE.GROUP": "show_group",
}  # fmt: skip


def test_every_command_on_tubes_has_its_operation() -> None:
    assert {name.decode() for name in COMMANDS if b"." in name} == SAME.keys()


@pytest.mark.parametrize("command", SAME)
def test_the_roles_are_the_same(command: str) -> None:
    roles = {operation.name: operation.role for operation in OPERATIONS}
    assert COMMANDS[command.encode()].role == roles[SAME[command]]


def test_a_reader_may_ask_of_a_group_and_change_nothing(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text(token_line(Role.READ, "reader") + token_line(Role.ADMIN, "admin"))

    async def run() -> None:
        async with serving(Tokens(file)) as service:
            admin, reader = Client(service), Client(service)
            admin.send(b"AUTH admin\r\nTUBE.CREATE t fifottl\r\nTUBE.PUT t x GROUP g\r\n")
            assert await admin.replies() == b"+OK\r\n+OK\r\n:1\r\n"
            reader.send(b"AUTH reader\r\nTUBE.GROUP t g PROGRESS\r\nTUBE.GROUP t g WAIT\r\n")
            assert await reader.replies() == b"+OK\r\n*4\r\n$4\r\ndone\r\n:0\r\n$5\r\ntotal\r\n:1\r\n$-1\r\n"
            for words in (b"START", b"CANCEL", b"ON_END x", b"ON_CANCEL x"):
                reader.send(b"TUBE.GROUP t g %b\r\n" % words)
                assert (await reader.replies()).startswith(b"-NOPERM ")
            reader.send(b"TUBE.GROUP t other PROGRESS\r\nTUBE.GROUP t other WAIT\r\n")
            replies = await reader.replies()
            assert replies.count(b"-NOTFOUND no group other in tube t") == 2
            admin.send(b"TUBE.GROUP t g START\r\nTUBE.TAKE t\r\nTUBE.ACK t 1\r\n")
            await admin.replies()
            reader.send(b"TUBE.GROUP t g WAIT\r\nTUBE.GROUP t g PROGRESS\r\n")
            assert await reader.replies() == b"$4\r\ndone\r\n*4\r\n$4\r\ndone\r\n:1\r\n$5\r\ntotal\r\n:1\r\n"
            await admin.end()
            await reader.end()

    asyncio.run(run())
