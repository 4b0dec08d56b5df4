"""Concurrent calls are sent as one store call, and each caller gets its own answer."""

from __future__ import annotations

import asyncio

import pytest

import penstock
from penstock import aio
from tests.support.event_loops import blocked, bridge_threads, calls, counts, in_loop, record_sizes


@pytest.fixture(autouse=True)
def fresh_options(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a slow machine, half of a thousand puts would first reload the options of their tube."""
    monkeypatch.setattr("penstock.runtime.store_clock.FRESH_SECONDS", 600.0)


def test_a_thousand_puts_are_one_store_call(store_url: str) -> None:
    async def main() -> None:
        async with aio.connect(store_url) as broker:
            tube = await broker.tube("t")
            sizes = record_sizes(broker, "put")
            tasks = await asyncio.gather(*(tube.put(number) for number in range(1000)))
            assert sizes == [1000]
            assert [(task.id, task.data) for task in tasks] == [(number + 1, number) for number in range(1000)]
            assert await calls(tube) == {"put": 1000}

    in_loop(main)


def test_takes_and_acks_are_one_store_call_each(store_url: str) -> None:
    async def main() -> None:
        async with aio.connect(store_url) as broker:
            tube = await broker.tube("t")
            await tube.put_many(range(300))
            takes, settles = record_sizes(broker, "take"), record_sizes(broker, "settle")
            taken = await asyncio.gather(*(tube.take(0) for _ in range(300)))
            tasks = [task for task in taken if task is not None]
            assert (takes, [task.data for task in tasks]) == ([300], list(range(300)))
            await asyncio.gather(*(task.ack() for task in tasks))
            assert settles == [300]
            assert await counts(tube) == {"done": 300}

    in_loop(main)


def test_a_coroutine_that_calls_again_shares_the_next_call() -> None:
    async def main() -> None:
        async with aio.connect("memory://") as broker:
            tube = await broker.tube("t")
            sizes = record_sizes(broker, "put")

            async def five(number: int) -> list[int]:
                return [(await tube.put(number)).id for _ in range(5)]

            ids = await asyncio.gather(*(five(number) for number in range(100)))
            assert sizes == [100] * 5
            assert all(own == sorted(own) for own in ids)

    in_loop(main)


def test_different_tubes_verbs_and_sessions_do_not_share_calls() -> None:
    async def main() -> None:
        async with aio.connect("memory://") as broker, broker.session() as session:
            a, b = await broker.tube("a"), await broker.tube("b")
            await a.put_many(["a1", "a2"])
            await b.put_many(["b1"])
            mine = await session.tube("a")
            one, two, other, nothing = await asyncio.gather(a.take(0), mine.take(0), b.take(0), b.take(0))
            assert [task and task.data for task in (one, two, other, nothing)] == ["a1", "a2", "b1", None]
            assert two is not None
            with pytest.raises(penstock.NotTaken):
                await a.ack(two.id)
            await two.ack()

    in_loop(main)


def test_takes_of_several_sizes_share_in_order_of_arrival() -> None:
    async def main() -> None:
        async with aio.connect("memory://") as broker:
            tube = await broker.tube("t")
            await tube.put_many(range(6))
            some = await asyncio.gather(tube.take_many(2), tube.take_many(3), tube.take_many(3), tube.take_many(1))
            assert [[task.data for task in tasks] for tasks in some] == [[0, 1], [2, 3, 4], [5], []]

    in_loop(main)


def test_a_shared_take_continues_with_the_next_tube() -> None:
    async def main() -> None:
        async with aio.connect("memory://") as broker:
            await (await broker.tube("first")).put("f")
            await (await broker.tube("second")).put_many(["s1", "s2"])
            taken = await asyncio.gather(*(broker.take(["first", "second"], 0) for _ in range(4)))
            assert [task and (task.tube, task.data) for task in taken] == [
                ("first", "f"), ("second", "s1"), ("second", "s2"), None,
            ]  # fmt: skip

    in_loop(main)


def test_a_full_tube_refuses_only_the_puts_that_do_not_fit() -> None:
    async def main() -> None:
        async with aio.connect("memory://") as broker:
            tube = await broker.tube("t", capacity=5)
            answers = await asyncio.gather(*(tube.put(number) for number in range(8)), return_exceptions=True)
            assert [type(answer) for answer in answers] == [aio.Task] * 5 + [penstock.TubeFull] * 3
            assert len({id(answer) for answer in answers}) == 8
            assert [task.data for task in await tube.tasks()] == [0, 1, 2, 3, 4]

    in_loop(main)


def test_an_address_in_use_refuses_only_its_own_put(store_url: str) -> None:
    async def main() -> None:
        async with aio.connect(store_url) as broker:
            tube = await broker.tube("t")
            puts = [tube.put(number, address="same" if number in (3, 7) else None) for number in range(10)]
            answers = await asyncio.gather(*puts, return_exceptions=True)
            assert [
                number for number, answer in enumerate(answers) if isinstance(answer, penstock.DuplicateAddress)
            ] == [7]
            ignored = [tube.put(number, address="other", on_duplicate="ignore") for number in range(3)]
            assert {task.data for task in await asyncio.gather(*ignored)} == {0}
            assert await counts(tube) == {"ready": 10, "total": 10}

    in_loop(main)


def test_only_the_late_ack_of_a_shared_call_fails() -> None:
    async def main() -> None:
        async with aio.connect("memory://") as broker:
            tube = await broker.tube("t")
            await tube.put_many(range(5))
            tasks = await tube.take_many(5)
            await tube.delete(tasks[2].id)
            answers = await asyncio.gather(*(task.ack() for task in tasks), return_exceptions=True)
            assert [type(answer).__name__ for answer in answers] == ["NoneType"] * 2 + ["NotTaken"] + ["NoneType"] * 2
            assert [task.status for task in tasks] == ["-", "-", "t", "-", "-"]

    in_loop(main)


def test_a_large_batch_is_several_store_calls() -> None:
    async def main() -> None:
        async with aio.connect("memory://") as broker:
            tube = await broker.tube("t")
            sizes = record_sizes(broker, "put")
            await asyncio.gather(*(tube.put(b"x" * 1_000_000) for _ in range(10)))
            assert sizes == [4, 4, 2]
            assert [task.id for task in await tube.tasks()] == list(range(1, 11))

    in_loop(main)


def test_a_put_into_a_dropped_tube_fails_for_all() -> None:
    async def main() -> None:
        async with aio.connect("memory://") as broker:
            tube = await broker.tube("t")
            await tube.drop()
            sizes = record_sizes(broker, "put")
            answers = await asyncio.gather(*(tube.put(number) for number in range(50)), return_exceptions=True)
            assert {type(answer) for answer in answers} == {penstock.NoSuchTube}
            assert sizes == [50]

    in_loop(main)


def test_two_thousand_blocked_takes_need_few_threads_and_few_store_calls(store_url: str) -> None:
    async def main() -> None:
        async with aio.connect(store_url) as broker:
            tube = await broker.tube("t")
            takes = [asyncio.ensure_future(tube.take()) for _ in range(2000)]
            await blocked(broker, 2000)
            assert bridge_threads() <= 4
            assert [session.waits for session in await broker.sessions()] == [["t"]]
            with pytest.raises(penstock.TubeBusy, match="waiting"):
                await tube.drop()
            sizes = record_sizes(broker, "take")
            await tube.put_many(range(2000))
            found = await asyncio.gather(*takes)
            assert {task.data for task in found if task} == set(range(2000))
            assert len(sizes) < 200  # one per taker would be ten times as many
            assert [session.waits for session in await broker.sessions()] == [[]]
            assert await counts(tube) == {"taken": 2000, "total": 2000}

    in_loop(main)
