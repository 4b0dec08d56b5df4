"""An app with a schedule, for tests with several workers."""

from __future__ import annotations

import penstock

app = penstock.App()


@app.every(0.25)
def tick() -> None:
    data = penstock.current_task().data
    assert isinstance(data, dict)
    app.broker.tube("ticks").put(data["tick"])
