"""Kind round: elements with the caller's ids, handed out in turn, at most once per period; a take removes none."""

from __future__ import annotations

import pytest

import penstock
from penstock.testing import Clock
from tests.conftest import Connect
from tests.support.inspection import calls, everything, tasks, waiters
from tests.support.threads import begin, until
from tests.support.verbs import take


@pytest.fixture
def feeds(broker: penstock.Broker) -> penstock.Tube:
    return broker.create_tube("feeds", "round", period=5)


def ids(found: list[penstock.Task]) -> list[str]:
    return [task.id for task in found]


def test_a_hand_out_leaves_the_element_in_the_tube(feeds: penstock.Tube, clock: Clock) -> None:
    put = feeds.put({"url": "x"}, id="feed-1", ttl=60)
    assert (put.id, put.status, put.attempts, put.taken) == ("feed-1", "r", 0, None)
    clock.advance(1)
    task = take(feeds)
    id, status, data = task
    assert (id, status, data) == ("feed-1", "r", {"url": "x"})
    assert (task.attempts, task.lease, task.taken, task.due) == (1, 0, clock.seconds, None)
    assert (task.created, task.expires) == (clock.seconds - 1, clock.seconds + 59)
    assert (task.address, task.group, task.utube) == (None, None, None)
    assert tasks(feeds) == {"ready": 1, "total": 1}
    assert calls(feeds) == {"put": 1, "take": 1}


def test_new_elements_come_first_in_put_order_then_the_longest_waiting(feeds: penstock.Tube, clock: Clock) -> None:
    feeds.put_many([(name, {"id": name}) for name in "cab"])
    assert ids(feeds.take_many(2)) == ["c", "a"]
    clock.advance(5)
    feeds.put("new", id="new")
    assert ids(feeds.take_many(9)) == ["b", "new", "c", "a"]


def test_never_twice_within_the_period_and_again_at_its_end(feeds: penstock.Tube, clock: Clock) -> None:
    feeds.put("x", id="x")
    take(feeds)
    clock.advance(4.999)
    assert feeds.take(0) is None
    clock.advance(0.001)
    assert take(feeds).attempts == 2
    assert feeds.take(0) is None


def test_take_many_hands_out_each_element_once(broker: penstock.Broker, clock: Clock) -> None:
    tube = broker.tube("t", kind="round", period=0.001)
    tube.put_many([(n, {"id": str(n)}) for n in range(3)])
    assert ids(tube.take_many(100)) == ["0", "1", "2"]
    clock.advance(0.001)
    assert ids(tube.take_many(100)) == ["0", "1", "2"]


def test_a_period_is_rounded_up_to_milliseconds(broker: penstock.Broker, clock: Clock) -> None:
    tube = broker.tube("t", kind="round", period=0.0011)
    tube.put("x", id="x")
    take(tube)
    clock.advance(0.001)
    assert tube.take(0) is None
    clock.advance(0.001)
    take(tube)


def test_elements_of_one_millisecond_come_in_put_order(feeds: penstock.Tube, clock: Clock) -> None:
    feeds.put_many([("a", {"id": "a"}), ("b", {"id": "b"})])
    take(feeds)
    clock.advance(1)
    take(feeds)
    clock.advance(5)
    assert ids(feeds.take_many(2)) == ["a", "b"]


# duplicates


def test_a_second_put_changes_nothing_and_returns_the_existing_element(feeds: penstock.Tube, clock: Clock) -> None:
    feeds.put_many([("old", {"id": "a", "ttl": 10}), ("b", {"id": "b"})])
    take(feeds)
    clock.advance(3)
    before = everything(feeds)
    again = feeds.put("new", id="a", ttl=100)
    assert (again.id, again.data, again.attempts, again.taken) == ("a", "old", 1, clock.seconds - 3)
    assert everything(feeds) == before
    clock.advance(2)
    assert ids(feeds.take_many(2)) == ["b", "a"]
    clock.advance(5)
    assert [task.id for task in feeds.tasks()] == ["b"]


def test_replace_changes_only_the_data(feeds: penstock.Tube, clock: Clock) -> None:
    feeds.put("old", id="a", ttl=10)
    feeds.put("b", id="b")
    take(feeds)
    clock.advance(1)
    changed = feeds.put([1], id="a", ttl=100, on_duplicate="replace")
    assert (changed.data, changed.attempts, changed.expires) == ([1], 1, clock.seconds + 9)
    assert (changed.created, changed.taken) == (clock.seconds - 1, clock.seconds - 1)
    assert calls(feeds) == {"put": 2, "take": 1}
    assert ids(feeds.take_many(9)) == ["b"]
    clock.advance(4)
    assert [tuple(task) for task in feeds.take_many(9)] == [("a", "r", [1])]


