"""Cancelled callers: their tasks are returned at once, their calls are applied or not, and other callers continue."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest

from penstock import aio
from tests.support.event_loops import (
    PATIENCE,
    at_rest,
    blocked,
    calls,
    cancelled,
    counts,
    held_back,
    in_loop,
    record_sizes,
    until,
)

SEEDS = (1, 2, 3)


def test_a_take_cancelled_while_the_store_answers_releases_its_task(store_url: str) -> None:
    async def main() -> None:
        async with aio.connect(store_url) as broker:
            tube = await broker.tube("t", ttr=60, max_attempts=1)
            await tube.put("x")
            made, proceed = held_back(broker, "take")
            call = asyncio.ensure_future(tube.take())
            await made.wait()
            await cancelled(call)
            proceed.set()
            task = await tube.take(PATIENCE)
            assert task is not None
            assert (task.data, task.attempts, task.lease) == ("x", 1, 2)
            assert await calls(tube) == {"put": 1, "take": 2, "release": 1}

    in_loop(main)


def test_a_take_cancelled_after_the_answer_came_releases_its_task(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with aio.connect("memory://") as broker:
            tube = await broker.tube("t", ttr=60)
            await tube.put_many(["x", "y"])
            call = asyncio.ensure_future(tube.take_many(2))
            real = broker.executor._answer

            def answer(*args: Any) -> None:
                real(*args)
                call.cancel()  # it is about to be woken in this turn of the loop

            monkeypatch.setattr(broker.executor, "_answer", answer)
            with pytest.raises(asyncio.CancelledError):
                await call
            monkeypatch.undo()
            assert [(task.data, task.attempts) for task in await tube.take_many(2, PATIENCE)] == [("x", 1), ("y", 1)]

    in_loop(main)


def test_a_message_that_a_cancelled_take_got_waits_for_recover() -> None:
    async def main() -> None:
        async with aio.connect("memory://") as broker:
            tube = await broker.tube("t", kind="reliable")
            await tube.put("x")
            made, proceed = held_back(broker, "take")
            call = asyncio.ensure_future(tube.take())
            await made.wait()
            await cancelled(call)
            proceed.set()
            assert await tube.take(0) is None
            assert [task.data for task in await tube.recover(1, 0)] == ["x"]

    in_loop(main)


def test_a_take_cancelled_before_it_is_sent_takes_nothing() -> None:
    async def main() -> None:
        async with aio.connect("memory://") as broker:
            tube = await broker.tube("t")
            await tube.put("x")
            sizes = record_sizes(broker, "take")
            call = asyncio.ensure_future(tube.take())
            await asyncio.sleep(0)
            await cancelled(call)
            assert sizes == []
            assert await calls(tube) == {"put": 1}

    in_loop(main)


def test_a_blocked_take_that_is_cancelled_takes_nothing_and_is_forgotten(store_url: str) -> None:
    async def main() -> None:
        async with aio.connect(store_url) as broker:
            tube = await broker.tube("t")
            first, second = asyncio.ensure_future(tube.take()), asyncio.ensure_future(tube.take())
            await blocked(broker, 2)
            await cancelled(first)
            assert [session.waits for session in await broker.sessions()] == [["t"]]
            await tube.put("x")
            task = await second
            assert task is not None
            assert task.data == "x"
            third = asyncio.ensure_future(tube.take())
            await blocked(broker, 1)
            await cancelled(third)

            async def forgotten() -> bool:
                return [session.waits for session in await broker.sessions()] == [[]]

            await until(forgotten)
            assert await calls(tube) == {"put": 1, "take": 1}

    in_loop(main)


@pytest.mark.usefixtures("unscanned")
def test_a_wake_up_that_a_cancelled_take_does_not_use_goes_to_the_next_taker() -> None:
    async def main() -> None:
        async with aio.connect("memory://") as broker:
            tube = await broker.tube("t")
            first, second = asyncio.ensure_future(tube.take()), asyncio.ensure_future(tube.take())
            await blocked(broker, 2)
            made, proceed = held_back(broker, "take")
            await tube.put("x")
            await made.wait()  # the first one was woken and got it
            await cancelled(first)
            proceed.set()
            task = await asyncio.wait_for(second, PATIENCE)
            assert task is not None
            assert (task.data, task.attempts) == ("x", 1)

    in_loop(main)


def test_a_put_cancelled_before_it_is_sent_stores_nothing() -> None:
    async def main() -> None:
        async with aio.connect("memory://") as broker:
            tube = await broker.tube("t")
            first, second = asyncio.ensure_future(tube.put("x")), asyncio.ensure_future(tube.put("y"))
            await asyncio.sleep(0)
            await cancelled(first)
            assert (await second).id == 1
            assert [task.data for task in await tube.tasks()] == ["y"]

    in_loop(main)


def test_a_put_cancelled_while_it_is_stored_is_stored() -> None:
    async def main() -> None:
        async with aio.connect("memory://") as broker:
            tube = await broker.tube("t")
            made, proceed = held_back(broker, "put")
            call = asyncio.ensure_future(tube.put("x"))
            await made.wait()
            await cancelled(call)
            proceed.set()
            assert (await tube.put("y")).id == 2
            assert [task.data for task in await tube.tasks()] == ["x", "y"]

    in_loop(main)


def test_put_many_stops_between_its_chunks() -> None:
    async def main() -> None:
        async with aio.connect("memory://") as broker:
            tube = await broker.tube("t")
            made, proceed = held_back(broker, "put")
            call = asyncio.ensure_future(tube.put_many(range(25_000)))
            await made.wait()
            await cancelled(call)
            proceed.set()
            assert await counts(tube) == {"ready": 10_000, "total": 10_000}

    in_loop(main)


def test_an_ack_completes_after_its_caller_is_cancelled() -> None:
    async def main() -> None:
        async with aio.connect("memory://") as broker:
            tube = await broker.tube("t")
            await tube.put("x")
            task = await tube.take(0)
            assert task is not None
            call = asyncio.ensure_future(task.ack())
            await asyncio.sleep(0)
            await cancelled(call)
            assert await counts(tube) == {"done": 1}
            assert task.status == "-"

    in_loop(main)


def test_a_task_of_a_cancelled_block_is_released(store_url: str) -> None:
    async def main() -> None:
        async with aio.connect(store_url) as broker:
            tube = await broker.tube("t")
            await tube.put("x")
            taken = asyncio.Event()

            async def work() -> None:
                task = await tube.take(0)
                assert task is not None
                async with task:
                    taken.set()
                    await asyncio.Event().wait()

            worker = asyncio.ensure_future(work())
            await taken.wait()
            worker.cancel()
            await asyncio.sleep(0)
            worker.cancel()  # once more, while the task is being released
            with pytest.raises(asyncio.CancelledError):
                await worker
            task = await tube.take(PATIENCE)
            assert task is not None
            assert (task.attempts, task.reason) == (2, "CancelledError")

    in_loop(main)


def test_a_put_that_waits_for_room_can_be_cancelled() -> None:
    async def main() -> None:
        async with aio.connect("memory://") as broker:
            tube = await broker.tube("t", capacity=1)
            await tube.put("first")
            first, second = (asyncio.ensure_future(tube.put(data, timeout=None)) for data in ("a", "b"))
            await blocked(broker, 2, "room")
            await cancelled(first)
            await tube.delete(1)
            assert (await second).data == "b"
            assert [task.data for task in await tube.tasks()] == ["b"]

    in_loop(main)


def test_a_wait_for_an_outcome_can_be_cancelled(store_url: str) -> None:
    async def main() -> None:
        async with aio.connect(store_url) as broker:
            tube = await broker.tube("t")
            await tube.put("x", address="a")
            first, second = asyncio.ensure_future(tube.wait("a")), asyncio.ensure_future(tube.wait("a"))
            await blocked(broker, 2, "task")
            await cancelled(first)
            await tube.delete(1)
            assert (await second).status == "deleted"

    in_loop(main)


def test_a_session_whose_caller_was_cancelled_is_closed(store_url: str) -> None:
    async def main() -> None:
        async with aio.connect(store_url) as broker:
            made, proceed = held_back(broker, "join")

            async def begin() -> aio.Session:
                return await broker.session()

            call = asyncio.ensure_future(begin())
            await made.wait()
            await cancelled(call)
            proceed.set()

            async def closed() -> bool:
                return await broker.sessions() == []

            await until(closed)

    in_loop(main)


@pytest.mark.parametrize("verb", ["take", "take many", "put", "ack", "several tubes", "session", "wait"])
def test_cancelled_at_every_turn_of_the_loop(store_url: str, verb: str) -> None:
    """Wherever a call is cancelled, no task stays leased and none is lost."""

    async def main() -> None:
        async with aio.connect(store_url) as broker:
            tube = await broker.tube("t", ttr=3600, max_attempts=2)
            begin: dict[str, Callable[[], Any]] = {
                "take": lambda: tube.take(0.01),
                "take many": lambda: tube.take_many(3, 0.01),
                "put": lambda: tube.put("new", pri=9),
                "ack": lambda: held.ack(),
                "several tubes": lambda: broker.take(["empty", "t"], 0.01),
                "session": lambda: _opened(broker),
                "wait": lambda: tube.wait("a", 0.01),
            }
            await broker.tube("empty")
            await tube.put_many(["x", "y"], pri=5)
            await tube.put("z", address="a", pri=6)
            for turns in range(20):
                await tube.put("held", pri=0)
                [held] = await tube.take_many(1)
                call = asyncio.ensure_future(begin[verb]())
                for _ in range(turns):
                    await asyncio.sleep(0 if turns % 2 else 0.0005)
                call.cancel()
                answer: Any = (await asyncio.gather(call, return_exceptions=True))[0]
                if verb.startswith(("take", "several")) and not isinstance(answer, BaseException) and answer:
                    await asyncio.gather(*(task.release() for task in (answer if verb == "take many" else [answer])))
                    await tube.kick(9)
                if isinstance(answer, aio.Session):
                    await answer.close()

                await at_rest(broker)
                assert len(await broker.sessions()) == 1
                if held.status == "t":
                    await asyncio.gather(held.ack(), return_exceptions=True)
                assert (await counts(tube)).get("taken") is None
                old = [task for task in await tube.tasks() if task.data in ("x", "y", "z")]
                assert [task.status for task in old] == ["r"] * 3
            assert await broker.check() == []

    in_loop(main)


async def _opened(broker: aio.Broker) -> aio.Session:
    return await broker.session()


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_is_lost_and_nothing_stays_held_under_load(store_url: str, seed: int) -> None:
    """Producers and consumers are cancelled at random; afterwards every task is counted."""
    chance = random.Random(seed)

    async def main() -> None:
        async with aio.connect(store_url) as broker:
            tube = await broker.tube("t", ttr=3600)
            put, unsure, acked, perhaps = set[int](), set[int](), list[int](), set[int]()

            async def produce(start: int) -> None:
                for number in range(start, start + 5):
                    unsure.add(number)
                    await tube.put(number)
                    unsure.discard(number)
                    put.add(number)

            async def consume() -> None:
                while True:
                    task = await tube.take(chance.choice([0, 0.002, None]))
                    if task is not None:
                        number = task.data
                        assert isinstance(number, int)
                        perhaps.add(number)
                        await task.ack()
                        perhaps.discard(number)
                        acked.append(number)

            running: set[asyncio.Future[None]] = set()
            for round in range(60):
                running |= {asyncio.ensure_future(produce((round * 10 + one) * 5)) for one in range(10)}
                running |= {asyncio.ensure_future(consume()) for _ in range(5)}
                for _ in range(chance.randrange(4)):
                    await asyncio.sleep(0)
                for one in chance.sample(sorted(running, key=id), len(running) // 3):
                    one.cancel()
                running = {one for one in running if not one.done()}
            for one in running:
                one.cancel()
            ended = await asyncio.gather(*running, return_exceptions=True)
            assert {type(error) for error in ended if error is not None} <= {asyncio.CancelledError}

            await at_rest(broker)
            assert (await counts(tube)).get("taken") is None
            left = await tube.tasks(limit=10_000)
            rest = [task.data for task in left]
            assert {task.attempts for task in left} <= {0}
            assert len(acked) == len(set(acked))
            assert len(rest) == len(set(rest))
            assert not set(acked) & set(rest)
            assert put <= set(acked) | perhaps | set(rest) <= put | unsure
            assert await broker.check() == []

    in_loop(main)
