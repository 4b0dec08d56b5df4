"""One redis-py client and a server in a process of its own: pipelines of queue commands, beside pipelines of PING."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import redis

from bench.rates import DATA, Rates, alternate
from bench.report import Line, Size, Target

PIPELINE = 1000
# The other machine's figure, from BENCH.md: a put of tarantool's queue over the network, 9,600 to 11,700 a second.
_TARGETS = (Target("T16", 30_000, "/s, 3 × tarantool's queue over the network then", absolute=True),)


class Pipelines:
    """Each call sends so many commands, a thousand at a time."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._ids: list[bytes] = []

    def ping(self, count: int) -> None:
        self._run([("PING",)] * count)

    def push(self, count: int) -> None:
        self._run([("MQ.PUSH", "jobs", DATA)] * count)

    def pop(self, count: int) -> None:
        self._ids = [popped[0][0] for popped in self._run([("MQ.POP", 1, "jobs")] * count)]

    def ack(self, count: int) -> None:
        assert all(self._run([("MQ.ACK", "jobs", id) for id in self._ids]))

    def _run(self, commands: list[tuple[object, ...]]) -> list[Any]:
        answers: list[Any] = []
        for begin in range(0, len(commands), PIPELINE):
            pipeline = self._client.pipeline(transaction=False)
            for command in commands[begin : begin + PIPELINE]:
                pipeline.execute_command(*command)
            answers += pipeline.execute()
        return answers


def wire(size: Size) -> Iterator[Line]:
    """MQ.PUSH, MQ.POP and MQ.ACK of one client, each as a pipeline; SQLite relaxed."""
    found = {work: Rates([], []) for work in ("push", "pop", "ack")}
    tasks = size.pick(5000, 20_000)
    with _client() as client:
        pipelines = Pipelines(client)
        for round in range(size.pick(5, 9)):
            for work, rates in found.items():
                alternate(getattr(pipelines, work), pipelines.ping, tasks, rates, round % 2 == 0)
    for work, rates in found.items():
        name = f"wire, SQLite relaxed: MQ.{work.upper()}"
        yield Line(name, rates.rate, "/s", rates.base, rates.ratio, _TARGETS, "beside PING")


@contextmanager
def _client() -> Iterator[Any]:
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        url = f"sqlite:///{folder}/wire.db?durability=relaxed"
        start = "from penstock.cli.main import main; main()"
        command = [sys.executable, "-c", start, "--url", url, "serve", "--resp", "127.0.0.1:0"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            port = re.search(r":([0-9]+)\n", server.stdout.readline())
            assert port
            with redis.Redis(port=int(port[1])) as client:
                yield client
            server.terminate()