def test_replace_of_a_new_id_puts_it(feeds: penstock.Tube) -> None:
    assert feeds.put("x", id="a", on_duplicate="replace").data == "x"
    assert calls(feeds) == {"put": 1}


@pytest.mark.parametrize(("mode", "kept"), [("error", 1), ("ignore", 1), ("replace", 3)])
def test_duplicates_inside_one_put_many_are_as_if_put_one_after_the_other(
    feeds: penstock.Tube, mode: str, kept: int
) -> None:
    put = feeds.put_many(
        [(1, {"id": "a", "ttl": 9}), (2, {"id": "b"}), (2, {"id": "a"}), (3, {"id": "a", "ttl": 99})], on_duplicate=mode
    )
    assert [(task.id, task.data) for task in put] == [("a", kept), ("b", 2), ("a", kept), ("a", kept)]
    assert len({task.expires for task in put if task.id == "a"}) == 1
    assert calls(feeds) == {"put": 2}
    assert len(feeds) == 2


def test_the_same_id_in_another_tube_is_another_element(broker: penstock.Broker, feeds: penstock.Tube) -> None:
    other = broker.tube("other", kind="round", period=5)
    feeds.put(1, id="a")
    assert other.put(2, id="a").data == 2


def test_ids_are_stored_exactly_as_given(feeds: penstock.Tube) -> None:
    names = ["a", "A", "a ", " a", "ä", "a\u0308", "1", "01", "1-1", "x" * 200, "with spaces & 'quotes' {x}", "日本"]
    feeds.put_many([(n, {"id": name}) for n, name in enumerate(names)])
    assert ids(feeds.tasks()) == names
    assert [feeds.peek(name).data for name in names] == list(range(len(names)))


# ttl


def test_an_expired_element_is_gone_for_every_reader(feeds: penstock.Tube, clock: Clock) -> None:
    feeds.put("x", id="x", ttl=7)
    feeds.put("y", id="y")
    take(feeds)
    clock.advance(5)
    assert take(feeds).id == "y"
    assert take(feeds).id == "x"
    clock.advance(2)
    assert len(feeds) == 1
    assert "x" not in feeds
    clock.advance(10)
    assert ids(feeds.take_many(9)) == ["y"]
    assert calls(feeds) == {"put": 2, "take": 4, "ttl": 1}
    with pytest.raises(penstock.NotFound, match="x"):
        feeds.peek("x")


def test_a_tube_default_of_ttl(broker: penstock.Broker, clock: Clock) -> None:
    tube = broker.tube("t", kind="round", period=1, ttl=3)
    tube.put_many([("a", {"id": "a"}), ("b", {"id": "b", "ttl": 9})])
    clock.advance(3)
    assert ids(tube.take_many(9)) == ["b"]


@pytest.mark.parametrize("mode", ["error", "replace"])
def test_an_expired_element_makes_way_for_its_id(broker: penstock.Broker, clock: Clock, mode: str) -> None:
    tube = broker.tube("t", kind="round", period=5, capacity=1)
    tube.put("old", id="a", ttl=1)
    take(tube)
    clock.advance(1)
    again = tube.put("new", id="a", on_duplicate=mode)
    assert (again.data, again.attempts, again.expires) == ("new", 0, None)
    assert take(tube).data == "new"
    assert calls(tube) == {"put": 2, "take": 2, "ttl": 1}


# waiting


@pytest.mark.usefixtures("unscanned")
def test_a_blocked_take_gets_the_element_when_its_period_is_over(live: penstock.Broker) -> None:
    tube = live.tube("t", kind="round", period=0.4)
    tube.put("x", id="x")
    first = take(tube)
    second = tube.take(30)
    assert first.taken is not None
    assert second is not None
    assert second.taken is not None
    assert round(second.taken - first.taken, 3) >= 0.4


def test_every_blocked_take_gets_one_when_several_are_due(live: penstock.Broker) -> None:
    tube = live.tube("t", kind="round", period=0.5)
    tube.put_many([(n, {"id": str(n)}) for n in range(3)])
    tube.take_many(3)
    futures = [begin(lambda: tube.take(60)) for _ in range(3)]
    taken = [future.result(timeout=30) for future in futures]
    assert sorted(task.id for task in taken if task) == ["0", "1", "2"]


