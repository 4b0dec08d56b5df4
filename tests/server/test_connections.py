"""A connection is a session: what it holds, what it waits for, and what happens when it ends."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest
import redis

import penstock
from tests.server.server_process import Serve, read_exactly, read_to_end
from tests.support.threads import until


@pytest.fixture
def broker(server: Serve) -> Iterator[penstock.Broker]:
    """A broker of another process on the same store."""
    with penstock.connect(server.url) as broker:
        broker.create_tube("t", "fifottl")
        yield broker


def waiting(broker: penstock.Broker) -> int:
    return sum(len(session.waits) for session in broker.sessions())


def request(*words: str) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(w), w.encode()) for w in words)


def test_only_the_connection_that_took_may_ack(server: Serve, broker: penstock.Broker) -> None:
    one, two = server.client(), server.client()
    one.execute_command("TUBE.PUT", "t", "a")
    assert one.execute_command("TUBE.TAKE", "t") == [1, b"t", b"a"]
    with pytest.raises(redis.ResponseError, match="^NOTTAKEN cannot ack task 1 of tube t: it is not held"):
        two.execute_command("TUBE.ACK", "t", 1)
    assert one.execute_command("TUBE.ACK", "t", 1) == b"OK"
    with pytest.raises(redis.ResponseError, match="^NOTTAKEN"):
        one.execute_command("TUBE.ACK", "t", 1)


def test_what_a_broken_connection_held_is_ready_again(server: Serve, broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    tube.put(b"a")
    lost = server.raw()
    lost.sendall(request("TUBE.TAKE", "t"))
    read_exactly(lost, b"*3\r\n:1\r\n$1\r\nt\r\n$1\r\na\r\n")
    assert tube.take(0) is None
    lost.close()
    task = tube.take(30)
    assert task is not None
    assert (task.id, task.attempts) == (1, 2)
    task.ack()


def test_a_blocked_take_gets_what_another_process_puts(server: Serve, broker: penstock.Broker) -> None:
    client = server.raw()
    client.sendall(request("PING") + request("TUBE.TAKE", "t", "TIMEOUT", "60") + request("PING"))
    read_exactly(client, b"+PONG\r\n")  # answered before the wait
    until(lambda: waiting(broker) == 1)
    broker.tube("t").put(b"a")
    read_exactly(client, b"*3\r\n:1\r\n$1\r\nt\r\n$1\r\na\r\n+PONG\r\n")


def test_a_blocked_take_gets_what_another_connection_puts(server: Serve, broker: penstock.Broker) -> None:
    taker, putter = server.raw(), server.client()
    taker.sendall(request("TUBE.TAKE", "t", "TIMEOUT", "60"))
    until(lambda: waiting(broker) == 1)
    putter.execute_command("TUBE.PUT", "t", "a")
    read_exactly(taker, b"*3\r\n:1\r\n$1\r\nt\r\n$1\r\na\r\n")


@pytest.mark.parametrize("how", ["close", "reset", "shutdown"])
def test_a_client_that_disconnects_while_it_waits_takes_nothing(
    server: Serve, broker: penstock.Broker, how: str
) -> None:
    tube = broker.tube("t")
    tube.put(b"held")
    client = server.raw()
    client.sendall(request("TUBE.TAKE", "t"))
    read_exactly(client, b"*3\r\n:1\r\n$1\r\nt\r\n$4\r\nheld\r\n")
    client.sendall(request("TUBE.TAKE", "t", "TIMEOUT", "60"))
    until(lambda: waiting(broker) == 1)
    if how == "reset":
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    if how == "shutdown":
        client.shutdown(socket.SHUT_WR)
        assert read_to_end(client) == b""
    client.close()
    until(lambda: not [session for session in broker.sessions() if session.held or session.waits])
    # Not even the task that its own end released: it was handed out once.
    assert tube.peek(1).status == penstock.Status.READY
    assert tube.peek(1).attempts == 1
    assert tube.stats().calls.take == 1


def test_requests_before_the_end_of_input_are_answered(server: Serve, broker: penstock.Broker) -> None:
    client = server.raw()
    client.sendall(request("TUBE.PUT", "t", "a") + request("TUBE.PUT", "t", "b"))
    client.shutdown(socket.SHUT_WR)
    assert read_to_end(client) == b":1\r\n:2\r\n"
    assert broker.tube("t").stats().tasks.ready == 2


def test_connections_share_a_session_by_its_id(server: Serve, broker: penstock.Broker) -> None:
    one, two = server.client(), server.client()
    one.execute_command("TUBE.PUT", "t", "a")
    id = one.execute_command("TUBE.SESSION")
    assert two.execute_command("TUBE.SESSION", id) == id
    one.execute_command("TUBE.TAKE", "t")
    one.close()
    assert broker.tube("t").peek(1).status == penstock.Status.TAKEN
    assert two.execute_command("TUBE.ACK", "t", 1) == b"OK"


def test_a_session_outlives_its_connection_for_its_ttr(server: Serve, broker: penstock.Broker) -> None:
    one, two = server.client(), server.client()
    id = one.execute_command("TUBE.SESSION", "TTR", "30")
    one.execute_command("TUBE.PUT", "t", "a")
    one.execute_command("TUBE.TAKE", "t")
    one.close()
    assert two.execute_command("TUBE.SESSION", id) == id
    assert two.execute_command("TUBE.ACK", "t", 1) == b"OK"
    with pytest.raises(redis.ResponseError, match="^NOTFOUND session 6ba7b810-9dad-11d1-80b4-00c04fd430c8"):
        two.execute_command("TUBE.SESSION", "6ba7b810-9dad-11d1-80b4-00c04fd430c8")


def test_joining_another_session_releases_what_was_held(server: Serve, broker: penstock.Broker) -> None:
    one = server.client()
    one.execute_command("TUBE.PUT", "t", "a")
    one.execute_command("TUBE.TAKE", "t")
    one.execute_command("TUBE.SESSION", "TTR", "0")
    assert broker.tube("t").peek(1).status == penstock.Status.READY


def test_a_tube_that_was_dropped_and_created_again_is_found(server: Serve, broker: penstock.Broker) -> None:
    client = server.client()
    client.execute_command("TUBE.PUT", "t", "a")
    client.execute_command("MQ.PUSH", "k", "a")
    broker.tube("t").drop()
    broker.tube("k").drop()
    broker.create_tube("t", "fifo")
    assert client.execute_command("TUBE.PUT", "t", "b") == 1
    assert client.execute_command("MQ.POP", 1, "k") is None
    assert len(client.execute_command("MQ.PUSH", "k", "b")) == 1


def test_two_hundred_blocked_takes_cost_nothing_and_each_gets_one(server: Serve, broker: penstock.Broker) -> None:
    clients = [server.raw() for _ in range(200)]
    for client in clients:
        client.sendall(request("TUBE.TAKE", "t", "TIMEOUT", "300"))
    until(lambda: waiting(broker) == 200)
    before, began = server.cpu(), time.monotonic()
    threading.Event().wait(2)  # of silence, to measure
    assert server.cpu() - before < 0.25 * (time.monotonic() - began)
    putter = server.client()
    pipeline = putter.pipeline(transaction=False)
    for number in range(200):
        pipeline.execute_command("TUBE.PUT", "t", f"{number:03}")
    pipeline.execute()
    got = {client.recv(100).split(b"\r\n")[-2] for client in clients}
    assert got == {b"%03d" % number for number in range(200)}
    for client in clients:
        client.close()
    putter.close()
    until(lambda: broker.tube("t").stats().tasks.ready == 200)
