"""A tube moves from one store to another unchanged, and the old store says where it is now."""

from __future__ import annotations

from pathlib import Path

import pytest

import penstock
from penstock.broker.group_handle import Group, member_address
from penstock.testing import Clock
from penstock.transfer.move import all_tubes, shown_url
from tests.conftest import STORES
from tests.support.threads import begin, until
from tests.transfer.conftest import MOVABLE
from tests.transfer.sample_tubes import FILLED, exported, imported, moved, opened, order, seen

NEW = "postgresql://me@new.example/jobs"


@pytest.fixture(params=[*((name, "sqlite") for name in MOVABLE), *(("sqlite", name) for name in MOVABLE)], ids="-".join)
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, str]:
    """The URLs of two stores: every kind to SQLite, and SQLite to every kind."""
    folders = tmp_path / "old", tmp_path / "new"
    for folder in folders:
        folder.mkdir()
    first, second = (STORES[name](folder) for name, folder in zip(request.param, folders, strict=True))
    return first, second


@pytest.mark.parametrize("sort", FILLED)
def test_a_moved_tube_is_unchanged(pair: tuple[str, str], clock: Clock, sort: str) -> None:
    with opened(pair[0], clock) as old, opened(pair[1], clock) as new:
        FILLED[sort](old, clock)
        before, content = seen(old, sort), exported(old, sort)
        handle = old.tube(sort)
        moved(old, new, sort)
        assert seen(new, sort) == before
        imported(new, content, "twin")
        assert order(new, sort) == order(new, "twin")
        for use in (lambda: old.tube(sort), lambda: handle.stats(), lambda: handle.take(0), lambda: handle.peek("1-1")):
            with pytest.raises(penstock.PenstockError, match=f"tube {sort} has moved to {NEW}|task id"):
                use()
        with pytest.raises(penstock.NoSuchTube, match=f"tube {sort} has moved to {NEW}: connect there"):
            handle.put("late", **({"id": "x"} if sort == "rounds" else {}))  # type: ignore[arg-type]
        with pytest.raises(penstock.NoSuchTube, match="has moved to"):
            old.create_tube(sort, "fifo")
        assert sort not in [info.name for info in old.tubes()]
        assert moved(old, new, sort)[0].tasks == 0


def test_the_ended_tasks_of_a_group_are_moved_too(pair: tuple[str, str], clock: Clock) -> None:
    with opened(pair[0], clock) as old, opened(pair[1], clock) as new:
        new.tube("other").group("first")  # numbers of groups differ between the stores
        tube = old.tube("jobs")
        for name in ("over", "live"):
            group = Group(tube, name, on_failure="continue")
            group.put_many([(n, {"address": member_address(group, n), "max_attempts": 1}) for n in range(3)])
            group.start()
            done, failed = tube.take_many(2)
            done.ack(name)
            failed.bury("broken")
            if name == "over":
                tube.ack_many(tube.take_many(1))
        content = exported(old, "jobs")
        moved(old, new, "jobs")
        imported(new, content, "twin")
        for moved_tube in (new.tube("jobs"), new.tube("twin")):
            group = moved_tube.group("live", create=False)
            assert group.progress() == penstock.Progress(2, 3, 1)
            last = moved_tube.take(0)
            assert last is not None
            last.ack("last")
            found = [(id, outcome.status, outcome.result, outcome.error) for id, outcome in group.results()]
            assert found == [(4, "done", "live", None), (5, "failed", None, "broken"), (6, "done", "last", None)]


def test_a_paused_tube_is_still_paused_after_a_move(store_url: str, clock: Clock) -> None:
    with opened(store_url, clock) as old, opened("memory://new", clock) as new:
        for name in ("paused", "running"):
            old.tube(name).put(1)
        old.tube("paused").pause()
        moved(old, new, "paused", "running")
        assert new.tube("paused").take(0) is None
        assert new.tube("running").take(0) is not None


def test_a_tube_with_taken_tasks_is_not_moved_until_they_are_settled(store_url: str, clock: Clock) -> None:
    with opened(store_url, clock) as old, opened("memory://new", clock) as new:
        tube = old.tube("jobs")
        tube.put_many([1, 2])
        old.tube("idle").put("idle")
        task = tube.take(0)
        assert task is not None
        with pytest.raises(penstock.TubeBusy, match="tube jobs has taken tasks.* was not moved"):
            moved(old, new, "jobs", "idle")
        task.ack()
        assert [each.data for each in tube.take_many(5)] == [2]
        assert [info.name for info in new.tubes()] == ["idle"]
        assert new.tube("idle").take(0) is not None


