"""Addresses, outcomes, replies and groups of several processes on one store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial

import pytest

import penstock
from penstock.runtime import heartbeat as heartbeat
from tests.conftest import DURABLE
from tests.fault.invariants import counters_equal_a_recount, require
from tests.support.peer import Peer
from tests.support.process_pool import PATIENCE, TAKERS, in_processes, retry_while_busy
from tests.support.threads import begin, until
from tests.support.verbs import drain, take

pytestmark = pytest.mark.parametrize("url", DURABLE, indirect=True)

TASKS = 200
CANCELLED = 2_000  # two steps of the store
SOME = 100  # acked by each process before the cancel, which finds some left however late it comes
STOP = "stop"


def work(url: str, before: int | None = None) -> list[object]:
    """Take and ack until asked to stop. Returns the data that was acked, and the number of acks that came too late."""
    done: list[object] = []
    with penstock.connect(url) as broker:
        tube = retry_while_busy(lambda: broker.tube("t"))
        while (task := retry_while_busy(lambda: tube.take(PATIENCE))) is not None:
            try:
                retry_while_busy(partial(task.ack, task.data))
            except penstock.NotTaken:
                done.append("late")
                continue
            if task.data == STOP:
                break
            done.append(task.data)
            if len(done) == before:
                retry_while_busy(lambda: broker.tube("gate").take(PATIENCE))
    return done


def work_some(url: str) -> list[object]:
    """The same, but only a few tasks until the gate opens."""
    return work(url, SOME)


def put_addresses(url: str) -> list[object]:
    """Put the same addresses as all others. Returns the ids of those that were free."""
    ids: list[object] = []
    with penstock.connect(url) as broker:
        tube = broker.tube("t")
        for number in range(50):
            try:
                ids.append(tube.put(number, address=str(number)).id)
            except penstock.DuplicateAddress:
                pass
    return ids


def together(function: Callable[[str], list[object]], url: str) -> Counter[object]:
    """The results of eight processes."""
    return Counter(item for answer in in_processes(function, url) for item in answer)


def stopped(tube: penstock.Tube, working: Future[Counter[object]]) -> Counter[object]:
    """Stop the working processes, which have nothing left to do. Returns their results."""
    retry_while_busy(lambda: tube.put_many([STOP] * TAKERS))
    return working.result(PATIENCE)


@pytest.mark.parametrize("kind", ["fifo", "utubettl"])
def test_eight_acking_processes_put_the_end_work_once(url: str, broker: penstock.Broker, kind: str) -> None:
    tube = broker.tube("t", kind=kind)
    groups = [tube.group(f"g{number}") for number in range(4)]
    for number, group in enumerate(groups):
        micro_queue = number if kind == "utubettl" else None
        group.put_many([f"{number}-{n}" for n in range(TASKS // 4)], utube=micro_queue)
        group.on_end(f"end {number}")
        group.start()
    working = begin(lambda: together(work, url))
    assert [group.wait(PATIENCE) for group in groups] == ["done"] * 4
    until(lambda: tube.stats().tasks.total == 0, PATIENCE)
    done = stopped(tube, working)
    require("I9", all(done[f"end {number}"] == 1 for number in range(4)), done.most_common(5))
    require("I4", set(done.values()) == {1} and len(done) == TASKS + 4, done.most_common(5))
    assert counters_equal_a_recount(broker, tube) == []


def test_a_cancel_among_acking_processes(url: str, broker: penstock.Broker) -> None:
    tube = broker.tube("t", kind="fifo")
    group = tube.group("g")
    group.put_many(range(CANCELLED), reply_to="replies")
    group.on_end("end")
    group.on_cancel("cancelled")
    group.start()
    gate = broker.tube("gate")
    working = begin(lambda: together(work_some, url))
    until(lambda: retry_while_busy(tube.stats).calls.ack > 20, PATIENCE)
    retry_while_busy(group.cancel)
    acked = retry_while_busy(tube.stats).calls.ack
    retry_while_busy(lambda: gate.put_many(range(TAKERS)))
    until(lambda: retry_while_busy(tube.stats).tasks.total == 0, PATIENCE)
    stats = retry_while_busy(tube.stats).calls
    done = stopped(tube, working)
    require("I9", done["cancelled"] == 1 and done["end"] == 0, done.most_common(3))
    require("I9", stats.ack - 1 <= acked, "work was acked after the cancel")
    assert stats.ack + stats.delete == CANCELLED + 1
    taken = broker.tube("replies").take_many(10_000)
    replies = Counter(task.data["id"] for task in taken if isinstance(task.data, dict))
    assert (len(replies), set(replies.values())) == (CANCELLED, {1})
    assert group.wait(0) == "cancelled"


def test_processes_that_race_for_addresses_put_each_once(url: str, broker: penstock.Broker) -> None:
    tube = broker.tube("t")
    ids = together(put_addresses, url)
    require("I8", sorted(ids.values()) == [1] * 50, ids.most_common(3))
    assert sorted(map(int, map(str, drain(tube)))) == list(range(50))


def test_an_end_in_another_process_wakes_a_wait(
    url: str, peer: Callable[[], Peer], monkeypatch: pytest.MonkeyPatch
) -> None:
    if not url.startswith("mysql"):  # it notifies nobody: after a while the scan finds it
        monkeypatch.setattr(heartbeat, "SCAN_SECONDS", 600.0)
    with penstock.connect(url) as waiting:
        tube = waiting.tube("t")
        tube.put("x", address="a", group="g")
        group = tube.group("g")
        group.start()
        other = peer()
        assert other.ask("take", "t", 0)["id"] == 1
        waits = [begin(lambda: tube.wait("a", PATIENCE).status), begin(lambda: group.wait(PATIENCE))]
        until(lambda: len(waiting.runtime.wait_queue.topics) == 2)
        other.ask("ack")
        assert [future.result(PATIENCE) for future in waits] == ["done", "done"]


def test_the_end_of_a_group_waits_for_the_tasks_of_a_dead_process(
    broker: penstock.Broker, peer: Callable[[], Peer]
) -> None:
    tube = broker.tube("t", kind="fifo")
    group = tube.group("g")
    group.put("x")
    group.on_end("end")
    group.start()
    other = peer()
    other.ask("take", "t", 0)
    other.kill()
    task = tube.take(PATIENCE)
    assert task is not None
    assert (task.data, task.attempts) == ("x", 2)
    task.ack()
    assert take(tube).data == "end"
