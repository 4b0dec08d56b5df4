"""An app with hooks, for workers with child processes: they append to the file that the variable HOOKED names."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import penstock

app = penstock.App()


def note(what: str) -> None:
    with Path(os.environ["HOOKED"]).open("a") as file:
        file.write(f"{os.getpid()} {what}\n")


@app.on_startup
def connect() -> None:
    note("startup")


@app.on_startup
async def begin() -> None:
    note("async startup")


@app.on_shutdown
async def end() -> None:
    note("async shutdown")


@app.on_shutdown
def disconnect() -> None:
    note("shutdown")


@app.around
def around(task: penstock.Task) -> Iterator[None]:
    note(f"around {task.id}")
    try:
        yield
    finally:
        note(f"over {task.id}")


@app.on_bury
def buried(task: penstock.Task, error: BaseException) -> None:
    note(f"bury {task.id} {error}")


@app.task(tube="hooked", executor="process")
def pid(fail: bool) -> int:
    if fail:
        raise penstock.Bury("as requested")
    record = logging.getLogger("shop").makeRecord("shop", logging.INFO, "", 0, "inside", (), None)
    note(f"log of {vars(record)['penstock_id']}")
    return os.getpid()
