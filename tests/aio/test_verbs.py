"""Every verb awaited, on every store: same names, same arguments, same results."""

from __future__ import annotations

import asyncio
import inspect
import logging
from dataclasses import dataclass

import pytest

import penstock
from penstock import aio
from penstock.broker.group_handle import member_address
from penstock.testing import Clock
from tests.support.event_loops import PATIENCE, calls, counts, in_loop, until
from tests.test_public_names import parameters, public

# Verbs that cannot be awaited: a transaction of a blocking driver, and len() and `in`.
LEFT_OUT = {"Broker": {"bind"}}


@pytest.mark.parametrize("name", ["Broker", "Group", "Session", "Task", "Tube"])
def test_an_aio_handle_has_the_verbs_and_attributes_of_the_blocking_one(name: str) -> None:
    assert public(getattr(aio, name)) == public(getattr(penstock, name)) - LEFT_OUT.get(name, set())


@pytest.mark.parametrize("name", ["Broker", "Group", "Session", "Task", "Tube"])
def test_a_verb_has_the_parameters_and_the_words_of_the_blocking_one(name: str) -> None:
    blocking, awaited = getattr(penstock, name), getattr(aio, name)
    looked_up = {verb for verb in public(blocking) if isinstance(getattr(blocking, verb), property)}
    verbs = [verb for verb in public(awaited) - looked_up if inspect.isfunction(getattr(awaited, verb))]
    assert {verb: parameters(getattr(awaited, verb)) for verb in verbs} == {
        verb: parameters(getattr(blocking, verb)) for verb in verbs
    }
    assert [verb for verb in verbs if not inspect.getdoc(getattr(awaited, verb))] == []


def test_connect_has_the_parameters_of_the_blocking_one() -> None:
    assert parameters(aio.connect) == parameters(penstock.connect)


def test_asyncio_is_imported_only_when_used() -> None:
    assert penstock.aio is aio
    with pytest.raises(AttributeError, match="penstock.* has no attribute 'oia'"):
        _ = penstock.oia  # type: ignore[attr-defined]


def test_tasks_go_through_a_tube(store_url: str) -> None:
    async def main() -> None:
        async with aio.connect(store_url) as broker:
            tube = await broker.tube("mail", ttr=60)
            assert (tube.name, tube.kind, repr(tube)) == ("mail", "fifottl", "<Tube mail (fifottl)>")
            first = await tube.put({"to": "ada"}, pri=2)
            assert (first.id, first.status, first.data, first.pri, first.tube) == (1, "r", {"to": "ada"}, 2, "mail")
            await tube.put_many(["b", ("c", {"pri": 1})], pri=3)
            assert [task.data for task in await tube.tasks()] == [{"to": "ada"}, "b", "c"]
            taken = await tube.take(0)
            assert taken is not None
            assert (taken.data, taken.attempts, taken.lease) == ("c", 1, 1)
            await taken.ack()
            assert taken.status is penstock.Status.DONE
            async with (await tube.take_many(1))[0] as task:
                assert task.data == {"to": "ada"}
            assert task.status is penstock.Status.DONE
            assert await tube.take_many(5, max_pri=2) == []
            assert await counts(tube) == {"ready": 1, "done": 2, "total": 1}
            assert await broker.check() == []

    in_loop(main)


def test_every_way_to_settle(store_url: str) -> None:
    async def main() -> None:
        async with aio.connect(store_url) as broker:
            tube = await broker.tube("t", ttr=60)
            await tube.put_many(range(6))
            a, b, c, d, e, f = await tube.take_many(6)
            await a.release()
            await b.release(delay=360_000)
            await c.bury("odd")
            await d.touch(5)
            await d.fail("broken", code=7)
            await tube.delete(e)
            assert await tube.ack_many([f, a]) == [True, False]
            assert [task.status for task in (a, b, c, d, e, f)] == ["r", "~", "!", "-", "-", "-"]
            assert (await tube.peek(c.id)).reason == "odd"
            assert await tube.kick(9) == 1
            assert await tube.why(b.id) == f"task {b.id} is delayed: it is ready in 100 h"
            expected = {"put": 6, "take": 6, "ack": 1, "release": 2, "bury": 1, "touch": 1, "fail": 1, "delete": 1}
            assert await calls(tube) == {**expected, "kick": 1}
            with pytest.raises(penstock.NotTaken, match="cannot .* task 6 of tube t: it is not held"):
                await f.ack()
            with pytest.raises(penstock.NotFound, match="task 99"):
                await tube.peek(99)

    in_loop(main)


