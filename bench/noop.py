"""The app that workers drain in the benchmarks: tasks of 100 bytes, and nothing to do for them."""

from __future__ import annotations

import penstock

app = penstock.App()


@app.task(tube="noop")
def noop(data: str) -> None:
    """Do nothing."""
