"""A program that puts and runs a chain, a group of calls and handlers with a transaction, killed at any step.

`python -m tests.fault.killed_program URL [STEP]`. On SQLite it kills itself before that statement, else a proxy does.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import closing
from itertools import count
from typing import Any
from urllib.parse import parse_qs, urlsplit

import apsw
import psycopg
import pymysql

import penstock
from penstock.app.app import App
from penstock.testing import run_queued

CHAINS, MEMBERS, ROWS = 2, 3, 2
LINKS = ("first", "second", "third")
GROUPS = ("members", "batch")  # their tubes


def has_transactions(url: str) -> bool:
    return not url.startswith("redis")


def database(url: str) -> Any:
    """The program's own connection to the store's database."""
    parts = urlsplit(url)
    if parts.scheme == "sqlite":
        connection = apsw.Connection(url.removeprefix("sqlite:///").partition("?")[0])
        connection.set_busy_timeout(30_000)
        return connection
    if parts.scheme == "postgresql":
        schema = parse_qs(parts.query)["schema"][0]
        return psycopg.connect(url.partition("?")[0], autocommit=True, options=f"-c search_path={schema}")
    return pymysql.connect(
        host=parts.hostname, port=parts.port or 0, user=parts.username, password=parts.password or "",
        database=parts.path[1:], autocommit=True,
    )  # fmt: skip


def make_app(url: str) -> App:
    """An app whose chain has one tube per link, so that counters show how often each link was put and acked."""
    app = penstock.App(url)

    @app.task(tube="first")
    def first(number: int) -> int:
        return number + 1

    @app.task(tube="second")
    def second(number: int) -> int:
        return 2 * number

    @app.task(tube="third")
    def third(number: int) -> int:
        return number

    @app.task(tube="members")
    def member(number: int) -> int:
        return number

    @app.task(tube="members")
    def last() -> str:
        return "all"

    @app.task(tube="batch")
    def one_of_batch(number: int) -> None: ...

    @app.task(tube="batch")
    def last_of_batch() -> None: ...

    @app.task(tube="notes")
    def note(number: int) -> None: ...

    @app.task(tube="rows")
    def row(number: int) -> None:
        with closing(database(url)) as db, penstock.current_task().transaction(db):
            db.cursor().execute(f"INSERT INTO effects VALUES ({number})")
            note.bind(db).put(number)

    return app


def run(app: App) -> None:
    """Put everything and run it to completion."""
    call = {name: handler.call for name, handler in app.handlers.items()}
    url = app.connection.url or ""
    for number in range(CHAINS):
        penstock.chain(call["first"](number), call["second"](), call["third"]()).put()
    with app.group("group") as group:
        group.put_many([call["member"](number) for number in range(MEMBERS)])
        group.then(call["last"]())
    with app.group("group") as group:
        group.put_many([call["one_of_batch"](number) for number in range(MEMBERS)])
        group.then(call["last_of_batch"]())
    batch = app.broker.tube("batch")
    batch.ack_many(batch.take_many(MEMBERS))  # all that is left of a group in one call
    if has_transactions(url):
        app.handlers["row"].put_many(range(ROWS))
    run_queued(app)


def _die_at(step: int) -> None:
    """Kill this process before that SQLite statement; 0: never. Prints the number of statements at the end."""
    steps = count(1)

    def trace(*_: object) -> bool:
        if next(steps) == step:
            os.kill(os.getpid(), signal.SIGKILL)
        return True

    def watch(connection: apsw.Connection) -> None:
        connection.exec_trace = trace

    apsw.connection_hooks.append(watch)
    run(make_app(sys.argv[1]))
    sys.stdout.write(str(next(steps) - 1))


if __name__ == "__main__":
    if len(sys.argv) > 2:
        _die_at(int(sys.argv[2]))
    else:
        run(make_app(sys.argv[1]))
