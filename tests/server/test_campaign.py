"""Clients that disconnect anywhere and a server that is killed: nothing acknowledged is lost or acked twice."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections import Counter
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

import penstock
from tests.server.server_process import Serve
from tests.support.threads import until

LOST = (redis.ConnectionError, redis.TimeoutError, OSError)


class Campaign:
    """Client threads on one server, which record every answer."""

    def __init__(self, server: Serve) -> None:
        self.server = server
        self.put: list[int] = []
        self.acked: list[int] = []
        self.unsure: list[int] = []  # acks whose reply never came
        self.producing = threading.Event()
        self.over = threading.Event()

    def wait_for_more(self) -> None:
        """Wait until some more was put and acked."""
        put, acked = len(self.put), len(self.acked)
        until(lambda: len(self.put) > put + 40 and len(self.acked) > acked + 40, 120)

    def produce(self, seed: int) -> None:
        chance = random.Random(seed)
        while not self.producing.is_set():
            try:
                with self._client() as client:
                    for _ in range(chance.randint(1, 20)):
                        pipeline = client.pipeline(transaction=False)
                        for _ in range(chance.randint(1, 10)):
                            pipeline.execute_command("TUBE.PUT", "t", "x")
                        self.put += pipeline.execute()
                        self.producing.wait(0.05)
            except LOST:
                time.sleep(0.05)

    def consume(self, seed: int) -> None:
        chance = random.Random(seed)
        while not self.over.is_set():
            try:
                with self._client() as client:
                    for _ in range(chance.randint(1, 15)):
                        self._take(client, chance)
            except LOST:
                time.sleep(0.05)

    def _take(self, client: Any, chance: random.Random) -> None:
        if chance.random() < 0.2:
            self._break_off(chance)
        task = client.execute_command("TUBE.TAKE", "t", "TIMEOUT", "0.2")
        if task is None or chance.random() < 0.1:
            return
        self.unsure.append(task[0])
        client.execute_command("TUBE.ACK", "t", task[0])
        self.acked.append(task[0])

    def _break_off(self, chance: random.Random) -> None:
        """Open a connection that takes a task and disconnects, at once or a little later."""
        with socket.create_connection(("127.0.0.1", self.server.port), timeout=5) as client:
            client.sendall(b"TUBE.TAKE t TIMEOUT 5\r\n")
            time.sleep(chance.random() * 0.02)
            if chance.random() < 0.5:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")

    def _client(self) -> Any:
        once = Retry(NoBackoff(), 0)
        return redis.Redis(port=self.server.port, single_connection_client=True, socket_timeout=10, retry=once)


@pytest.mark.timeout(900)
def test_clients_disconnect_and_the_server_is_killed(url: str) -> None:
    with Serve(url) as server:
        server.client().execute_command("TUBE.CREATE", "t", "fifo")
        campaign = Campaign(server)
        producers = [threading.Thread(target=campaign.produce, args=(seed,)) for seed in range(2)]
        consumers = [threading.Thread(target=campaign.consume, args=(seed,)) for seed in range(10, 16)]
        for thread in (*producers, *consumers):
            thread.start()
        try:
            for _ in range(2):
                campaign.wait_for_more()
                server.kill()
                server.start()
            campaign.wait_for_more()
        finally:
            campaign.producing.set()
        for thread in producers:  # otherwise the last put could come after the consumers have ended
            thread.join()
        with penstock.connect(url) as broker:
            tube = broker.tube("t")
            deadline = time.monotonic() + 120
            while tube.stats().tasks.total and time.monotonic() < deadline:
                time.sleep(0.05)
            campaign.over.set()
            for thread in consumers:
                thread.join()
            assert tube.stats().tasks.total == 0
            assert broker.check() == []
        assert [id for id, times in Counter(campaign.acked).items() if times > 1] == []
        assert set(campaign.put) <= set(campaign.unsure)
        assert len(campaign.put) > 100