def test_async_with_a_task_releases_it_if_the_block_raises(store_url: str) -> None:
    async def main() -> None:
        async with aio.connect(store_url) as broker:
            tube = await broker.tube("t")
            await tube.put("x")
            task = await tube.take(0)
            assert task is not None
            with pytest.raises(ValueError, match="mailbox full"):
                async with task:
                    raise ValueError("mailbox full")
            again = await tube.peek(task.id)
            assert (again.status, again.attempts, again.reason) == ("r", 1, "ValueError: mailbox full")

    in_loop(main)


def test_tubes_of_a_broker(store_url: str) -> None:
    async def main() -> None:
        async with aio.connect(store_url) as broker:
            tube = await broker.create_tube("a", "fifo")
            assert [info.name for info in await broker.tubes()] == ["a"]
            with pytest.raises(penstock.TubeExists):
                await broker.create_tube("a")
            with pytest.raises(penstock.TubeMismatch):
                await broker.tube("a", kind="utube")
            await tube.put_many([1, 2])
            await tube.pause()
            assert await tube.take(0) is None
            await tube.resume()
            first = await broker.take(["a"], timeout=0)
            assert first is not None
            assert first.data == 1
            with pytest.raises(penstock.TubeBusy):
                await tube.drop()
            assert await tube.release_all() == 1
            assert await tube.truncate() == 2
            await tube.drop()
            with pytest.raises(penstock.NoSuchTube):
                await tube.put(1)
            with pytest.raises(penstock.UnsupportedOption):
                await tube.recover(1, 1)
            with pytest.raises(penstock.UnsupportedOption):
                await tube.inspect(0, 1)

    in_loop(main)


def test_sessions(store_url: str) -> None:
    async def main() -> None:
        async with aio.connect(store_url) as broker:
            tube = await broker.tube("t")
            await tube.put_many(["a", "b"])
            async with broker.session(ttr=30) as session:
                task = await (await session.tube("t")).take(0)
                assert task is not None
                assert [(info.id, info.held) for info in await broker.sessions()] == [(session.id, [("t", task.id)])]
            joined = await broker.session(id=session.id)
            second = await joined.take(["t"], timeout=0)
            assert second is not None
            await second.ack()
            await (await joined.tube("t")).ack(task.id)
            await joined.close()
            assert await counts(tube) == {"done": 2}
            with pytest.raises(penstock.NotFound, match="no-such"):
                await broker.session(id="no-such")

    in_loop(main)


def test_addresses_and_groups(store_url: str) -> None:
    async def main() -> None:
        async with aio.connect(store_url) as broker:
            tube = await broker.tube("t")
            await tube.put("x", address="a")
            with pytest.raises(penstock.DuplicateAddress):
                await tube.put("y", address="a")
            task = await tube.take(0)
            assert task is not None
            await task.ack({"sum": 3})
            assert (await tube.wait("a", PATIENCE)).unwrap() == {"sum": 3}
            group = await tube.group("g")
            assert (group.name, repr(group)) == ("g", "<Group g of t>")
            await group.put("one")
            await group.put_many(["two", "three"])
            await group.on_end("end")
            await group.on_cancel("cancelled")
            await group.start()
            for _ in range(3):
                async with (await tube.take_many(1))[0]:
                    pass
            assert await group.wait(PATIENCE) == "done"
            assert await group.progress() == penstock.Progress(3, 3)
            other = await tube.group("h")
            await other.cancel()
            assert await other.wait(PATIENCE) == "cancelled"
            assert await broker.check() == []

    in_loop(main)


