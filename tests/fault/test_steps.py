"""A program killed at any step of chains, groups and transactions: links run once, effects equal tasks (section 10).

Kills at a few steps of each store; PENSTOCK_STEPS=all kills before every statement, or every message to the server, in
eight parts per store.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from itertools import count
from pathlib import Path

import pytest

import penstock
from penstock.app.app import App
from penstock.core.store_url import with_pool
from penstock.testing import run_queued
from tests.fault import killed_program
from tests.servers import running
from tests.servers.proxy import proxied
from tests.servers.vaults import bare_url
from tests.support.peer import ROOT, environment
from tests.support.threads import until

ALL = os.environ.get("PENSTOCK_STEPS") == "all"
PARTS = 8 if ALL else 1
#: Where in its run the program is killed: 0 is its first step, 1 its last.
PLACES = (0.2, 0.5, 0.8, 0.95)
POOL = "pool-postgres"
STORES = ("sqlite", "postgres", "mariadb", "redis", "redis-cluster", POOL)
#: Runs the program on a new store and kills it before a step (0: never). Returns the store and the steps it made.
Program = Callable[[int], tuple[str, int]]


@pytest.fixture(params=STORES)
def program(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Program]:
    with _on_sqlite(tmp_path) if request.param == "sqlite" else _on_servers(request.param) as program:
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
def _on_servers(name: str) -> Iterator[Program]:
    servers = [running(each) for each in (("redis", "postgres") if name == POOL else (name,))]
    with ExitStack() as opened:
        proxies = [opened.enter_context(proxied(server)) for server in servers]

        def run(step: int) -> tuple[str, int]:
            url = servers[0].fresh_url()
            if name == POOL:
                url = with_pool(url, bare_url(servers[1]))
            _prepare(url)
            through = url
            for server, proxy in zip(servers, proxies, strict=True):
                through = through.replace(str(server.port), str(proxy.port), 1)
            steps = count(1)
            done = _start(through)

            def killed() -> None:
                number = next(steps)
                if step and number >= step:
                    done.kill()
                    raise ConnectionError

            for proxy in proxies:
                proxy.on_request = killed
            done.communicate(timeout=120)
            for proxy in proxies:
                proxy.on_request = lambda: None
            made = next(steps) - 1
            assert done.returncode in (0, -signal.SIGKILL)  # 0: it finished with fewer steps than the time before
            return url, made

        yield run


def _start(*args: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.fault.killed_program", *args]
    return subprocess.Popen(command, env=environment(), cwd=ROOT, stdout=subprocess.PIPE)


def _prepare(url: str) -> None:
    """Create the tubes and the table of effects before the program runs: kills during creation are not tested here."""
    with closing(killed_program.make_app(url)) as app:
        for handler in app.handlers.values():
            app.broker.tube(handler.rules.tube)
    if killed_program.has_transactions(url):
        with closing(killed_program.database(url)) as db:
            db.cursor().execute("DROP TABLE IF EXISTS effects")
            db.cursor().execute("CREATE TABLE effects (number INTEGER)")


@pytest.mark.timeout(1200 if ALL else 300)
@pytest.mark.parametrize("part", range(PARTS))
def test_a_program_killed_at_any_step_loses_and_doubles_nothing(program: Program, part: int) -> None:
    _, steps = _checked(program, 0)
    for step in range(part + 1, steps + 1, PARTS) if ALL else (int(place * steps) for place in PLACES):
        try:
            _checked(program, step)
        except AssertionError as error:
            raise AssertionError(f"killed at step {step} of {steps}: {error}") from error


def _checked(program: Program, step: int) -> tuple[str, int]:
    url, made = program(step)
    with closing(killed_program.make_app(url)) as app:
        _finish(app)
        _check(app, url, whole=step == 0)
    return url, made


def _finish(app: App) -> None:
    """Run the rest in this process, as soon as the killed session is known to be dead."""
    tubes = [app.broker.tube(tube) for tube in dict.fromkeys(each.rules.tube for each in app.handlers.values())]
    for group in _groups(app):
        if group is not None and group.status == "open":  # no other process will start it
            group.cancel()

    def drained() -> bool:
        run_queued(app)
        # On a cluster, the next link of a chain may still be in the outbox of the one before.
        chained = {app.broker.tube(link).stats().calls.put for link in killed_program.LINKS}
        return len(chained) == 1 and not any(tube.stats().tasks.total for tube in tubes)

    until(drained, 60)


def _groups(app: App) -> Iterator[penstock.Group | None]:
    for tube in killed_program.GROUPS:
        try:
            yield app.broker.tube(tube).group("group", create=False)
        except penstock.NotFound:
            yield None


def _check(app: App, url: str, *, whole: bool) -> None:
    tubes = (*killed_program.LINKS, *killed_program.GROUPS, "rows")
    calls = {name: app.broker.tube(name).stats().calls for name in tubes}
    chains = calls["first"].put
    assert chains <= killed_program.CHAINS
    for link in killed_program.LINKS:
        assert (link, calls[link].put, calls[link].ack) == (link, chains, chains)
    members, ends = killed_program.MEMBERS, killed_program.MEMBERS + 1
    for tube, group in zip(killed_program.GROUPS, _groups(app), strict=True):
        status = group and group.status
        done = (ends, ends) if status == "done" else (calls[tube].put, 0)
        assert (tube, status, calls[tube].put, calls[tube].ack) == (tube, status, *done)
        if group is not None and status == "done":
            results = list(range(members)) if tube == "members" else [None] * members
            assert [outcome.result for _, outcome in group.results()] == results
        assert not whole or status == "done"
    rows = calls["rows"].put
    assert rows in (0, killed_program.ROWS)
    if killed_program.has_transactions(url):
        assert (_effects(url), app.broker.tube("notes").stats().calls.put) == (list(range(rows)), rows)
    assert not whole or chains == killed_program.CHAINS
    assert app.broker.check() == []


def _effects(url: str) -> list[int]:
    with closing(killed_program.database(url)) as db:
        cursor = db.cursor()
        cursor.execute("SELECT number FROM effects ORDER BY number")
        return [number for [number] in cursor]
