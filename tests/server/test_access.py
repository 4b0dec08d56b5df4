"""Tokens and roles on the Redis protocol."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from penstock.server.auth import Role, make_token, token_line
from tests.server.server_process import Serve, read_exactly, read_to_end

TOKENS = {role: make_token() for role in Role}


@pytest.fixture
def guarded(url: str, tmp_path: Path) -> Iterator[Serve]:
    file = tmp_path / "tokens"
    file.write_text("".join(token_line(role, token) for role, token in TOKENS.items()))
    file.chmod(0o600)
    with Serve(url, "--resp", "127.0.0.1:0", "--token-file", str(file)) as server:
        yield server
        assert server.stop() == (0, "")


def test_an_unauthenticated_client_may_do_nothing(guarded: Serve) -> None:
    with guarded.raw() as client:
        client.sendall(b"PING\r\nTUBE.LIST\r\nINFO\r\nCOMMAND\r\nMULTI\r\nHELLO 3\r\nAUTH wrong\r\nPING\r\nQUIT\r\n")
        no = b"-NOAUTH Authentication required.\r\n"
        read_exactly(client, no * 5 + b"-NOAUTH HELLO must be called with the client already authenticated")
    with pytest.raises(redis.AuthenticationError, match="invalid username-password pair"):
        guarded.client(password="wrong").ping()


def test_the_request_of_an_unauthenticated_client_is_limited(guarded: Serve) -> None:
    with guarded.raw() as client:
        client.sendall(b"*2\r\n$4\r\nAUTH\r\n$20000\r\n")
        read_exactly(client, b"-ERR Protocol error: invalid bulk length: a request may have 16384 bytes\r\n")
        assert client.recv(1) == b""


def test_requests_with_a_read_token_are_bounded(guarded: Serve) -> None:
    with guarded.raw() as client:
        client.sendall(b"AUTH " + TOKENS[Role.READ].encode() + b"\r\n*2\r\n$4\r\nECHO\r\n$300000\r\n")
        read_exactly(client, b"+OK\r\n-ERR Protocol error: invalid bulk length: a request may have 262144 bytes\r\n")
        assert client.recv(1) == b""
    with guarded.raw() as client:
        ping = b"PING " + b"x" * 1000 + b"\r\n"
        client.sendall(b"AUTH " + TOKENS[Role.READ].encode() + b"\r\nMULTI\r\n" + ping * 300 + b"EXEC\r\nQUIT\r\n")
        replies = read_to_end(client)
        assert b"-ERR too many bytes between MULTI and EXEC: send at most 262144\r\n" in replies
        assert replies.endswith(b"-EXECABORT Transaction discarded because of previous errors.\r\n+OK\r\n")


def test_a_token_authorizes_the_rest_of_its_pipeline(guarded: Serve) -> None:
    with guarded.raw() as client:
        token = TOKENS[Role.ADMIN].encode()
        large = b"*2\r\n$4\r\nECHO\r\n$50000\r\n" + b"x" * 50_000 + b"\r\n"
        client.sendall(b"AUTH " + token + b"\r\n" + large + b"PING\r\n")
        read_exactly(client, b"+OK\r\n$50000\r\n" + b"x" * 50_000 + b"\r\n+PONG\r\n")


@pytest.mark.parametrize("username", [None, "anybody"])
@pytest.mark.parametrize("protocol", [2, 3])
def test_clients_give_the_token_as_their_password(guarded: Serve, username: str | None, protocol: int) -> None:
    client = guarded.client(username=username, password=TOKENS[Role.READ], protocol=protocol)
    assert client.ping() is True


CALLS = {
    Role.READ: ["TUBE.LIST", "TUBE.STATS t", "TUBE.PEEK t 1", "TUBE.TASKS t", "MQ.INSPECT k 0 1", "TUBE.WHY t 1"],
    Role.OPERATE: ["TUBE.PUT t x", "TUBE.TAKE t", "TUBE.KICK t", "TUBE.GROUP t g ON_END x", "MQ.PUSH k x"],
    Role.ADMIN: [
        "TUBE.CREATE u fifo",
        "TUBE.PAUSE t",
        "TUBE.RESUME t",
        "TUBE.TRUNCATE t",
        "TUBE.RELEASEALL t",
        "TUBE.DROP t",
    ],
}


@pytest.mark.parametrize("role", Role)
def test_a_role_may_do_its_own_and_what_smaller_ones_may(guarded: Serve, role: Role) -> None:
    admin = guarded.client(password=TOKENS[Role.ADMIN])
    admin.execute_command("TUBE.CREATE", "t", "fifo")
    admin.execute_command("TUBE.PUT", "t", "a")
    client = guarded.client(password=TOKENS[role])
    for needed, calls in CALLS.items():
        for call in calls:
            if needed <= role:
                client.execute_command(*call.split())
            else:
                with pytest.raises(
                    redis.exceptions.NoPermissionError,
                    match=f"its role is {role.name.lower()}, and .* needs {needed.name.lower()}$",
                ):
                    client.execute_command(*call.split())


def test_removing_a_token_from_the_file_ends_its_connections(guarded: Serve, tmp_path: Path) -> None:
    client = guarded.client(password=TOKENS[Role.READ])
    assert client.ping() is True
    (tmp_path / "tokens").write_text(token_line(Role.ADMIN, TOKENS[Role.ADMIN]))
    with pytest.raises(redis.AuthenticationError):
        client.ping()


def test_wrong_tokens_are_throttled_and_right_ones_are_not(guarded: Serve) -> None:
    with guarded.raw() as client:
        began = time.monotonic()
        client.sendall(b"AUTH wrong\r\n" * 11)
        wrong = b"-WRONGPASS invalid username-password pair or user is disabled.\r\n"
        read_exactly(client, wrong * 9 + wrong[:-2] + b" Too many failures: try again in")
        assert time.monotonic() - began >= 1
        assert guarded.client(password=TOKENS[Role.READ]).ping() is True


def test_one_token_of_the_environment_is_enough_for_an_open_address(url: str) -> None:
    with Serve(url, "--resp", "0.0.0.0:0", token="secret", host="0.0.0.0") as server:
        with pytest.raises(redis.AuthenticationError):
            server.client().ping()
        assert server.client(password="secret").ping() is True
        with socket.create_connection(("127.0.0.1", server.port)) as raw:
            raw.sendall(b"PING\r\n")
            read_exactly(raw, b"-NOAUTH Authentication required.\r\n")


def test_a_short_token_and_a_readable_token_file_give_warnings(url: str, tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text(token_line(Role.READ, make_token()))
    file.chmod(0o640)
    with Serve(url, "--resp", "127.0.0.1:0", "--token-file", str(file), token="secret") as server:
        code, stderr = server.stop()
    assert (code, stderr.splitlines()) == (0, [
        f"penstock: warning: other users can read the hashes of tokens in {file}: chmod 600 {file}",
        "penstock: warning: PENSTOCK_TOKEN has 6 characters and may be guessed: make one with openssl rand -hex 32",
    ])  # fmt: skip
    file.chmod(0o600)
    with Serve(url, "--resp", "127.0.0.1:0", "--token-file", str(file), token=make_token()) as server:
        assert server.stop() == (0, "")