def test_kinds_without_leases(store_url: str) -> None:
    async def main() -> None:
        async with aio.connect(store_url) as broker:
            feeds = await broker.tube("feeds", kind="round", period=60)
            await asyncio.gather(*(feeds.put(number, id=f"feed-{number}") for number in range(3)))
            taken = await asyncio.gather(*(feeds.take(0) for _ in range(4)))
            assert [task and task.id for task in taken] == ["feed-0", "feed-1", "feed-2", None]
            with pytest.raises(penstock.UnsupportedOption):
                await feeds.ack("feed-0")
            with pytest.raises(penstock.UnsupportedOption):
                await feeds.wait("feed-0")
            log = await broker.tube("log", kind="reliable")
            await log.put_many(["a", "b", "c"])
            first, *_ = await log.take_many(2)
            assert [task.data for task in await log.inspect(0, 9)] == ["c"]
            assert await log.ack_many([first, "1-1"]) == [first.id]
            assert [task.data for task in await log.recover(9, 0)] == ["b"]

    in_loop(main)


def test_bad_input_is_refused_before_anything_is_stored(store_url: str) -> None:
    async def main() -> None:
        async with aio.connect(store_url) as broker:
            tube = await broker.tube("t")
            for refused in ({1, 2}, float("nan")):
                with pytest.raises(penstock.BadValue):
                    await tube.put(refused)
            with pytest.raises(penstock.BadValue, match="pri"):
                await tube.put(1, pri=-1)
            with pytest.raises(penstock.BadValue, match="timeout"):
                await tube.take(-1)
            with pytest.raises(penstock.BadValue, match="count"):
                await tube.take_many(0)
            with pytest.raises(penstock.BadValue, match="at least one"):
                await broker.take([])
            with pytest.raises(penstock.BadValue, match="cannot be called"):
                await tube.on_change(3)  # type: ignore[arg-type]
            assert await counts(tube) == {}

    in_loop(main)


@dataclass
class Mail:
    to: str


def test_data_and_clock_are_those_of_the_blocking_broker(clock: Clock) -> None:
    async def main() -> None:
        async with aio.connect("memory://", clock=clock) as broker:
            tube = await broker.tube("t", ttl=5, ttr=60)
            await tube.put(Mail("ada"))
            task = await tube.take(0)
            assert task is not None
            assert task.decode(Mail) == Mail("ada")
            assert tuple(task) == (1, "t", {"to": "ada"})
            clock.advance(5)
            await task.release()
            assert await tube.take(0) is None

    in_loop(main)


def test_on_change_is_called_in_the_loop(store_url: str, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        seen: list[tuple[int, str]] = []

        def plain(task: aio.Task, event: str) -> None:
            seen.append((task.id, event))
            assert isinstance(task, aio.Task)
            if event == "ack":
                raise ValueError("from the callback")

        async def awaited(task: aio.Task, event: str) -> None:
            seen.append((task.id, f"awaited {event}"))
            raise ValueError("from the coroutine")

        async with aio.connect(store_url) as broker:
            tube = await broker.tube("t")
            assert await tube.on_change(plain) is None
            await tube.put("x")
            assert seen == [(1, "put")]
            task = await tube.take(0)
            assert task is not None
            await task.ack()
            assert seen == [(1, "put"), (1, "take"), (1, "ack")]
            assert await tube.on_change(awaited) is plain
            await tube.put("y")

            async def awaited_it() -> bool:
                return seen[-1] == (2, "awaited put")

            await until(awaited_it)
            assert await tube.on_change(None) is awaited
            assert await tube.on_change(None) is None

    with caplog.at_level(logging.ERROR, "penstock"):
        in_loop(main)
    assert [record.getMessage() for record in caplog.records] == [
        "on_change of tube t failed at ack of task 1",
        "on_change of tube t failed at put of task 2",
    ]


def test_a_group_has_a_status_and_results(store_url: str) -> None:
    async def main() -> None:
        async with aio.connect(store_url) as broker:
            tube = await broker.tube("t")
            group = await tube.group("g")
            await group.put("a", address=member_address(group.sync, 0))
            assert await group.status() == "open"
            await group.start()
            task = await tube.take(0)
            assert task is not None
            await task.ack("b")
            assert await group.status() == "done"
            assert [(id, outcome.result) async for id, outcome in group.results()] == [(1, "b")]

    in_loop(main)
