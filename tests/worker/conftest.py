"""A store that a worker process and the test share, and the app of the tests on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

import penstock
from penstock.app.app import App
from penstock.broker.broker import connect
from penstock.testing import Clock
from penstock.worker.settings import Settings
from penstock.worker.worker import Worker
from tests.conftest import STORES
from tests.support.worker_process import PATIENCE, Program
from tests.worker import jobs

Start = Callable[..., Program]
Work = Callable[[Settings], None]
Run = Callable[..., Worker]


@pytest.fixture(params=["sqlite"])  # tests on other stores name them by indirect parameters
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("PENSTOCK_LOCKS", str(tmp_path / "locks"))
    return STORES[request.param](tmp_path)


@pytest.fixture
def app(url: str) -> Iterator[App]:
    """The workers' app, in this process; after the test, everything stored must be consistent."""
    jobs.app.connection.use(url)
    yield jobs.app
    assert jobs.app.broker.check() == []
    jobs.app.close()


@pytest.fixture
def start(url: str, app: App) -> Iterator[Start]:
    """Starts worker processes and kills them after the test."""
    with ExitStack() as started:

        def begin(*arguments: str) -> Program:
            program = started.enter_context(Program(url, *arguments))
            program.await_log("worker on")
            return program

        yield begin


@pytest.fixture
def work(url: str, app: App, clock: Clock) -> Iterator[Work]:
    """Starts a worker in this process, on a store with a stopped clock: no lease ends, however slow the machine is."""
    app.close()
    app.connection._broker = connect(url, clock=clock)
    with ExitStack() as started:

        def begin(settings: Settings) -> None:
            worker = Worker(app, settings)
            worker.start()
            started.callback(worker.stop)

        yield begin


@pytest.fixture
def run(app: App) -> Iterator[Run]:
    """Starts a worker in this process, on one tube; tasks that it still runs at the end are released at once."""
    with ExitStack() as started:

        def begin(tube: str, concurrency: int = 16) -> Worker:
            worker = Worker(app, Settings(tubes=(tube,), concurrency=concurrency))
            worker.start()
            started.callback(worker.stop, 0)
            return worker

        yield begin


@pytest.fixture
def receive(app: App) -> Callable[[], object]:
    """The next message of a handler."""

    def next_message() -> object:
        task = app.broker.tube("reported").take(PATIENCE)
        assert task is not None, "nothing was reported"
        task.ack()
        return task.data

    return next_message


@pytest.fixture
def send(app: App) -> Callable[[str], None]:
    """Sends a word that a handler waits for."""
    return lambda word: void(app.broker.tube(f"go-{word}").put("go"))


def hold(tube: penstock.Tube) -> penstock.Task:
    """Take a task whose lease ends, and hold it for longer than its ttr."""
    while True:
        task = tube.take(PATIENCE)
        assert task is not None
        with suppress(penstock.NotTaken):  # this process is slow, too
            task.touch(PATIENCE)
            return task


def void(value: object) -> None:
    """For a lambda that returns nothing."""
