"""Round and reliable tubes of several processes on one store."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable

import pytest

import penstock
from penstock.core.task import record_of
from tests.conftest import DURABLE
from tests.fault.invariants import counters_equal_a_recount, require
from tests.support.inspection import waiters
from tests.support.peer import Peer
from tests.support.process_pool import TAKERS, in_processes
from tests.support.threads import until

pytestmark = pytest.mark.parametrize("url", DURABLE, indirect=True)

PERIOD = 0.15
ELAPSED = 0.2
ELEMENTS = 12
TURNS = 3
MESSAGES = 320
Handed = list[tuple[str, int, float]]


def for_a_while(url: str, hand_out: Callable[[penstock.Tube], list[penstock.Task]]) -> Handed:
    """What was handed out in most of a second, and when by the store's clock.

    Runs longer where processes had too few turns, and until this one got something.
    """
    found: Handed = []
    with penstock.connect(url) as broker:
        tube = broker.tube("t")
        ends = time.monotonic() + 0.8
        while not found or time.monotonic() < ends or (stats := tube.stats()).calls.take < TURNS * stats.tasks.total:
            handed = hand_out(tube)
            found += [(task.id, task.attempts, task.taken) for task in handed]
            if not handed:
                time.sleep(0.01)  # eight processes that poll without a pause would only slow each other down
    return found


def go_round(url: str) -> Handed:
    """Take, alternating between blocking and non-blocking calls."""
    return for_a_while(url, lambda tube: [*filter(None, [tube.take(0.05)]), *tube.take_many(3)])


def recover(url: str) -> Handed:
    """Recover what was delivered a while ago."""
    return for_a_while(url, lambda tube: tube.recover(5, ELAPSED))


def put_elements(url: str) -> Handed:
    """Put the same ids as all others."""
    with penstock.connect(url) as broker:
        tube = broker.tube("t")
        return [(task.id, record_of(task).id, 0) for n in range(50) for task in [tube.put(n, id=f"e{n}")]]


def push(url: str) -> Handed:
    """Push some alone and some together. Returns their ids in the order of the puts."""
    with penstock.connect(url) as broker:
        tube = broker.tube("t")
        alone = [tube.put(n) for n in range(MESSAGES // TAKERS // 2)]
        return [(task.id, 0, 0) for task in [*alone, *tube.put_many(range(MESSAGES // TAKERS // 2))]]


def pop_and_ack(url: str) -> Handed:
    """Pop until nothing is left, and ack by id, also what others popped. Returns what was popped and removed."""
    found = []
    with penstock.connect(url) as broker:
        tube = broker.tube("t")
        while popped := tube.take_many(7):
            found += [(task.id, task.attempts, 0.0) for task in popped]
            others = tube.inspect(0, 3, pending=True)
            found += [(str(id), 0, 0.0) for id in tube.ack_many([*others, *popped])]
    return found


def gaps(handed: list[Handed]) -> list[float]:
    """The times between two deliveries of one element, to any process."""
    times = defaultdict(list)
    for id, _, taken in (one for found in handed for one in found):
        times[id].append(taken)
    return [round(b - a, 3) for each in times.values() for a, b in zip(sorted(each), sorted(each)[1:], strict=False)]


def test_no_element_is_handed_out_twice_within_its_period(url: str, broker: penstock.Broker) -> None:
    tube = broker.tube("t", kind="round", period=PERIOD)
    tube.put_many([(n, {"id": str(n)}) for n in range(ELEMENTS)])
    handed = in_processes(go_round, url)
    between = gaps(handed)
    require("I10", min(between) >= PERIOD, sorted(between)[:5])
    counted = Counter((id, attempts) for found in handed for id, attempts, _ in found)
    assert set(counted.values()) == {1}
    assert sum(counted.values()) == tube.stats().calls.take
    assert len({id for id, _ in counted}) == ELEMENTS
    assert all(handed), "some takers got nothing, so they raced with nobody"


def test_racing_puts_of_one_id_make_one_element(url: str, broker: penstock.Broker) -> None:
    tube = broker.tube("t", kind="round", period=1)
    answers = in_processes(put_elements, url)
    assert [[id for id, _, _ in found] for found in answers] == [[f"e{n}" for n in range(50)]] * TAKERS
    assert len({(id, number) for found in answers for id, number, _ in found}) == 50
    assert len(tube) == tube.stats().calls.put == 50


def test_ids_of_racing_puts_grow_and_each_message_is_popped_and_acked_once(url: str, broker: penstock.Broker) -> None:
    tube = broker.tube("t", kind="reliable")
    pushed = [[_mark(id) for id, _, _ in found] for found in in_processes(push, url)]
    assert all(marks == sorted(marks) for marks in pushed)
    listed = [_mark(task.id) for task in tube.inspect(0, MESSAGES * 2)]
    assert listed == sorted(set(listed)) == sorted(mark for marks in pushed for mark in marks)
    assert len(listed) == MESSAGES
    done = Counter((id, attempts) for found in in_processes(pop_and_ack, url) for id, attempts, _ in found)
    acked = [id for id, attempts in done if attempts == 0]
    require("I4", set(done.values()) == {1} and len(acked) == MESSAGES, done.most_common(3))
    # Of a pool, a pop returns no message that another process acked before its data was read.
    calls = tube.stats().calls
    assert (len(tube), calls.take, calls.ack) == (0, MESSAGES, MESSAGES)
    assert counters_equal_a_recount(broker, tube) == []


def test_recover_hands_each_message_to_one_caller(url: str, broker: penstock.Broker) -> None:
    tube = broker.tube("t", kind="reliable")
    tube.put_many(range(60))
    tube.take_many(60)  # their first turns
    handed = in_processes(recover, url)
    counted = Counter((id, attempts) for found in handed for id, attempts, _ in found)
    assert set(counted.values()) == {1}
    assert {id for id, attempts in counted if attempts == 2} == {task.id for task in tube.tasks()}
    assert min(gaps(handed)) >= ELAPSED
    assert counters_equal_a_recount(broker, tube) == []


def test_a_taker_in_another_process_is_woken_when_the_period_is_over(
    broker: penstock.Broker, peer: Callable[[], Peer]
) -> None:
    tube = broker.tube("t", kind="round", period=0.4)
    other = peer()
    other.ask("without_scan")
    tube.put("x", id="x")
    first = tube.take(0)
    assert first is not None
    other.send("take", "t", 60)
    assert other.answer()["id"] == "x"
    second = tube.peek("x")
    assert round(second.taken - first.taken, 3) >= 0.4


def test_a_taker_that_waits_for_a_period_is_woken_by_a_new_element(
    broker: penstock.Broker, peer: Callable[[], Peer]
) -> None:
    tube = broker.tube("t", kind="round", period=1000)
    other = peer()
    other.ask("without_scan")
    tube.put("x", id="x")
    tube.take(0)
    other.send("take", "t", 60)
    until(lambda: waiters(broker, "t") == 1)
    tube.put("y", id="y")
    assert other.answer()["id"] == "y"


def test_what_a_killed_process_popped_stays_delivered(broker: penstock.Broker, peer: Callable[[], Peer]) -> None:
    tube = broker.tube("t", kind="reliable")
    put = tube.put("x")
    other = peer()
    assert other.ask("take", "t", 10)["id"] == put.id
    other.kill()
    assert tube.take(1) is None
    assert [task.id for task in tube.recover(1, 0)] == [put.id]


def _mark(id: str) -> tuple[int, ...]:
    return tuple(map(int, id.split("-")))
