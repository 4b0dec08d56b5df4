"""A program killed at any step of chains, groups and transactions: each link once, effects equal tasks (section 10).

A few steps of each store; PENSTOCK_STEPS=all kills it before every statement, or every message to the server.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path

import pytest

import penstock
from penstock.app.app import App
from penstock.testing import run_queued
from tests.fault import stepped
from tests.processes.peer import ROOT, environment
from tests.servers import running
from tests.servers.proxy import proxied
from tests.support.threads import until

ALL = os.environ.get("PENSTOCK_STEPS") == "all"
#: Where in its run the program is killed: 0 is its first step, 1 its last.
PLACES = (0.2, 0.5, 0.8, 0.95)
STORES = ("sqlite", "postgres", "mariadb", "redis", "redis-cluster")
#: Runs the program on a fresh store and kills it before a step (0: at none). Returns the store and the steps it made.
Program = Callable[[int], tuple[str, int]]


@pytest.fixture(params=STORES)
def program(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Program]:
    with _on_sqlite(tmp_path) if request.param == "sqlite" else _on_server(request.param) as program:
        yield program


@contextmanager
def _on_sqlite(folder: Path) -> Iterator[Program]:
    files = count(1)

    def run(step: int) -> tuple[str, int]:
        url = f"sqlite:///{folder}/{next(files)}.db?durability=relaxed"
        _prepare(url)
        done = _start(url, str(step))
        made, _ = done.communicate(timeout=120)
        assert done.returncode == (-signal.SIGKILL if step else 0)
        return url, int(made or step)

    yield run


@contextmanager
def _on_server(name: str) -> Iterator[Program]:
    server = running(name)
    with proxied(server) as proxy:

        def run(step: int) -> tuple[str, int]:
            url = server.fresh_url()
            _prepare(url)
            steps = count(1)
            done = _start(url.replace(str(server.port), str(proxy.port), 1))

            def killed() -> None:
                number = next(steps)
                if step and number >= step:
                    done.kill()
                    raise ConnectionError

            proxy.on_request = killed
            done.communicate(timeout=120)
            proxy.on_request = lambda: None
            made = next(steps) - 1
            assert done.returncode in (0, -signal.SIGKILL)  # 0: it was done with fewer steps than the time before
            return url, made

        yield run


def _start(*args: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.fault.stepped", *args]
    return subprocess.Popen(command, env=environment(), cwd=ROOT, stdout=subprocess.PIPE)


def _prepare(url: str) -> None:
    """The tubes, and the table of effects: a program that is killed while it creates them is of no interest here."""
    with closing(stepped.make_app(url)) as app:
        for handler in app.handlers.values():
            app.broker.tube(handler.rules.tube)
    if stepped.has_transactions(url):
        with closing(stepped.database(url)) as db:
            db.cursor().execute("DROP TABLE IF EXISTS effects")
            db.cursor().execute("CREATE TABLE effects (number INTEGER)")


@pytest.mark.timeout(3600 if ALL else 300)
def test_a_program_killed_at_any_step_loses_and_doubles_nothing(program: Program) -> None:
    _, steps = _checked(program, 0)
    for step in range(1, steps + 1) if ALL else (int(place * steps) for place in PLACES):
        try:
            _checked(program, step)
        except AssertionError as error:
            raise AssertionError(f"killed at step {step} of {steps}: {error}") from error


def _checked(program: Program, step: int) -> tuple[str, int]:
    url, made = program(step)
    with closing(stepped.make_app(url)) as app:
        _finish(app)
        _check(app, url, whole=step == 0)
    return url, made


def _finish(app: App) -> None:
    """What is left runs here, as soon as the killed session is known to be dead."""
    tubes = [app.broker.tube(tube) for tube in dict.fromkeys(each.rules.tube for each in app.handlers.values())]
    group = _group(app)
    if group is not None and group.status == "open":  # nobody will start it any more
        group.cancel()

    def drained() -> bool:
        run_queued(app)
        # On a cluster, the next link of a chain may still be in the outbox of the one before.
        chained = {app.broker.tube(link).stats().calls.put for link in stepped.LINKS}
        return len(chained) == 1 and not any(tube.stats().tasks.total for tube in tubes)

    until(drained, 60)


def _group(app: App) -> penstock.Group | None:
    try:
        return app.broker.tube("members").group("group", create=False)
    except penstock.NotFound:
        return None


def _check(app: App, url: str, *, whole: bool) -> None:
    calls = {name: app.broker.tube(name).stats().calls for name in ("first", "second", "third", "members", "rows")}
    chains = calls["first"].put
    assert chains <= stepped.CHAINS
    for link in stepped.LINKS:
        assert (link, calls[link].put, calls[link].ack) == (link, chains, chains)
    group, ends = _group(app), stepped.MEMBERS + 1
    if group is not None and group.status == "done":
        assert (calls["members"].put, calls["members"].ack) == (ends, ends)
        assert [outcome.result for _, outcome in group.results()] == list(range(stepped.MEMBERS))
    else:
        assert calls["members"].ack == 0
    rows = calls["rows"].put
    assert rows in (0, stepped.ROWS)
    if stepped.has_transactions(url):
        assert (_effects(url), app.broker.tube("notes").stats().calls.put) == (list(range(rows)), rows)
    if whole:
        assert (chains, group and group.status) == (stepped.CHAINS, "done")
    assert app.broker.check() == []


def _effects(url: str) -> list[int]:
    with closing(stepped.database(url)) as db:
        cursor = db.cursor()
        cursor.execute("SELECT number FROM effects ORDER BY number")
        return [number for [number] in cursor]
