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
from tests.worker import jobs
from tests.worker.program import PATIENCE, Program

Start = Callable[..., Program]
Work = Callable[[Settings], None]
Run = Callable[..., Worker]


@pytest.fixture(params=["sqlite"])  # a test on others gives their names by indirect parameters
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("PENSTOCK_LOCKS", str(tmp_path / "locks"))
    return STORES[request.param](tmp_path)


@pytest.fixture
def app(url: str) -> Iterator[App]:
    """The same app as in the workers, in this process; afterwards everything that is stored must still fit."""
    jobs.app.connection.use(url)
    yield jobs.app
    assert jobs.app.broker.check() == []
    jobs.app.close()


@pytest.fixture
def start(url: str, app: App) -> Iterator[Start]:
    """Starts workers, which are killed after the test."""
    with ExitStack() as started:

        def begin(*arguments: str) -> Program:
            program = started.enter_context(Program(url, *arguments))
            program.await_log("worker on")
            return program

        yield begin


@pytest.fixture
def work(url: str, app: App, clock: Clock) -> Iterator[Work]:
    """Starts a worker here, on a store whose clock stands still: however slow the machine is, no lease lapses."""
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
    """Starts a worker in this process, on one tube; what it still runs at the end is given back at once."""
    with ExitStack() as started:

        def begin(tube: str, concurrency: int = 16) -> Worker:
            worker = Worker(app, Settings(tubes=(tube,), concurrency=concurrency))
            worker.start()
            started.callback(worker.stop, 0)
            return worker

        yield begin


@pytest.fixture
def heard(app: App) -> Callable[[], object]:
    """What a handler said next."""

    def hear() -> object:
        task = app.broker.tube("said").take(PATIENCE)
        assert task is not None, "nothing was said"
        task.ack()
        return task.data

    return hear


@pytest.fixture
def tell(app: App) -> Callable[[str], None]:
    """Let a handler go on."""
    return lambda word: void(app.broker.tube(f"told-{word}").put("go"))


def hold(tube: penstock.Tube) -> penstock.Task:
    """Take what lapses for another one, for longer than its own ttr."""
    while True:
        task = tube.take(PATIENCE)
        assert task is not None
        with suppress(penstock.NotTaken):  # this process is slow, too
            task.touch(PATIENCE)
            return task


def void(value: object) -> None:
    """For a lambda that answers nothing."""
