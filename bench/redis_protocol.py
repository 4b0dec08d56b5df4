"""One redis-py client and a server in another process: pipelines of queue commands, compared with pipelines of PING."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import redis

from bench.rates import DATA, Rates, alternate
from bench.reporting import Line, Size, Target

PIPELINE = 1000
# Figures of another machine, from BENCH.md: tarantool's queue over the network does 9,600 to 11,700 puts, and 3,000 to
# 3,900 takes with their acks, per second.
_TARGETS = {
    "push": (Target("T16", 32_000, "/s, 3 × tarantool's queue over the network then", absolute=True),),
    "pop and ack": (Target("T16", 10_400, "/s, 3 × tarantool's queue over the network then", absolute=True),),
}


class Pipelines:
    """Each call sends a number of commands, a thousand at a time."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def ping(self, count: int) -> None:
        self._run([("PING",)] * count)

    def push(self, count: int) -> None:
        self._run([("MQ.PUSH", "jobs", DATA)] * count)

    def pop_and_ack(self, count: int) -> None:
        for _ in range(0, count, PIPELINE):
            ids = [popped[0][0] for popped in self._run([("MQ.POP", 1, "jobs")] * PIPELINE)]
            assert all(self._run([("MQ.ACK", "jobs", id) for id in ids]))

    def _run(self, commands: list[tuple[object, ...]]) -> list[Any]:
        answers: list[Any] = []
        for begin in range(0, len(commands), PIPELINE):
            pipeline = self._client.pipeline(transaction=False)
            for command in commands[begin : begin + PIPELINE]:
                pipeline.execute_command(*command)
            answers += pipeline.execute()
        return answers


def wire(size: Size) -> Iterator[Line]:
    """MQ.PUSH, then MQ.POP and MQ.ACK of one client, as pipelines of a thousand; SQLite relaxed."""
    found = {work: Rates([], []) for work in _TARGETS}
    spent = dict.fromkeys(_TARGETS, 0.0)
    tasks, rounds = size.pick(5000, 20_000), size.pick(5, 9)
    with _client() as (client, server):
        pipelines = Pipelines(client)
        for round in range(rounds):
            for work, rates in found.items():
                ours, before = getattr(pipelines, work.replace(" ", "_")), _cpu(server)
                alternate(ours, pipelines.ping, tasks, rates, round % 2 == 0)
                spent[work] += _cpu(server) - before
    for work, rates in found.items():
        cost = f"compared with PING; both took {spent[work] / tasks / rounds * 1e6:.0f} µs of the server's processor"
        yield Line(f"wire, SQLite relaxed: {work}", rates.rate, "/s", rates.base, rates.ratio, _TARGETS[work], cost)


def _cpu(process: int) -> float:
    """The CPU seconds of a process, which do not depend on other load."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def _client() -> Iterator[tuple[Any, int]]:
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        url = f"sqlite:///{folder}/wire.db?durability=relaxed"
        start = "from penstock.cli.main import main; main()"
        command = [sys.executable, "-c", start, "--url", url, "serve", "--resp", "127.0.0.1:0"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            port = re.search(r":([0-9]+)\n", server.stdout.readline())
            assert port
            with redis.Redis(port=int(port[1])) as client:
                yield client, server.pid
            server.terminate()
