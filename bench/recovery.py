"""How soon a task is handed out again after its holder was killed, on a machine that is idle or overloaded."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from statistics import median

import penstock
from bench.private_servers import fresh_store
from bench.reporting import Line, Size

STORES = ("sqlite", "redis", "postgres", "mariadb")
HOLDER = """
import sys, time, penstock
with penstock.connect(sys.argv[1]) as broker:
    task = broker.tube("t").take(60)
    print(task.id, flush=True)
    time.sleep(600)
"""


def recovery(size: Size) -> Iterator[Line]:
    """A take that is blocked in another process gets the task of one that was killed with -9."""
    yield from _recovery(size.pick(5, 10), "")


def recovery_loaded(size: Size) -> Iterator[Line]:
    """The same while 15 processes use all CPU."""
    with ExitStack() as opened:
        for _ in range(15):
            busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
            opened.callback(busy.wait)
            opened.callback(busy.kill)
        yield from _recovery(size.pick(5, 10), " with 15 busy processes")


def _recovery(rounds: int, load: str) -> Iterator[Line]:
    for store in STORES:
        with fresh_store(store) as (url, _):
            waits = [_wait(url) for _ in range(rounds)]
        note = f"load {os.getloadavg()[0]:.0f}, slowest {max(waits):.2f} s"
        yield Line(f"{store}: kill -9 of the holder→next take{load}", median(waits), "s", note=note)


def _wait(url: str) -> float:
    with penstock.connect(url) as broker:
        tube = broker.tube("t")
        tube.put("x")
        holder = subprocess.Popen([sys.executable, "-c", HOLDER, url], stdout=subprocess.PIPE)
        assert holder.stdout is not None
        holder.stdout.readline()
        tube.take(0.5)  # its session has joined, and its thread runs
        began = time.monotonic()
        holder.kill()
        task = tube.take(60)
        waited = time.monotonic() - began
        assert task is not None
        task.ack()
        holder.wait()
        holder.stdout.close()
        return waited
