"""Blocked coroutines: what wakes them, in which order, and when they time out. None of them uses a thread."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time

import pytest

import penstock
from penstock import aio
from tests.support.event_loops import (
    PATIENCE,
    blocked,
    bridge_threads,
    calls,
    counts,
    held_back,
    in_loop,
    record_sizes,
    until,
)
from tests.support.threads import begin
from tests.support.threads import until as until_here

pytestmark = pytest.mark.usefixtures("unscanned")
# Shorter than the takes' timeout: a waiter that is not woken has nothing by then.
SOON = PATIENCE / 2


def test_a_taker_is_woken_by_a_put(store_url: str) -> None:
    async def main() -> None:
        async with aio.connect(store_url) as broker:
            tube = await broker.tube("t")
            call = asyncio.ensure_future(tube.take(PATIENCE))
            await blocked(broker, 1)
            await tube.put("x")
            task = await asyncio.wait_for(call, SOON)
            assert task is not None
            assert task.data == "x"

    in_loop(main)


def test_coroutines_and_threads_of_a_process_wake_each_other(store_url: str) -> None:
    async def main() -> None:
        async with aio.connect(store_url) as broker:
            tube = await broker.tube("t")
            with penstock.connect(store_url) as other:
                call = asyncio.ensure_future(tube.take(PATIENCE))
                await blocked(broker, 1)
                other.tube("t").put("for the coroutine")
                task = await asyncio.wait_for(call, SOON)
                assert task is not None
                assert task.data == "for the coroutine"
                thread = begin(lambda: other.tube("t").take(PATIENCE))
                until_here(lambda: len(broker.sync.runtime.wait_queue.topics) == 1)
                await tube.put("for the thread")
                taken = await asyncio.wait_for(asyncio.wrap_future(thread), SOON)
                assert taken is not None
                assert taken.data == "for the thread"

    in_loop(main)


def test_the_longest_waiting_comes_first_whatever_its_session() -> None:
    async def main() -> None:
        async with aio.connect("memory://") as broker:
            tube, order = await broker.tube("t"), list[int]()
            sessions = [await broker.session() for _ in range(5)]
            tubes = [tube, *[await session.tube("t") for session in sessions]]

            async def taker(number: int) -> None:
                await tubes[number % 6].take()
                order.append(number)

            takers = []
            for number in range(30):
                takers.append(asyncio.ensure_future(taker(number)))
                await blocked(broker, number + 1)
            for number in range(30):
                await tube.put(number)
                await takers[number]
            assert order == list(range(30))

    in_loop(main)


def test_waiters_are_served_before_newcomers() -> None:
    async def main() -> None:
        async with aio.connect("memory://shared") as broker:
            tube = await broker.tube("t")
            waiting = asyncio.ensure_future(tube.take())
            await blocked(broker, 1)
            made, proceed = held_back(broker, "take")
            first = asyncio.ensure_future(tube.take(0))
            await made.wait()
            newcomer = asyncio.ensure_future(tube.take(0))
            await asyncio.sleep(0)
            with penstock.connect("memory://shared") as other:
                other.tube("t").put("x")
            await blocked(broker, 0)
            proceed.set()
            task = await waiting
            assert task is not None
            assert task.data == "x"
            assert (await first, await newcomer) == (None, None)

    in_loop(main)


def test_a_put_in_another_process_wakes_many(durable_url: str) -> None:
    program = "import penstock, sys; penstock.connect(sys.argv[1]).tube('t').put_many(range(200))"

    async def main() -> None:
        async with aio.connect(durable_url) as broker:
            tube = await broker.tube("t")
            takes = [asyncio.ensure_future(tube.take()) for _ in range(200)]
            await blocked(broker, 200)
            sizes = record_sizes(broker, "take")
            other = await asyncio.create_subprocess_exec(sys.executable, "-c", program, durable_url)
            found = await asyncio.gather(*takes)
            assert sorted(task.data for task in found if task is not None) == list(range(200))
            assert len(sizes) < 60, "each store call took one task instead of more and more"
            assert await other.wait() == 0

    in_loop(main)


def test_a_delayed_task_is_taken_when_it_is_due(store_url: str) -> None:
    async def main() -> None:
        async with aio.connect(store_url) as broker:
            tube = await broker.tube("t")
            call = asyncio.ensure_future(tube.take(PATIENCE))
            await blocked(broker, 1)
            began = time.monotonic()
            await tube.put("x", delay=0.2)
            assert await call is not None
            assert time.monotonic() - began >= 0.15

    in_loop(main)


def test_takes_return_none_at_their_timeouts(store_url: str) -> None:
    async def main() -> None:
        async with aio.connect(store_url) as broker:
            tube = await broker.tube("t")
            began = time.monotonic()
            assert set(await asyncio.gather(tube.take(0.05), tube.take(0.1))) == {None}
            assert await tube.take_many(3, 0.01) == []
            assert time.monotonic() - began >= 0.1
            assert [session.waits for session in await broker.sessions()] == [[]]
            await tube.drop()

    in_loop(main)


def test_a_taker_with_max_pri_takes_only_urgent_work() -> None:
    async def main() -> None:
        async with aio.connect("memory://") as broker:
            tube = await broker.tube("t")
            picky = asyncio.ensure_future(tube.take(max_pri=3))
            await blocked(broker, 1)
            anyone = asyncio.ensure_future(tube.take())
            await blocked(broker, 2)
            await tube.put("routine", pri=9)
            task = await asyncio.wait_for(anyone, SOON)
            await tube.put("urgent", pri=1)
            other = await asyncio.wait_for(picky, SOON)
            assert [each and each.data for each in (task, other)] == ["routine", "urgent"]

    in_loop(main)


def test_a_lapsed_session_is_replaced_and_its_takers_keep_waiting(store_url: str) -> None:
    async def main() -> None:
        async with aio.connect(store_url) as broker:
            tube = await broker.tube("t")
            takes = [asyncio.ensure_future(tube.take(PATIENCE)) for _ in range(3)]
            await blocked(broker, 3)
            runtime = broker.sync.runtime
            handle = broker.sync.session_handle.handle
            await broker.executor.call(lambda: runtime.publish(runtime.store.leave([handle])))
            await tube.put_many(["a", "b", "c"])
            assert {task and task.data for task in await asyncio.gather(*takes)} == {"a", "b", "c"}
            assert broker.sync.session_handle.handle != handle
            assert [session.waits for session in await broker.sessions()] == [[]]

    in_loop(main)


def test_puts_wait_for_room(store_url: str) -> None:
    async def main() -> None:
        async with aio.connect(store_url) as broker:
            tube = await broker.tube("t", capacity=2)
            await tube.put_many(["a", "b"])
            puts = [asyncio.ensure_future(tube.put(number, timeout=PATIENCE)) for number in range(20)]
            late = asyncio.ensure_future(tube.put("late", timeout=0.05))
            with pytest.raises(penstock.TubeFull, match="holds 2 of 2"):
                await late
            await blocked(broker, 20, "room")
            taken = list[object]()
            while len(taken) < 22:
                async with asyncio.timeout(PATIENCE):
                    task = await tube.take()
                assert task is not None
                taken.append(task.data)
                await task.ack()
            assert taken[:2] == ["a", "b"]
            assert set(taken[2:]) == set(range(20))  # concurrent puts overlap: any order
            assert [(await put).data for put in puts] == list(range(20))

    in_loop(main)


def test_hundreds_of_waits_for_outcomes_need_few_threads(store_url: str) -> None:
    async def main() -> None:
        async with aio.connect(store_url) as broker:
            tube = await broker.tube("t")
            await tube.put_many([(number, {"address": f"a{number}"}) for number in range(300)])
            waits = [asyncio.ensure_future(tube.wait(f"a{number}", PATIENCE)) for number in range(300)]
            await blocked(broker, 300, "task")
            assert bridge_threads() <= 4
            tasks = await tube.take_many(300)
            await asyncio.gather(*(task.ack(task.id) for task in tasks))
            outcomes = await asyncio.gather(*waits)
            assert [outcome.result for outcome in outcomes] == [task.id for task in tasks]
            with pytest.raises(TimeoutError, match="address b"):
                await tube.put("x", address="b")
                await tube.wait("b", 0.01)

    in_loop(main)


def test_waits_for_groups_need_few_threads(store_url: str) -> None:
    async def main() -> None:
        async with aio.connect(store_url) as broker:
            tube = await broker.tube("t")
            groups = [await tube.group(f"g{number}") for number in range(50)]
            for group in groups:
                await group.put(group.name)
            waits = [asyncio.ensure_future(group.wait(PATIENCE)) for group in groups]
            await blocked(broker, 50, "group")
            assert bridge_threads() <= 4
            await asyncio.gather(*(group.start() for group in groups[:25]), *(group.cancel() for group in groups[25:]))
            tasks = await tube.take_many(50)
            await tube.ack_many(tasks)
            assert await asyncio.gather(*waits) == ["done"] * 25 + ["cancelled"] * 25

    in_loop(main)


def test_the_end_of_a_session_ends_its_blocked_takes_with_none(store_url: str) -> None:
    async def main() -> None:
        async with aio.connect(store_url) as broker:
            tube, session = await broker.tube("t"), await broker.session()
            own = await session.tube("t")
            takes = [asyncio.ensure_future(own.take()) for _ in range(50)]
            await blocked(broker, 50)
            await session.close()
            assert await asyncio.gather(*takes) == [None] * 50
            await tube.put("x")
            assert await counts(tube) == {"ready": 1, "total": 1}
            with pytest.raises(penstock.NotFound, match="closed"):
                await own.take(0)

    in_loop(main)


def test_a_blocked_take_costs_no_call_while_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.runtime.heartbeat.SCAN_SECONDS", 0.5)

    async def main() -> None:
        async with aio.connect("memory://") as broker:
            tube = await broker.tube("t")
            takes = [asyncio.ensure_future(tube.take()) for _ in range(1000)]
            await blocked(broker, 1000)
            sizes = record_sizes(broker, "take")

            async def scanned() -> bool:
                return len(sizes) >= 2

            await until(scanned)
            assert set(sizes) == {1}  # a scan reads for one of them
            await tube.put_many(range(1000))
            assert None not in await asyncio.gather(*takes)
            sizes.clear()
            assert set(await asyncio.gather(*(tube.take(0.2) for _ in range(1000)))) == {None}
            assert len(sizes) < 50  # at its end each reads a last time, many together
            assert await calls(tube) == {"put": 1000, "take": 1000}

    in_loop(main)


def test_a_program_that_only_waits_ends_at_once_when_interrupted(tmp_path: object) -> None:
    program = f"""
import asyncio, penstock.aio

async def main():
    async with penstock.aio.connect("sqlite:///{tmp_path}/q.db") as broker:
        tube = await broker.tube("t", kind="fifo")
        await tube.put_many(["held", "free"])
        task = await tube.take()
        print("taken", flush=True)
        other = await broker.tube("empty")
        await other.take()

asyncio.run(main())
"""
    child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "taken\n"
    child.send_signal(2)
    _, complaint = child.communicate(timeout=PATIENCE)
    assert complaint.strip().endswith("KeyboardInterrupt")
    assert "Exception ignored" not in complaint
    with penstock.connect(f"sqlite:///{tmp_path}/q.db") as broker:
        assert [task.data for task in broker.tube("t").take_many(2)] == ["held", "free"]
        assert broker.check() == []
