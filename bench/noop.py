"""The app that workers drain in the benchmarks: tasks of 100 bytes, and nothing to do for them."""

from __future__ import annotations

import time

import penstock

app = penstock.App()


@app.task(tube="noop")
def noop(data: str) -> None:
    """Do nothing."""


@app.task(tube="stamp")
def stamp(sent: int) -> int:
    """How long it took to come here, in ns of the clock that all processes share."""
    return time.monotonic_ns() - sent
