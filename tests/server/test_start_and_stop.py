"""Startup, SIGTERM and kill -9."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import threading
import time
from urllib.request import urlopen

import msgspec
import pytest
import redis

import penstock
from tests.server.server_process import COMMAND, ONCE, PATIENCE, Serve, read_exactly, read_to_end


def test_the_server_answers_soon_after_its_start(url: str) -> None:
    with Serve(url) as server:
        assert server.client().ping() is True
        assert server.cpu() < 4  # two seconds on an idle machine, more on a busy one


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it_and_releases_what_was_held(url: str, number: signal.Signals) -> None:
    with Serve(url) as server:
        client, waiting = server.raw(), server.raw()
        client.sendall(b"TUBE.CREATE t fifo\r\nTUBE.PUT t a\r\nTUBE.TAKE t\r\n")
        read_exactly(client, b"+OK\r\n:1\r\n*3\r\n:1\r\n$1\r\nt\r\n$1\r\na\r\n")
        waiting.sendall(b"PING\r\nTUBE.TAKE t TIMEOUT 60\r\n")
        read_exactly(waiting, b"+PONG\r\n")
        server.process.send_signal(number)
        _, stderr = server.process.communicate(timeout=PATIENCE)
        assert (server.process.returncode, stderr) == (0, "")
        assert read_to_end(client) == read_to_end(waiting) == b""
    with penstock.connect(url) as broker:
        assert broker.sessions() == []
        task = broker.tube("t").take(0)
        assert task is not None
        assert task.data == b"a"


def test_what_was_acknowledged_survives_kill_9(url: str) -> None:
    with Serve(url) as server:
        acknowledged: list[bytes] = []
        stop = threading.Event()

        def produce() -> None:
            client = server.client()
            try:
                while not stop.is_set():
                    pipeline = client.pipeline(transaction=False)
                    for number in range(50):
                        pipeline.execute_command("MQ.PUSH", "k", f"{len(acknowledged) + number}")
                    acknowledged.extend(ids[0] for ids in pipeline.execute())
            except Exception:
                pass

        producer = threading.Thread(target=produce)
        producer.start()
        while len(acknowledged) < 1000:
            time.sleep(0.005)
        server.kill()
        stop.set()
        producer.join()
        server.start()
        client = server.client()
        stored = {id: int(data) for id, data in client.execute_command("MQ.POP", 1_000_000, "k")}
        assert set(acknowledged) <= set(stored)
        assert sorted(stored.values()) == list(range(len(stored)))
        client.close()


def test_what_connections_held_is_ready_after_kill_9(url: str) -> None:
    with Serve(url) as server, penstock.connect(url) as broker:
        tube = broker.create_tube("t", "fifo")
        tube.put("a")
        client = server.client()
        assert client.execute_command("TUBE.TAKE", "t") == [1, b"t", b'"a"']
        server.kill()
        task = tube.take(PATIENCE)
        assert task is not None
        task.ack()


def run(*arguments: str) -> tuple[int, str]:
    done = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    return done.returncode, done.stderr


@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0", "192.0.2.1:7379"])
def test_an_open_address_without_a_token_is_refused(url: str, address: str) -> None:
    code, stderr = run("--url", url, "serve", "--resp", address)
    assert code == 1
    assert f"--resp {address} can be reached from other hosts without a token" in stderr


@pytest.mark.parametrize("address", ["7379", "localhost", "localhost:x", "localhost:99999", "", "[::1", "a b:1"])
def test_a_bad_address_is_refused(url: str, address: str) -> None:
    code, stderr = run("--url", url, "serve", "--resp", address)
    assert code == 1
    assert re.match(r"penstock: --resp .* (is not an address|cannot be resolved)", stderr)


def test_a_port_in_use_is_one_clear_line(url: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, stderr = run("--url", url, "serve", "--resp", f"127.0.0.1:{port}")
    assert code == 1
    assert stderr == (
        f"penstock: cannot listen on --resp 127.0.0.1:{port} (Address already in use): choose another port\n"
    )


def test_one_listener_that_cannot_start_ends_the_others(url: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        code, stderr = run(
            "--url", url, "serve", "--http", "127.0.0.1:0", "--resp", f"127.0.0.1:{taken.getsockname()[1]}"
        )
    assert code == 1
    assert "cannot listen on" in stderr


def test_both_protocols_are_served_on_one_broker(url: str) -> None:
    command = [*COMMAND, "--url", url, "serve", "--http", "127.0.0.1:0", "--resp", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        http, resp = (server.stdout.readline().removeprefix("penstock serves ").strip() for _ in range(2))
        with redis.Redis.from_url(resp, **ONCE) as client:
            client.execute_command("MQ.PUSH", "k", "a")
        with urlopen(f"{http}api/tubes") as answer:
            assert [tube["name"] for tube in msgspec.json.decode(answer.read())] == ["k"]
        server.terminate()
        assert server.communicate(timeout=PATIENCE)[1] == ""
        assert server.returncode == 0


def test_a_store_that_cannot_be_opened_is_one_clear_line() -> None:
    code, stderr = run("--url", "sqlite:////nowhere/at/all.db", "serve", "--resp", "127.0.0.1:0")
    assert code == 1
    assert stderr.startswith("penstock: /nowhere/at/all.db cannot be opened")
