"""The end of a `with task:` block whose server is down, or whose answer is lost: the task is settled once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import suppress

import pytest

import penstock
from penstock import aio
from penstock.broker import tube as tubes
from penstock.operations.operation import blocking
from penstock.testing import Clock
from tests.servers import DURABLE, running, started
from tests.servers.base import Server
from tests.servers.proxy import Proxy
from tests.support.event_loops import in_loop
from tests.support.event_loops import until as aio_until
from tests.support.inspection import calls, tasks
from tests.support.threads import begin, until
from tests.support.verbs import take

PATIENCE = 120.0
again = blocking(tubes.Tube._settle_again)
AWAY = "blocked calls resume when it returns"


@pytest.fixture(params=("postgres", "mariadb", "redis"))
def server(request: pytest.FixtureRequest) -> Server:
    return running(request.param)


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    proxy = Proxy(server.port)
    yield proxy
    proxy.close()


@pytest.fixture
def url(server: Server, proxy: Proxy) -> str:
    return server.fresh_url().replace(str(server.port), str(proxy.port))


@pytest.fixture
def tube(url: str) -> Iterator[penstock.Tube]:
    """A tube with one task, whose leases end only when their holder returns them."""
    with penstock.connect(url, clock=Clock()) as broker:
        tube = broker.tube("t", kind="fifo")
        tube.put("x")
        yield tube


def leave(task: penstock.Task, proxy: Proxy, error: Exception | None) -> None:
    """End a block whose next answer will be lost."""
    with task:
        proxy.losses = 1
        if error is not None:
            raise error


def test_an_ack_whose_answer_is_lost_is_one_ack(tube: penstock.Tube, proxy: Proxy) -> None:
    task = take(tube)
    leave(task, proxy, None)
    assert (proxy.lost_answers, task.status) == (1, penstock.Status.DONE)
    assert (calls(tube), tasks(tube)) == ({"put": 1, "take": 1, "ack": 1}, {"done": 1})


def test_a_release_whose_answer_is_lost_is_one_release(
    tube: penstock.Tube, proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    task = take(tube)
    with pytest.raises(ValueError, match="mailbox full"):
        leave(task, proxy, ValueError("mailbox full"))
    assert (proxy.lost_answers, task.status, task.reason) == (1, penstock.Status.READY, "ValueError: mailbox full")
    assert (calls(tube), tasks(tube)) == ({"put": 1, "take": 1, "release": 1}, {"ready": 1, "total": 1})
    assert "could not release task" not in caplog.text


@pytest.mark.parametrize("verb", ["ack", "release"])
def test_a_lease_that_ended_meanwhile_is_reported(verb: str) -> None:
    """A retry must not mistake this for a first attempt that was applied."""
    with penstock.connect("memory://") as broker:
        tube = broker.tube("t")
        tube.put("x")
        task = take(tube)
        move = tube._move(verb, task)
        tube.release_all()
        take(tube)
        with pytest.raises(penstock.NotTaken):
            again(tube, task, move)


# Other drivers try for seconds to reach a server that is down.
ON_MARIADB = pytest.mark.parametrize("server", ["mariadb"], indirect=True)


def cut_off(proxy: Proxy) -> None:
    """Make the server unreachable from now on."""
    proxy.refuse = True
    proxy.cut()


def ending_offline(task: penstock.Task, proxy: Proxy, caplog: pytest.LogCaptureFixture) -> Future[None]:
    """A block, in another thread, that has found its server down at its end."""

    def block() -> None:
        with task:
            cut_off(proxy)

    ending = begin(block)
    until(lambda: AWAY in caplog.text or ending.done())
    return ending


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retry for long enough that a server can start on a slow machine."""
    monkeypatch.setattr(tubes, "PATIENCE", 600.0)


@ON_MARIADB
@pytest.mark.usefixtures("patient")
def test_the_end_of_a_block_outlasts_its_server(
    tube: penstock.Tube, proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    task = take(tube)
    ending = ending_offline(task, proxy, caplog)
    proxy.refuse = False
    ending.result(PATIENCE)
    assert task.status is penstock.Status.DONE
    assert calls(tube) == {"put": 1, "take": 1, "ack": 1}


@ON_MARIADB
def test_a_server_that_stays_down_is_reported(
    tube: penstock.Tube, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tubes, "PATIENCE", 0.1)
    task = take(tube)
    with pytest.raises((penstock.StoreUnavailable, penstock.OutcomeUnknown)), task:
        cut_off(proxy)
    assert task.status is penstock.Status.TAKEN
    proxy.refuse = False
    task.ack()
    assert calls(tube) == {"put": 1, "take": 1, "ack": 1}


@ON_MARIADB
def test_a_failed_release_is_logged_and_the_first_error_raised(
    tube: penstock.Tube, proxy: Proxy, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tubes, "PATIENCE", 0.1)
    with pytest.raises(ValueError, match="mailbox full"), take(tube):
        cut_off(proxy)
        raise ValueError("mailbox full")
    assert "could not release task 1 of tube t" in caplog.text
    proxy.refuse = False
    assert tasks(tube) == {"taken": 1, "total": 1}


@ON_MARIADB
@pytest.mark.usefixtures("patient")
def test_a_broker_that_is_closed_ends_the_attempts(url: str, proxy: Proxy, caplog: pytest.LogCaptureFixture) -> None:
    broker = penstock.connect(url)
    tube = broker.tube("t")
    tube.put("x")
    ending = ending_offline(take(tube), proxy, caplog)
    with suppress(penstock.StoreError):  # the caller gets no answer
        broker.close()
    with pytest.raises((penstock.StoreUnavailable, penstock.OutcomeUnknown)):
        ending.result(PATIENCE)


@pytest.mark.usefixtures("patient")
def test_the_end_of_an_awaited_block_outlasts_a_kill_of_its_server(caplog: pytest.LogCaptureFixture) -> None:
    async def noticed() -> bool:
        return AWAY in caplog.text

    async def main(server: Server) -> None:
        async with aio.connect(server.fresh_url(), clock=Clock()) as broker:  # no session lapses meanwhile
            tube = await broker.tube("t", kind="fifo")
            await tube.put_many(range(3))
            held = await tube.take_many(3)

            async def block(task: aio.Task) -> None:
                async with task:
                    await killed.wait()
                    if task.data == 2:
                        raise ValueError("mailbox full")

            killed = asyncio.Event()
            blocks = [asyncio.ensure_future(block(task)) for task in held]
            await asyncio.to_thread(server.kill)
            killed.set()
            await aio_until(noticed, PATIENCE)
            await asyncio.to_thread(server.start)
            ended = await asyncio.gather(*blocks, return_exceptions=True)
            assert [type(end) for end in ended] == [type(None), type(None), ValueError]
            stats = await tube.stats()
            assert (stats.calls.ack, stats.calls.release, stats.tasks.ready) == (2, 1, 1)

    with started(DURABLE["redis"]) as server:
        in_loop(lambda: main(server))