def test_a_holder_has_time_to_finish(store_url: str, clock: Clock) -> None:
    with opened(store_url, clock) as old, opened("memory://new", clock) as new:
        tube = old.tube("jobs")
        tube.put_many([1, 2])
        task = tube.take(0)
        assert task is not None
        going = begin(lambda: moved(old, new, "jobs", wait=60))
        until(lambda: old.runtime.store.counters(tube.stored).paused)
        assert tube.take(0) is None
        task.ack()
        assert going.result(30)[0].tasks == 1
        assert [each.data for each in new.tube("jobs").tasks()] == [2]


def test_a_blocked_take_gets_an_error_that_names_the_new_place_of_the_tube(store_url: str) -> None:
    with penstock.connect(store_url) as old, penstock.connect("memory://new") as new:
        tube = old.tube("jobs")
        waiting = begin(lambda: tube.take(120))
        until(lambda: any("jobs" in session.waits for session in old.sessions()))
        moved(old, new, "jobs")
        with pytest.raises(penstock.NoSuchTube, match="tube jobs has moved to"):
            waiting.result(60)


def test_a_take_from_several_tubes_names_the_dropped_one(store_url: str) -> None:
    with penstock.connect(store_url) as old, penstock.connect("memory://new") as new:
        for name in ("first", "second"):
            old.tube(name)
        waiting = begin(lambda: old.take(["first", "second"], 120))
        until(lambda: any("second" in session.waits for session in old.sessions()))
        moved(old, new, "second")
        with pytest.raises(penstock.NoSuchTube, match="tube second has moved to"):
            waiting.result(60)


def test_what_cannot_be_moved_is_refused_before_anything_changes(store_url: str, clock: Clock) -> None:
    with opened(store_url, clock) as old, opened("memory://new", clock) as new:
        old.tube("jobs").put(1)
        with pytest.raises(penstock.NoSuchTube, match="tube missing is not in the source store"):
            moved(old, new, "jobs", "missing")
        with pytest.raises(penstock.BadValue, match="same store"):
            moved(old, old, "jobs")
        new.tube("jobs")
        with pytest.raises(penstock.TubeExists, match="tube jobs already exists in the target store"):
            moved(old, new, "jobs")
        new.tube("jobs").drop()
        assert old.tube("jobs").take(0) is not None


def test_a_tube_in_transfer_can_be_used_in_neither_store(store_url: str, clock: Clock) -> None:
    with opened(store_url, clock) as broker:
        store = broker.runtime.store
        tube = broker.tube("jobs")
        coming = store.save_tube("<mail", tube.stored.kind, {}, exist_ok=False)
        for use in (broker.tube, lambda name: broker.create_tube(name, "fifo")):
            with pytest.raises(penstock.NoSuchTube, match="tube mail is being imported into this store"):
                use("mail")
        assert [info.name for info in broker.tubes()] == ["jobs"]
        store.drop_tube(coming)
        broker.tube("mail").put(1)


def test_a_second_move_brings_a_tube_back(store_url: str, clock: Clock) -> None:
    with opened(store_url, clock) as first, opened("memory://second", clock) as second:
        for name in ("jobs", "other"):
            first.tube(name).put(name)
        moved(first, second, "jobs", "other")
        assert all_tubes(first.runtime.store, NEW) == []
        second.tube("jobs").put("more")
        moved(second, first, "jobs")
        assert [task.data for task in first.tube("jobs").tasks()] == ["jobs", "more"]
        assert [info.name for info in first.tubes()] == ["jobs"]
        with pytest.raises(penstock.NoSuchTube, match="tube other has moved to"):
            first.tube("other")
        moved(first, second, "jobs")
        assert [task.id for task in second.tube("jobs").tasks()] == [1, 2]


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("sqlite:////var/a%20b.db?durability=relaxed", "sqlite:////var/a%20b.db?durability=relaxed"),
        ("sqlite:///a.db", f"sqlite:///{Path.cwd()}/a.db"),
        ("postgresql://me:secret@host:5432/jobs?sslpassword=x&schema=s", "postgresql://me@host:5432/jobs?schema=s"),
        ("redis://:secret@host/0", "redis://host/0"),
        (
            "redis://host/0?pool=postgresql%3A%2F%2Fme%3Asecret%40db%2Fjobs&prefix=p",
            "redis://host/0?pool=postgresql%3A%2F%2Fme%40db%2Fjobs&prefix=p",
        ),
    ],
)
def test_no_password_is_left_in_the_old_store(url: str, shown: str) -> None:
    assert shown_url(url) == shown
