"""An app with hooks, for workers with child processes: they append to the file that the variable HOOKED names."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import penstock

app = penstock.App()


def say(what: str) -> None:
    with Path(os.environ["HOOKED"]).open("a") as file:
        file.write(f"{os.getpid()} {what}\n")


@app.on_startup
def connect() -> None:
    say("startup")


@app.on_startup
async def begin() -> None:
    say("async startup")


@app.on_shutdown
async def end() -> None:
    say("async shutdown")


@app.on_shutdown
def disconnect() -> None:
    say("shutdown")


@app.around
def around(task: penstock.Task) -> Iterator[None]:
    say(f"around {task.id}")
    try:
        yield
    finally:
        say(f"over {task.id}")


@app.on_bury
def buried(task: penstock.Task, error: BaseException) -> None:
    say(f"bury {task.id} {error}")


@app.task(tube="hooked", executor="process")
def pid(fail: bool) -> int:
    if fail:
        raise penstock.Bury("as requested")
    record = logging.getLogger("shop").makeRecord("shop", logging.INFO, "", 0, "inside", (), None)
    say(f"log of {vars(record)['penstock_id']}")
    return os.getpid()
