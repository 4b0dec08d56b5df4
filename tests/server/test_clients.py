"""Real Redis clients work as they do with Redis."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest
import redis

import penstock
from tests.server.server_process import PATIENCE, Serve


@pytest.fixture
def cli() -> str:
    found = shutil.which("redis-cli")
    if found is None and os.environ.get("CI") != "true":
        pytest.skip("redis-cli is missing: on Debian `apt-get install redis-tools`")
    assert found
    return found


def run(cli: str, server: Serve, *words: str, stdin: str | None = None) -> str:
    command = [cli, "-p", str(server.port), "--no-raw", *words]
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=True, timeout=PATIENCE)
    return done.stdout


def test_redis_cli_pushes_pops_and_acks(cli: str, server: Serve) -> None:
    ids = [line.split()[1].strip('"') for line in run(cli, server, "MQ.PUSH", "mail", "one", "two").splitlines()]
    assert run(cli, server, "MQ.POP", "2", "mail") == (
        f'1) 1) "{ids[0]}"\n   2) "one"\n2) 1) "{ids[1]}"\n   2) "two"\n'
    )
    assert run(cli, server, "MQ.POP", "2", "mail") == "(nil)\n"
    assert run(cli, server, "MQ.ACK", "mail", *ids) == f'1) "{ids[0]}"\n2) "{ids[1]}"\n'
    assert run(cli, server, "MQ.ACK", "mail", *ids) == "(empty array)\n"


@pytest.mark.parametrize("at", [0, 1, 2])
def test_one_malformed_id_does_not_keep_the_rest_from_being_acked(server: Serve, at: int) -> None:
    client = server.client()
    ids = client.execute_command("MQ.PUSH", "mail", "one", "two")
    client.execute_command("MQ.POP", 2, "mail")
    given = [*ids[:at], b"1-1xyz", *ids[at:]]
    assert client.execute_command("MQ.ACK", "mail", *given) == ids
    assert client.execute_command("MQ.INSPECT", "mail", "PENDING", 0, 10) == []


def test_redis_cli_reads_commands_from_a_pipe(cli: str, server: Serve) -> None:
    script = 'TUBE.CREATE mail fifottl\nTUBE.PUT mail "hello world" PRI 5\nTUBE.TAKE mail\nTUBE.ACK mail 1\nNOSUCH\n'
    assert run(cli, server, stdin=script) == (
        'OK\n(integer) 1\n1) (integer) 1\n2) "t"\n3) "hello world"\nOK\n'
        "(error) ERR unknown command 'NOSUCH', with args beginning with:\n"
    )


def test_redis_cli_speaks_resp3(cli: str, server: Serve) -> None:
    assert run(cli, server, "-3", "MQ.POP", "1", "nothing") == "(nil)\n"
    assert "3# " in run(cli, server, "-3", "HELLO", "3")


@pytest.mark.parametrize("protocol", [2, 3])
def test_redis_py_in_both_protocols(server: Serve, protocol: int) -> None:
    client = server.client(protocol=protocol)
    assert client.ping() is True
    assert client.echo("hi") == b"hi"
    assert client.info()["redis_mode"] == "standalone"
    assert client.client_setname("me") is True
    assert client.client_getname() in (b"me", "me")
    assert client.execute_command("TUBE.CREATE", "mail", "fifottl", "TTR", "60") == b"OK"
    assert client.execute_command("TUBE.PUT", "mail", b"\0\xff") == 1
    assert client.execute_command("TUBE.TAKE", "mail", "COUNT", 5) == [[1, b"t", b"\0\xff"]]
    stats = client.execute_command("TUBE.STATS", "mail")
    if protocol == 2:
        stats = dict(zip(stats[::2], stats[1::2], strict=True))
        stats[b"tasks"] = dict(zip(stats[b"tasks"][::2], stats[b"tasks"][1::2], strict=True))
    assert stats[b"tasks"][b"taken"] == 1
    with pytest.raises(redis.ResponseError, match="NOSUCHTUBE tube nowhere does not exist"):
        client.execute_command("TUBE.PUT", "nowhere", "x")


@pytest.mark.parametrize("transaction", [False, True])
def test_a_pipeline_is_answered_in_order(server: Serve, transaction: bool) -> None:
    client = server.client()
    pipeline = client.pipeline(transaction=transaction)
    for number in range(500):
        pipeline.execute_command("MQ.PUSH", "a" if number < 300 else "b", str(number))
    pipeline.execute_command("MQ.POP", 1000, "a")
    pipeline.execute_command("MQ.POP", 1000, "b")
    *pushed, a, b = pipeline.execute()
    assert [int(data) for _, data in a + b] == list(range(500))
    assert [id for id, _ in a + b] == [ids[0] for ids in pushed]


def test_pops_of_a_pipeline_share_what_is_there(server: Serve) -> None:
    client = server.client()
    client.execute_command("MQ.PUSH", "k", *range(5))
    pipeline = client.pipeline(transaction=False)
    for count in (2, 1, 7, 3):
        pipeline.execute_command("MQ.POP", count, "k")
    answers = pipeline.execute()
    assert [answer and [data for _, data in answer] for answer in answers] == [
        [b"0", b"1"], [b"2"], [b"3", b"4"], None,
    ]  # fmt: skip


def test_what_python_puts_is_json_on_the_wire(server: Serve) -> None:
    with penstock.connect(server.url) as broker:
        tube = broker.tube("mixed", "fifo")
        tube.put_many([{"to": "ada", "n": 1}, "text", b"bytes", None])
        client = server.client()
        taken = client.execute_command("TUBE.TAKE", "mixed", "COUNT", 9)
        assert [data for _, _, data in taken] == [b'{"to":"ada","n":1}', b'"text"', b"bytes", b"null"]
        client.execute_command("TUBE.PUT", "mixed", b'{"to":"ada"}')
        task = tube.take(0)
        assert task is not None
        assert task.data == b'{"to":"ada"}'
        task.ack()
        client.close()


def test_addresses_groups_and_outcomes(server: Serve) -> None:
    client, other = server.client(protocol=3), server.client(protocol=3)
    client.execute_command("TUBE.CREATE", "jobs", "fifottl")
    client.execute_command("TUBE.PUT", "jobs", "work", "ADDRESS", "a b", "GROUP", "batch")
    with pytest.raises(redis.ResponseError, match="DUPLICATEADDRESS"):
        client.execute_command("TUBE.PUT", "jobs", "work", "ADDRESS", "a b")
    client.execute_command("TUBE.GROUP", "jobs", "batch", "ON_END", "finished")
    assert client.execute_command("TUBE.TAKE", "jobs") is None
    assert client.execute_command("TUBE.GROUP", "jobs", "batch", "PROGRESS") == {b"done": 0, b"total": 1}
    assert client.execute_command("TUBE.GROUP", "jobs", "batch", "START") == b"OK"
    assert client.execute_command("TUBE.TAKE", "jobs") == [1, b"t", b"work"]
    assert other.execute_command("TUBE.WAIT", "jobs", "a b", "TIMEOUT", "0.01") is None
    client.execute_command("TUBE.ACK", "jobs", 1, "RESULT", "42")
    outcome = other.execute_command("TUBE.WAIT", "jobs", "a b", "TIMEOUT", "10")
    assert outcome == {b"status": b"done", b"result": b"42", b"error": None, b"code": None}
    assert client.execute_command("TUBE.TAKE", "jobs") == [2, b"t", b"finished"]