def test_a_blocked_take_is_woken_by_a_new_element(live: penstock.Broker) -> None:
    tube = live.tube("t", kind="round", period=1000)
    tube.put("old", id="old")
    take(tube)
    future = begin(lambda: tube.take(60))
    until(lambda: waiters(live, "t") == 1)
    tube.put("new", id="new")
    task = future.result(timeout=30)
    assert task is not None
    assert task.id == "new"


def test_a_duplicate_put_hands_out_nothing(live: penstock.Broker) -> None:
    tube = live.tube("t", kind="round", period=1000)
    tube.put("x", id="x")
    take(tube)
    future = begin(lambda: tube.take(60))
    until(lambda: waiters(live, "t") == 1)
    tube.put("x", id="x")
    tube.put("y", id="x", on_duplicate="replace")
    tube.put("new", id="new")
    task = future.result(timeout=30)
    assert task is not None
    assert task.id == "new"


# by id


def test_delete_peek_and_contains_go_by_id(feeds: penstock.Tube) -> None:
    feeds.put_many([(1, {"id": "a"}), (2, {"id": "b"})])
    assert ("a" in feeds, "b" in feeds, "c" in feeds) == (True, True, False)
    feeds.delete("a")
    assert "a" not in feeds
    assert feeds.peek("b").data == 2
    assert ids(feeds.take_many(9)) == ["b"]
    assert calls(feeds) == {"put": 2, "take": 1, "delete": 1}


def test_a_deleted_element_can_be_put_again_as_a_new_one(feeds: penstock.Tube) -> None:
    feeds.put(1, id="a")
    take(feeds)
    feeds.delete("a")
    feeds.put(2, id="a")
    again = take(feeds)
    assert (again.data, again.attempts) == (2, 1)


def test_a_task_is_accepted_instead_of_its_id(feeds: penstock.Tube) -> None:
    feeds.put(1, id="a")
    task = take(feeds)
    assert feeds.peek(task).attempts == 1
    feeds.delete(task)
    assert (task.status, len(feeds)) == ("-", 0)


@pytest.mark.parametrize("verb", ["peek", "delete", "why"])
def test_an_unknown_id_is_not_found(feeds: penstock.Tube, verb: str) -> None:
    feeds.put(1, id="a")
    with pytest.raises(penstock.NotFound, match="b"):
        getattr(feeds, verb)("b")


def test_tasks_lists_in_put_order_and_continues_after_an_id(feeds: penstock.Tube) -> None:
    feeds.put_many([(name, {"id": name}) for name in "cabd"])
    take(feeds)
    assert ids(feeds.tasks(limit=2)) == ["c", "a"]
    assert ids(feeds.tasks(after="a")) == ids(feeds.tasks(after=feeds.peek("a"))) == ["b", "d"]
    assert ids(feeds.tasks("r")) == ["c", "a", "b", "d"]
    assert feeds.tasks("t") == feeds.tasks("-") == []
    with pytest.raises(penstock.NotFound, match="gone"):
        feeds.tasks(after="gone")


# as any other tube


def test_with_settles_nothing(feeds: penstock.Tube) -> None:
    feeds.put(1, id="a")
    with take(feeds) as task:
        pass
    feeds.put(2, id="b")
    with pytest.raises(ValueError, match="odd"), take(feeds):
        raise ValueError("odd")
    assert task.status == "r"
    assert calls(feeds) == {"put": 2, "take": 2}


def test_capacity_counts_elements_and_a_duplicate_needs_no_room(broker: penstock.Broker) -> None:
    tube = broker.tube("t", kind="round", period=5, capacity=2)
    tube.put_many([(1, {"id": "a"}), (2, {"id": "b"})])
    assert tube.put(3, id="a").data == 1
    assert tube.put(3, id="b", on_duplicate="replace").data == 3
    with pytest.raises(penstock.TubeFull, match="holds 2 of 2"):
        tube.put(4, id="c")
    with pytest.raises(penstock.TubeFull):
        tube.put_many([(9, {"id": "a"}), (4, {"id": "c"})], on_duplicate="replace")
    assert tube.peek("a").data == 1
    tube.delete("a")
    tube.put(4, id="c")


def test_a_paused_tube_hands_out_nothing(feeds: penstock.Tube) -> None:
    feeds.put(1, id="a")
    feeds.pause()
    assert feeds.take(0) is None
    feeds.resume()
    assert take(feeds).id == "a"


def test_a_waiter_of_a_paused_tube_is_not_woken_for_its_first_element(
    broker: penstock.Broker, feeds: penstock.Tube
) -> None:
    feeds.put(1, id="a")
    feeds.pause()
    broker.session_handle.join()
    wait_ms = broker.runtime.store.take([feeds.stored], 1, broker.session_handle.handle).wait_ms
    assert wait_ms is None or wait_ms > 1000


