"""The rules and tests of the seed's database queue (Go, with permits, addresses and groups).

Push is put, Get take, Extend touch, Delete ack, RecordFailure fail, PollAddress wait; a permit is a session.
Differences by our rules: work leaves only by ack or fail, a group is one record that no process has to watch, and a
group has cancel work.
"""

from __future__ import annotations

import pytest

import penstock
from penstock.testing import Clock
from tests.conftest import Connect
from tests.support.inspection import calls, tasks, waiters
from tests.support.threads import begin, until
from tests.support.verbs import drain, take


@pytest.fixture
def jobs(broker: penstock.Broker) -> penstock.Tube:
    return broker.create_tube("jobs")


# push and get


def test_work_is_any_json(jobs: penstock.Tube) -> None:
    jobs.put({"runtime": 10, "tag": 3, "nested": {"list": [1, None]}})
    assert take(jobs).data == {"runtime": 10, "tag": 3, "nested": {"list": [1, None]}}


def test_work_that_is_not_json_is_refused(jobs: penstock.Tube) -> None:
    with pytest.raises(penstock.BadValue, match="data"):
        jobs.put({"at": object()})
    assert tasks(jobs) == {}


def test_zero_is_the_highest_priority(jobs: penstock.Tube) -> None:
    for pri in (2, 0, 1, 0):
        jobs.put(f"pri {pri}", pri=pri)
    assert drain(jobs) == ["pri 0", "pri 0", "pri 1", "pri 2"]


def test_a_queue_is_known_by_its_name(broker: penstock.Broker, jobs: penstock.Tube) -> None:
    sweep = broker.create_tube("sweep")
    jobs.put("job")
    sweep.put("dust")
    assert (drain(sweep), drain(jobs)) == (["dust"], ["job"])


@pytest.mark.parametrize(("most", "found"), [(0, "urgent"), (1, "urgent"), (9, "urgent")])
def test_get_of_a_highest_priority_finds_what_is_as_urgent(jobs: penstock.Tube, most: int, found: str) -> None:
    jobs.put_many([("slow", {"pri": 9}), ("urgent", {"pri": 0})])
    task = jobs.take(0, max_pri=most)
    assert task is not None
    assert task.data == found


def test_get_of_a_highest_priority_leaves_the_rest(jobs: penstock.Tube) -> None:
    jobs.put("slow", pri=2)
    assert jobs.take(0, max_pri=1) is None
    assert jobs.take_many(5, max_pri=1) == []
    assert take(jobs).data == "slow"


def test_a_blocked_get_waits_for_work_that_is_urgent_enough(live: penstock.Broker) -> None:
    tube = live.tube("jobs")
    tube.put("slow", pri=5)
    got = begin(lambda: tube.take(30, max_pri=2))
    until(lambda: waiters(live, "jobs") == 1)
    tube.put("still slow", pri=3)
    tube.put("urgent", pri=2)
    task = got.result(30)
    assert task is not None
    assert task.data == "urgent"
    assert tasks(tube) == {"ready": 2, "taken": 1, "total": 3}


def test_claimed_work_is_claimed_once(jobs: penstock.Tube, connect: Connect) -> None:
    jobs.put("one")
    take(jobs)
    assert connect().tube("jobs").take(0) is None


# permits


def test_permits_are_listed_with_their_heartbeat_and_work(broker: penstock.Broker, jobs: penstock.Tube) -> None:
    jobs.put_many(["a", "b", "c"])
    with broker.session() as one, broker.session() as two:
        one.tube("jobs").take_many(2)
        take(two.tube("jobs"))
        held = {found.id: (found.held, found.heartbeat > 0) for found in broker.sessions()}
        assert held[one.id] == ([("jobs", 1), ("jobs", 2)], True)
        assert held[two.id] == ([("jobs", 3)], True)


def test_extending_keeps_the_work(jobs: penstock.Tube, clock: Clock) -> None:
    jobs.put("long", ttr=2)
    task = take(jobs)
    for _ in range(4):
        clock.advance(1)
        task.touch(1)
    assert jobs.peek(1).status == "t"
    clock.advance(2)
    assert jobs.peek(1).status == "r"


def test_extending_a_lost_lease_is_refused(jobs: penstock.Tube, clock: Clock) -> None:
    jobs.put("long", ttr=1)
    task = take(jobs)
    clock.advance(1)
    with pytest.raises(penstock.NotTaken):
        task.touch(1)


def test_the_work_of_a_cancelled_permit_can_be_claimed_by_another(broker: penstock.Broker, jobs: penstock.Tube) -> None:
    jobs.put("one")
    stale = broker.session()
    late = take(stale.tube("jobs"))
    stale.close()
    again = take(jobs)
    assert (again.id, again.attempts) == (late.id, 2)
    with pytest.raises(penstock.NotTaken):
        late.ack()
    again.ack()


def test_deleted_work_is_gone(jobs: penstock.Tube) -> None:
    jobs.put("one")
    take(jobs).ack()
    assert (tasks(jobs), jobs.tasks()) == ({"done": 1}, [])


# addresses


def test_addressed_work_is_in_the_queue_once(jobs: penstock.Tube) -> None:
    jobs.put("first", address="add1")
    with pytest.raises(penstock.DuplicateAddress, match="add1"):
        jobs.put("second", address="add1")
    assert drain(jobs) == ["first"]


