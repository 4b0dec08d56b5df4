"""Handlers that write their rows and ack their task in one transaction, on a SQLite file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import apsw

import penstock

app = penstock.App()
FAST = penstock.Backoff(base=0.01, limit=0.01, jitter=0)


@contextmanager
def database() -> Iterator[apsw.Connection]:
    assert app.connection.url is not None
    connection = apsw.Connection(app.connection.url.removeprefix("sqlite:///").partition("?")[0])
    connection.set_busy_timeout(30_000)
    try:
        yield connection
    finally:
        connection.close()


@app.task(tube="notes")
def note(text: str) -> None: ...


def write(text: str, how: str) -> str:
    """Write a row, put a note and ack the task; `how` selects what else happens."""
    task = penstock.current_task()
    with database() as db:
        if how in ("outer", "forgotten"):
            app.broker.tubes()  # connect before the transaction locks the file
            db.execute("BEGIN IMMEDIATE")
        with task.transaction(db, result=f"kept {text}"):
            db.execute("INSERT INTO rows VALUES (?)", (f"{text} {task.attempts}",))
            note.bind(db).put(text)
            if how == "raise" and task.attempts == 1:
                raise ValueError("inside")
        if task.attempts == 1 and how in ("outer", "forgotten"):
            db.execute("ROLLBACK")
            if how == "forgotten":
                return "ignored"
            raise ValueError("after it")
        if how in ("outer", "forgotten"):
            db.execute("COMMIT")
    return "ignored"


@app.task(tube="work", backoff=FAST)
def in_thread(text: str, how: str = "") -> str:
    return write(text, how)


@app.task(tube="work", backoff=FAST)
async def in_loop(text: str, how: str = "") -> str:
    task = penstock.current_task()
    with database() as db:
        async with task.transaction(db, result=f"kept {text}"):
            db.execute("INSERT INTO rows VALUES (?)", (f"{text} {task.attempts}",))
            note.bind(db).options(pri=1).put(text)
            if how == "raise" and task.attempts == 1:
                raise ValueError("inside")
    return "ignored"


@app.task(tube="work", backoff=FAST, executor="process")
def in_process(text: str, how: str = "") -> str:
    return write(text, how)