def test_truncate_and_drop(broker: penstock.Broker, feeds: penstock.Tube) -> None:
    feeds.put_many([(1, {"id": "a"}), (2, {"id": "b"})])
    take(feeds)
    assert feeds.truncate() == 2
    assert (len(feeds), "a" in feeds) == (0, False)
    feeds.put(3, id="a")
    take(feeds)
    feeds.drop()
    with pytest.raises(penstock.NoSuchTube):
        feeds.put(1, id="a")
    with pytest.raises(penstock.NoSuchTube):
        feeds.peek("a")
    assert broker.tubes() == []


def test_changes_are_reported(feeds: penstock.Tube, clock: Clock) -> None:
    reported: list[tuple[str, str, str]] = []
    feeds.on_change(lambda task, event: reported.append((event, task.id, str(task.status))))
    feeds.put(1, id="a", ttl=3)
    feeds.put(1, id="b")
    feeds.put(2, id="a")
    feeds.put(2, id="a", on_duplicate="replace")
    take(feeds)
    feeds.delete("b")
    clock.advance(3)
    feeds.stats()
    assert reported == [
        ("put", "a", "r"), ("put", "b", "r"), ("put", "a", "r"), ("take", "a", "r"), ("delete", "b", "-"),
        ("ttl", "a", "-"),
    ]  # fmt: skip


def test_the_end_of_a_session_changes_nothing(broker: penstock.Broker, connect: Connect, clock: Clock) -> None:
    tube = broker.tube("t", kind="round", period=5)
    tube.put(1, id="a")
    other = connect()
    with other.session() as session:
        take(session.tube("t"))
        assert [seen.held for seen in broker.sessions()] == [[]]
    other.close()
    assert calls(tube) == {"put": 1, "take": 1}
    assert tube.take(0) is None


def test_takers_share_the_turns(broker: penstock.Broker, connect: Connect) -> None:
    tube, theirs = broker.tube("t", kind="round", period=5), connect().tube("t")
    tube.put_many([(n, {"id": str(n)}) for n in range(4)])
    assert [take(one).id for one in (tube, theirs, theirs, tube)] == ["0", "1", "2", "3"]
    assert (tube.take(0), theirs.take(0)) == (None, None)


def test_several_tubes_of_several_kinds_may_be_taken_from(broker: penstock.Broker, clock: Clock) -> None:
    names = ["round", "reliable", "fifo"]
    for name in names:
        broker.tube(name, kind=name, period=5 if name == "round" else None)
    broker.tube("round").put("r", id="r")
    broker.tube("reliable").put("m")
    broker.tube("fifo").put("f")
    got = [broker.take(names, 0) for _ in range(4)]
    assert [task and (task.tube, task.data) for task in got] == [("round", "r"), ("reliable", "m"), ("fifo", "f"), None]
    clock.advance(5)
    again = broker.take(names, 0)
    assert again is not None
    assert again.id == "r"


def test_why_says_when_it_may_be_handed_out(feeds: penstock.Tube, clock: Clock) -> None:
    feeds.put_many([(1, {"id": "a"}), (2, {"id": "b"})])
    assert feeds.why("b") == "task b is ready: 1 task ahead of it; the take after that gets it"
    take(feeds)
    clock.advance(2)
    assert feeds.why("a") == "task a is ready, but handed out 2 s ago: it may be handed out again in 3 s"
    feeds.pause()
    assert "paused" in feeds.why("a")


def test_a_clock_set_back_postpones_by_at_most_the_jump_and_new_ones_flow(feeds: penstock.Tube, clock: Clock) -> None:
    feeds.put(1, id="a")
    take(feeds)
    clock.advance(-3)
    feeds.put(2, id="b")
    assert take(feeds).id == "b"
    clock.advance(7.999)
    assert ids(feeds.take_many(9)) == ["b"]
    clock.advance(0.001)
    assert ids(feeds.take_many(9)) == ["a"]


def test_undecodable_records_are_skipped(feeds: penstock.Tube, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    feeds.put("good", id="good")
    with monkeypatch.context() as damage:
        damage.setattr("penstock.core.codec.encode", lambda data: b'{"cut')
        feeds.put("damaged", id="bad")
    feeds.put("too", id="too")
    assert ids(feeds.take_many(2)) == ["good"]
    assert ids(feeds.take_many(2)) == ["too"]
    clock.advance(5)
    assert ids(feeds.take_many(9)) == ["good", "too"]
    assert feeds.peek("bad").data == b'{"cut'