def test_an_address_in_progress_is_a_duplicate_too(jobs: penstock.Tube) -> None:
    jobs.put("first", address="add1")
    take(jobs)
    with pytest.raises(penstock.DuplicateAddress):
        jobs.put("second", address="add1")


def test_the_work_of_an_address_can_be_found(jobs: penstock.Tube) -> None:
    jobs.put_many([("a", {"address": "abc"}), ("d", {"address": "def"}), "plain"])
    assert [task.data for task in jobs.tasks() if task.address == "def"] == ["d"]


def test_polling_ends_without_an_error_when_the_work_is_done(jobs: penstock.Tube) -> None:
    jobs.put("work", address="add1")
    take(jobs).ack()
    assert jobs.wait("add1", 0).unwrap() is None


def test_polling_an_address_that_is_not_there_ends_at_once(jobs: penstock.Tube) -> None:
    assert jobs.wait("nobody", 0) == penstock.Outcome("unknown")


def test_polling_gives_the_recorded_failure(jobs: penstock.Tube) -> None:
    jobs.put("work", address="add1")
    take(jobs).fail("kaboom!")
    outcome = jobs.wait("add1", 0)
    assert (outcome.status, outcome.error, outcome.code) == ("failed", "kaboom!", None)
    with pytest.raises(penstock.TaskFailed, match="kaboom!"):
        outcome.unwrap()


@pytest.mark.parametrize("code", [0, 404, -1, "not found"])
def test_a_failure_keeps_its_code(jobs: penstock.Tube, code: str | int) -> None:
    jobs.put("work", address="add1")
    jobs.fail(take(jobs), "kaboom!", code)
    assert jobs.wait("add1", 0).code == code


def test_a_failure_is_forgotten_when_the_address_is_pushed_again(jobs: penstock.Tube) -> None:
    jobs.put("work", address="add1")
    take(jobs).fail("kaboom!")
    jobs.put("work", address="add1")
    with pytest.raises(TimeoutError):
        jobs.wait("add1", 0)
    take(jobs).ack("fine")
    assert jobs.wait("add1", 0).unwrap() == "fine"


def test_all_pollers_are_notified(live: penstock.Broker) -> None:
    tube = live.tube("jobs")
    tube.put("work", address="add1")
    polls = [begin(lambda: tube.wait("add1", 30)) for _ in range(5)]
    take(tube).ack("done")
    assert [poll.result(30).result for poll in polls] == ["done"] * 5


def test_a_poller_that_stopped_leaves_nothing_behind(live: penstock.Broker) -> None:
    tube = live.tube("jobs")
    tube.put("work", address="add1")
    with pytest.raises(TimeoutError):
        tube.wait("add1", 0.01)
    take(tube).ack()
    assert tube.wait("add1", 10).status == "done"
    tube.drop()


def test_work_that_returns_is_not_done(jobs: penstock.Tube) -> None:
    jobs.put("work", address="add1")
    take(jobs).release()
    take(jobs).bury("odd")
    jobs.kick()
    with pytest.raises(TimeoutError):
        jobs.wait("add1", 0)


# groups


def test_group_work_is_handled_by_priority_among_the_rest(jobs: penstock.Tube) -> None:
    group = jobs.group("g")
    group.put_many([("group 1", {"pri": 1}), ("group 3", {"pri": 3})])
    jobs.put_many([("plain 2", {"pri": 2}), ("plain 4", {"pri": 4})])
    group.start()
    assert drain(jobs) == ["group 1", "plain 2", "group 3", "plain 4"]


def test_a_push_may_name_the_group(jobs: penstock.Tube) -> None:
    jobs.put("by name", group="g")
    jobs.put("addressed", group="g", address="add1")
    assert jobs.take(0) is None
    assert jobs.group("g").progress() == penstock.Progress(0, 2)


def test_the_end_work_comes_when_the_count_is_zero(jobs: penstock.Tube) -> None:
    group = jobs.group("g")
    group.put_many(["a", "b"])
    group.on_end({"name": "test"})
    group.start()
    first, second = jobs.take_many(5)
    first.ack()
    assert jobs.take(0) is None
    second.fail("kaboom!")
    end = take(jobs)
    assert (end.data, end.group) == ({"name": "test"}, None)
    end.ack()
    assert (jobs.take(0), group.wait(0)) == (None, "done")


def test_end_work_that_fails_does_not_come_again(jobs: penstock.Tube) -> None:
    group = jobs.group("g")
    group.on_end("end")
    group.start()
    take(jobs).fail("kaboom!")
    assert (jobs.take(0), group.wait(0)) == (None, "done")


def test_a_cancelled_group_loses_its_work_and_ends_with_its_cancel_work(jobs: penstock.Tube) -> None:
    group = jobs.group("g")
    group.put_many(["a", "b", "c"])
    group.on_end("end")
    group.on_cancel("abort")
    group.start()
    taken = take(jobs)
    jobs.put("plain")
    group.cancel()
    with pytest.raises(penstock.NotTaken):
        taken.ack()
    assert sorted(map(str, drain(jobs))) == ["abort", "plain"]
    assert (group.wait(0), calls(jobs)["delete"]) == ("cancelled", 3)


def test_a_group_that_is_not_started_does_not_end(jobs: penstock.Tube) -> None:
    group = jobs.group("g")
    group.on_end("end")
    with pytest.raises(TimeoutError):
        group.wait(0)
    assert jobs.take(0) is None
