"""The executor alone: which steps share a call, which caller gets an error, how many threads it has."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from penstock.aio.executor import BATCH_SIZE, BatchExecutor
from penstock.errors import BadValue, OutcomeUnknown, StoreUnavailable
from penstock.operations.operation import Call, Operation, StoreOp
from tests.support.event_loops import PATIENCE, bridge_threads, in_loop


class Double(StoreOp):
    """Doubles a number; a batch with a number in `bad` is refused."""

    calls: list[list[int]]
    bad: dict[int, Exception]

    def __init__(self, number: int, key: str = "double", size: int = 1) -> None:
        self.number = number
        self._key = key
        self._size = size

    @property
    def key(self) -> str:
        return self._key

    @property
    def size(self) -> int:
        return self._size

    def run_batch(self, steps: Sequence[Double]) -> list[int]:
        self.calls.append([step.number for step in steps])
        for step in steps:
            if step.number in self.bad:
                raise self.bad[step.number]
        return [step.number * 2 for step in steps]


@pytest.fixture(autouse=True)
def calls() -> list[list[int]]:
    Double.calls, Double.bad = [], {}
    return Double.calls


def doubled(*numbers: int, key: str = "double") -> Operation[list[int]]:
    found: list[int] = []
    for number in numbers:
        answer: int = yield Double(number, key)
        found += [answer]
    return found


async def closed(executor: BatchExecutor) -> None:
    await executor.close(lambda: None)
    assert bridge_threads() == 0


def test_steps_of_one_loop_turn_are_one_call(calls: list[list[int]]) -> None:
    async def main() -> None:
        executor = BatchExecutor()
        runs = [executor.run(doubled(number, number + 10)) for number in range(3)]
        assert await asyncio.gather(*runs) == [[0, 20], [2, 22], [4, 24]]
        assert calls == [[0, 1, 2], [10, 11, 12]]
        await closed(executor)

    in_loop(main)


def test_steps_requested_during_a_call_are_the_next_call(calls: list[list[int]]) -> None:
    async def main() -> None:
        executor, proceed = BatchExecutor(), threading.Event()
        first = executor.run(_held(proceed))
        await asyncio.sleep(0.01)
        runs = []
        for number in range(5):
            runs.append(executor.run(doubled(number)))
            await asyncio.sleep(0)
        proceed.set()
        assert await first is True
        assert await asyncio.gather(*runs) == [[number * 2] for number in range(5)]
        assert calls[-1][-1] == 4
        assert len(calls) <= 2
        await closed(executor)

    in_loop(main)


def _held(event: threading.Event) -> Operation[Any]:
    return (yield Call(lambda: event.wait(PATIENCE)))


def test_steps_with_different_keys_do_not_share_a_call(calls: list[list[int]]) -> None:
    async def main() -> None:
        executor = BatchExecutor()
        runs = [executor.run(doubled(number, key=f"{number % 2}")) for number in range(4)]
        assert await asyncio.gather(*runs) == [[0], [2], [4], [6]]
        assert calls == [[0, 2], [1, 3]]
        await closed(executor)

    in_loop(main)


def test_a_shared_call_stays_below_the_size_limit(calls: list[list[int]]) -> None:
    def sized(number: int) -> Operation[int]:
        found: int = yield Double(number, size=BATCH_SIZE // 3)
        return found

    async def main() -> None:
        executor = BatchExecutor()
        assert await asyncio.gather(*(executor.run(sized(number)) for number in range(7))) == [0, 2, 4, 6, 8, 10, 12]
        assert calls == [[0, 1, 2], [3, 4, 5], [6]]
        await closed(executor)

    in_loop(main)


def test_only_the_caller_of_a_bad_step_gets_its_error(calls: list[list[int]]) -> None:
    async def main() -> None:
        executor = BatchExecutor()
        Double.bad = {5: BadValue("five")}
        runs = [executor.run(doubled(number)) for number in range(8)]
        answers = await asyncio.gather(*runs, return_exceptions=True)
        assert [str(answer) for answer in answers] == [
            "[0]", "[2]", "[4]", "[6]", "[8]", "five", "[12]", "[14]",
        ]  # fmt: skip
        assert calls == [[0, 1, 2, 3, 4, 5, 6, 7], [0, 1, 2, 3], [4, 5, 6, 7], [4, 5], [4], [5], [6, 7]]
        await closed(executor)

    in_loop(main)


@pytest.mark.parametrize("error", [OutcomeUnknown("perhaps"), StoreUnavailable("away"), ZeroDivisionError("a bug")])
def test_a_store_error_is_raised_to_all_callers_and_not_retried(calls: list[list[int]], error: Exception) -> None:
    async def main() -> None:
        executor = BatchExecutor()
        Double.bad = {1: error}
        answers = await asyncio.gather(*(executor.run(doubled(number)) for number in range(3)), return_exceptions=True)
        assert [(type(answer), str(answer)) for answer in answers] == [(type(error), str(error))] * 3
        assert calls == [[0, 1, 2]]
        if isinstance(error, StoreUnavailable | OutcomeUnknown):
            assert len({id(answer) for answer in answers}) == 3
        await closed(executor)

    in_loop(main)


def test_an_operation_can_catch_an_error_and_continue() -> None:
    def operation() -> Operation[object]:
        try:
            yield Double(1)
        except BadValue as error:
            return str(error), (yield Double(2))
        return None

    async def main() -> None:
        executor = BatchExecutor()
        Double.bad = {1: BadValue("one")}
        assert await executor.run(operation()) == ("one", 4)
        await closed(executor)

    in_loop(main)


def test_arguments_are_checked_before_any_call(calls: list[list[int]]) -> None:
    def operation() -> Operation[None]:
        raise BadValue("before")
        yield Double(1)

    async def main() -> None:
        executor = BatchExecutor()
        run = executor.run(operation())
        assert run.done()
        with pytest.raises(BadValue, match="before"):
            await run
        await closed(executor)
        refused = executor.run(operation())
        with pytest.raises(BadValue, match="before"):
            await refused
        with pytest.raises(StoreUnavailable, match="closed: connect again"):
            await executor.run(doubled(1))
        assert calls == []

    in_loop(main)


def test_the_executor_starts_no_more_threads_than_allowed_and_needed() -> None:
    async def main() -> None:
        executor, proceed = BatchExecutor(3), threading.Event()
        assert await executor.call(lambda: 1) == 1
        assert await executor.call(lambda: 2) == 2
        assert bridge_threads() == 1
        runs = [executor.call(lambda: proceed.wait(PATIENCE)) for _ in range(10)]
        await asyncio.sleep(0.01)
        assert bridge_threads() == 3
        proceed.set()
        assert await asyncio.gather(*runs) == [True] * 10
        await closed(executor)

    in_loop(main)


def test_a_run_is_a_future_that_can_be_cancelled(calls: list[list[int]]) -> None:
    async def main() -> None:
        executor = BatchExecutor()
        first, second = executor.run(doubled(1, 3)), executor.run(doubled(2, 4))
        assert first.cancel()
        assert not first.cancel()
        assert await second == [4, 8]
        assert calls == [[2], [4]]
        with pytest.raises(asyncio.CancelledError):
            await first
        await closed(executor)

    in_loop(main)


def test_a_single_store_operation_shares_the_call_of_others(calls: list[list[int]]) -> None:
    async def main() -> None:
        executor = BatchExecutor()
        Double.bad[3] = BadValue("three")
        run, asked, bad = executor.run(doubled(1)), executor.submit(Double(2)), executor.submit(Double(3))
        assert [await run, await asked] == [[2], 4]
        with pytest.raises(BadValue):
            await bad
        assert calls[0] == [1, 2, 3]
        await closed(executor)
        with pytest.raises(StoreUnavailable):
            executor.submit(Double(4))

    in_loop(main)


def test_a_step_cancelled_before_it_is_sent_is_dropped(calls: list[list[int]]) -> None:
    async def main() -> None:
        executor = BatchExecutor()
        first, second = executor.submit(Double(1)), executor.submit(Double(2))
        assert first.cancel()
        assert await second == 4
        for future in [executor.submit(Double(number)) for number in range(3)]:
            assert future.cancel()
        await closed(executor)  # nobody is left to wait for
        assert calls == [[2]]

    in_loop(main)


def test_the_answer_to_a_step_cancelled_in_flight_is_dropped(calls: list[list[int]]) -> None:
    async def main() -> None:
        executor, proceed = BatchExecutor(), threading.Event()
        step = Call(proceed.wait)
        asked = executor.submit(step)
        await asyncio.sleep(0.01)
        assert asked.cancel()
        proceed.set()
        assert await executor.submit(Double(5)) == 10
        await closed(executor)

    in_loop(main)
