"""Handlers called from an event loop: puts are awaited and share calls, and nothing blocks the loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

import penstock
from penstock.app.app import AnyHandler, App
from penstock.core.options import Tube
from penstock.core.results import Stored
from penstock.core.task import Entry
from penstock.testing import run_queued
from tests.support.threads import until


@pytest.fixture
def app(store_url: str) -> Iterator[App]:
    app = penstock.App(store_url)
    yield app
    app.close()


def executors() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "penstock-aio"]


def test_put_and_wait_are_awaited(app: App) -> None:
    @app.task(tube="mail")
    def send(to: str, copies: int = 1) -> str:
        return f"{copies} to {to}"

    async def main() -> None:
        handle = await send.aio.put("ada", copies=2)
        later = await send.options(delay=60).aio.put("bob")
        some = await send.aio.put_many(["eve", ("joe", 3)], pri=1)
        assert (await handle.outcome(), await handle.progress()) == (None, None)
        with pytest.raises(TimeoutError):
            await handle.wait(0)
        waiting = asyncio.ensure_future(handle.result(60))
        await asyncio.to_thread(run_queued, app)
        assert await waiting == "2 to ada"
        assert [await one.result(60) for one in some] == ["1 to eve", "3 to joe"]
        assert (await send.aio.handle(handle.id).wait(60)).status == "done"
        assert app.broker.tube("mail").peek(later.id).status is penstock.Status.DELAYED

    asyncio.run(main())


def test_bad_input_is_refused_as_in_blocking_calls(app: App) -> None:
    @app.task
    def send(to: str) -> None: ...

    async def main() -> None:
        with pytest.raises(penstock.BadValue, match="send.put: to"):
            await send.aio.put(object())  # type: ignore[call-overload]
        with pytest.raises(penstock.BadValue, match="not a put option"):
            await send.aio.put_many(["ada"], capacity=3)  # type: ignore[call-arg]
        app.broker.tube("default").drop()
        assert (await send.aio.put("ada")).id == 1  # its tube is opened again

    send.put("before")
    app.broker.tube("default").truncate()
    asyncio.run(main())


@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
def test_many_at_once_share_store_calls_and_need_one_thread(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    @app.task
    def work(number: int) -> int:
        return number * 2

    store, puts = app.broker.runtime.store, list[int]()
    put = store.put

    def counted(tube: Tube, entries: list[Entry]) -> Stored:
        puts.append(len(entries))
        return put(tube, entries)

    monkeypatch.setattr(store, "put", counted)

    async def main() -> None:
        handles = await asyncio.gather(*(work.aio.put(number) for number in range(200)))
        assert (sum(puts), len(puts) <= 2) == (200, True)
        waits = [asyncio.ensure_future(handle.result(60)) for handle in handles]
        await asyncio.sleep(0)
        await asyncio.to_thread(run_queued, app)
        assert await asyncio.gather(*waits) == [number * 2 for number in range(200)]
        until(lambda: len(executors()) == 1)  # the thread of the app before may still be ending

    asyncio.run(main())


@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
def test_each_loop_has_its_own_thread_which_ends_with_it(app: App) -> None:
    @app.task
    def work() -> None: ...

    for _ in range(3):
        asyncio.run(_put_one(work))
    until(lambda: len(executors()) <= 1)
    app.close()
    until(lambda: not executors())


async def _put_one(work: AnyHandler) -> None:
    await work.aio.put()
