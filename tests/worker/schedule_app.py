"""An app with a schedule, for tests with several workers."""

from __future__ import annotations

import penstock

app = penstock.App()


@app.every(0.25)
def tick() -> None:
    task = penstock.current_task()
    assert isinstance(task.data, dict)
    app.broker.tube("ticks").put([task.data["tick"], task.id])
