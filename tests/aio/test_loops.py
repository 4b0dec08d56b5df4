"""What a broker does when its event loop, thread or process ends."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import Any

import pytest

import penstock
from penstock import aio
from penstock.runtime.wait_queue import WaitQueue
from tests.support.event_loops import PATIENCE, blocked, bridge_threads, cancelled, counts, held_back, in_loop, until
from tests.support.threads import begin
from tests.support.threads import until as until_here


def test_connect_can_be_awaited(store_url: str) -> None:
    async def main() -> None:
        broker = await aio.connect(store_url)
        assert await broker.tubes() == []
        async with broker:
            pass
        with pytest.raises(penstock.StoreUnavailable, match="closed: connect again"):
            await broker.tubes()
        await broker.close()
        assert bridge_threads() == 0

    in_loop(main)


def test_a_broker_that_cannot_be_opened_leaves_no_thread() -> None:
    async def main() -> None:
        with pytest.raises(penstock.BadValue, match="no known scheme"):
            async with aio.connect("nowhere://"):
                raise AssertionError
        await until(_no_threads)

    in_loop(main)


def test_a_cancelled_connect_leaves_no_thread_and_no_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        opened, proceed = list[penstock.Broker](), threading.Event()
        init: Any = penstock.Broker.__init__

        def slow(broker: penstock.Broker, store: Any) -> None:
            init(broker, store)
            opened.append(broker)
            assert proceed.wait(PATIENCE)

        monkeypatch.setattr(penstock.Broker, "__init__", slow)

        async def open() -> aio.Broker:
            return await aio.connect("memory://")

        call = asyncio.ensure_future(open())
        await until(_opened(opened))
        await cancelled(call)
        proceed.set()
        await until(_no_threads)
        assert opened[0].runtime.closed

    in_loop(main)


def _opened(opened: list[penstock.Broker]) -> Any:
    async def look() -> bool:
        return bool(opened)

    return look


async def _no_threads() -> bool:
    return bridge_threads() == 0


def test_calls_made_before_the_close_are_answered(store_url: str) -> None:
    async def main() -> None:
        broker = await aio.connect(store_url)
        tube = await broker.tube("t")
        with penstock.connect(store_url) as other:
            puts = [asyncio.ensure_future(tube.put(number)) for number in range(100)]
            takes = [asyncio.ensure_future(tube.take_many(1, None)) for _ in range(150)]
            await asyncio.sleep(0)
            await broker.close()
            assert [(await put).data for put in puts] == list(range(100))
            assert sum(map(len, await asyncio.gather(*takes))) <= 100
            assert other.tube("t").stats().tasks.ready == 100
            assert [session.waits for session in other.sessions()] == []
        assert bridge_threads() == 0

    in_loop(main)


def test_calls_that_wait_when_the_broker_is_closed(store_url: str) -> None:
    async def main() -> None:
        broker = await aio.connect(store_url)
        tube, full = await broker.tube("t"), await broker.tube("full", capacity=1)
        await full.put(1)
        takes = [asyncio.ensure_future(tube.take()) for _ in range(100)]
        several = asyncio.ensure_future(broker.take(["t"]))
        room = asyncio.ensure_future(full.put(2, timeout=None))
        await blocked(broker, 101)
        await blocked(broker, 1, "room")
        await asyncio.gather(broker.close(), broker.close())
        assert await asyncio.gather(*takes, several) == [None] * 101
        with pytest.raises(penstock.StoreUnavailable, match="closed"):
            await room

    in_loop(main)


def test_a_close_while_the_store_is_down_wakes_everyone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        broker = await aio.connect("memory://")
        tube, sessions = await broker.tube("t"), [await broker.session() for _ in range(3)]
        tubes = [tube, *[await session.tube("t") for session in sessions]]
        takes = [asyncio.ensure_future(each.take()) for each in tubes]
        await blocked(broker, 4)
        store: Any = broker.sync.runtime._store

        def away(*args: object, **kwargs: object) -> None:
            raise penstock.StoreUnavailable("the server is away")

        monkeypatch.setattr(store, "leave", away)
        await broker.close()
        assert "the server is away" in caplog.text
        assert await asyncio.gather(*takes) == [None] * 4
        assert bridge_threads() == 0

    in_loop(main)


def test_an_error_in_the_block_closes_the_broker(store_url: str) -> None:
    async def main() -> None:
        with pytest.raises(ValueError, match="mine"):
            async with aio.connect(store_url) as broker:
                await (await broker.tube("t", kind="fifo")).put("x")
                assert await broker.take(["t"]) is not None
                raise ValueError("mine")
        async with aio.connect(store_url) as broker:
            if not store_url.startswith("memory"):
                assert await counts(await broker.tube("t")) == {"ready": 1, "total": 1}

    in_loop(main)


def test_a_cancelled_close_still_completes() -> None:
    async def main() -> None:
        broker = await aio.connect("memory://")
        tube = await broker.tube("t")
        made, proceed = held_back(broker, "put")
        put = asyncio.ensure_future(tube.put("x"))
        await made.wait()
        closing = asyncio.ensure_future(broker.close())
        await asyncio.sleep(0)
        await cancelled(closing)
        proceed.set()
        assert (await put).id == 1
        await until(_no_threads)
        with pytest.raises(penstock.StoreUnavailable):
            await tube.put("y")

    in_loop(main)


@pytest.mark.usefixtures("unscanned")
def test_two_loops_with_a_broker_each_wake_each_other(store_url: str) -> None:
    waiting, found = threading.Event(), list[object]()

    async def taker() -> None:
        async with aio.connect(store_url) as broker:
            tube = await broker.tube("t")
            call = asyncio.ensure_future(tube.take(PATIENCE))
            await blocked(broker, 1)
            waiting.set()
            task = await call
            found.append(task and task.data)

    async def putter() -> None:
        async with aio.connect(store_url) as broker:
            tube = await broker.tube("t")
            await asyncio.to_thread(waiting.wait, PATIENCE)
            await tube.put("x")
            await asyncio.wrap_future(other)

    other = begin(lambda: in_loop(taker))
    in_loop(putter)
    assert found == ["x"]


def test_a_broker_of_another_loop_is_refused() -> None:
    async def open() -> tuple[aio.Broker, aio.Tube]:
        broker = await aio.connect("memory://")
        return broker, await broker.tube("t")

    broker, tube = asyncio.run(open())

    async def use() -> None:
        with pytest.raises(penstock.StoreUnavailable, match="another event loop"):
            await tube.put("x")
        with pytest.raises(penstock.StoreUnavailable, match="another event loop"):
            await broker.close()

    asyncio.run(use())
    _close_quietly(broker)


def _awake(room: WaitQueue) -> bool:
    """Whether a waiter exists that no event loop will wake."""
    with room._lock:
        return any(waiter._call is None for of in room.topics.values() for waiter in of)


def _close_quietly(broker: aio.Broker) -> None:
    """Close a broker whose loop is closed, so that the next test does not count its threads."""
    broker.sync.close()
    broker.executor._stop_threads()
    for thread in broker.executor._workers:
        thread.join(PATIENCE)


@pytest.mark.usefixtures("unscanned")
def test_takers_of_a_loop_that_was_closed_take_nothing_from_others() -> None:
    """A wake-up for a waiter of a closed loop is passed to the next waiter."""
    loop = asyncio.new_event_loop()

    async def wait() -> tuple[aio.Broker, list[asyncio.Task[Any]]]:
        broker = await aio.connect("memory://shared")
        tube = await broker.tube("t")
        takes: list[asyncio.Task[Any]] = [asyncio.ensure_future(tube.take()) for _ in range(3)]
        await blocked(broker, 3)
        return broker, takes

    broker, takes = loop.run_until_complete(wait())
    loop.close()
    with penstock.connect("memory://shared") as other:
        tube = other.tube("t")
        call = begin(lambda: tube.take(PATIENCE))
        until_here(lambda: _awake(other.runtime.wait_queue))
        tube.put("x")
        task = call.result(PATIENCE)
        assert task is not None
        assert task.data == "x"
        assert len(other.runtime.wait_queue.topics) == 0
    _close_quietly(broker)
    for take in takes:
        take._log_destroy_pending = False  # type: ignore[attr-defined]


def test_a_loop_that_is_closed_while_the_store_answers_releases_what_was_taken() -> None:
    loop = asyncio.new_event_loop()

    async def begin_take() -> tuple[aio.Broker, threading.Event, asyncio.Future[Any]]:
        broker = await aio.connect("memory://shared")
        tube = await broker.tube("t", kind="fifo")
        await tube.put("x")
        made, proceed = held_back(broker, "take")
        call = asyncio.ensure_future(tube.take())
        await made.wait()
        return broker, proceed, call

    broker, proceed, call = loop.run_until_complete(begin_take())
    loop.close()
    with penstock.connect("memory://shared") as other:
        proceed.set()
        for thread in broker.executor._workers:
            thread.join(PATIENCE)
        task = other.tube("t").peek(1)
        assert (task.status, task.attempts) == ("r", 0)
    broker.sync.close()
    call._log_destroy_pending = False  # type: ignore[attr-defined]


def test_a_forked_child_is_refused_and_the_parent_continues(durable_url: str) -> None:
    async def main() -> None:
        async with aio.connect(durable_url) as broker:
            tube = await broker.tube("t", kind="fifo")
            await tube.put_many(["a", "b"])
            held = await tube.take(0)
            assert held is not None
            child = os.fork()
            if child == 0:  # the running loop is the parent's
                code = 1
                try:
                    broker.executor.run(iter(()))  # type: ignore[arg-type]
                except penstock.StoreUnavailable as error:
                    code = 0 if "connect again in" in str(error) else 2
                finally:
                    os._exit(code)
            _, status = await asyncio.to_thread(os.waitpid, child, 0)
            assert os.waitstatus_to_exitcode(status) == 0
            await held.ack()
            assert await counts(tube) == {"ready": 1, "done": 1, "total": 1}

    in_loop(main)
