"""Calls whose answers were lost after they were applied; of blocked takes SQL servers count each once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import penstock
from penstock.core.options import Tube
from penstock.core.results import Advanced, Blocked, Taken
from penstock.core.task import Record
from penstock.engine.work import Work
from tests.servers import running
from tests.servers.proxy import Proxy
from tests.support.threads import until


@pytest.fixture(params=("postgres", "mariadb"))
def proxy(request: pytest.FixtureRequest) -> Iterator[Proxy]:
    proxy = Proxy(running(request.param).port)
    yield proxy
    proxy.close()


@pytest.fixture
def broker(request: pytest.FixtureRequest, proxy: Proxy) -> Iterator[penstock.Broker]:
    server = running(request.node.callspec.params["proxy"])
    with penstock.connect(server.fresh_url().replace(str(server.port), str(proxy.port))) as broker:
        yield broker


def ask(tube: penstock.Tube, blocked: Blocked, waiter: int = 1) -> Taken:
    tube.session_handle.join()
    return tube.runtime.store.take([tube.stored], 1, tube.session_handle.handle, blocked=blocked, waiter=waiter)


def lose(proxy: Proxy, tube: penstock.Tube, blocked: Blocked) -> None:
    """Start a take whose first answer is lost."""
    ask(tube, None)  # joined and connected
    before, proxy.losses = proxy.lost_answers, 1
    assert ask(tube, blocked).records == []
    assert proxy.lost_answers == before + 1


def test_a_take_that_registers_twice_is_counted_once(broker: penstock.Broker, proxy: Proxy) -> None:
    tube = broker.tube("t")
    lose(proxy, tube, "register")
    with pytest.raises(penstock.TubeBusy):
        tube.drop()
    ask(tube, "unregister_if_found")
    ask(tube, "unregister")
    tube.drop()
    assert broker.check() == []


def test_a_take_that_unregisters_twice_leaves_the_others_waiting(broker: penstock.Broker, proxy: Proxy) -> None:
    tube = broker.tube("t")
    ask(tube, "register")
    ask(tube, "register", waiter=2)
    lose(proxy, tube, "unregister")
    with pytest.raises(penstock.TubeBusy):
        tube.drop()
    ask(tube, "unregister", waiter=2)
    tube.drop()
    assert broker.check() == []


def test_a_group_whose_tasks_cannot_follow_its_start_may_be_started(
    broker: penstock.Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> bool:
        raise penstock.StoreUnavailable("the server is away")

    tube = broker.tube("t")
    group = tube.group("g")
    group.put("a")
    with monkeypatch.context() as patched:
        patched.setattr(Work, "update_members", fail)
        with pytest.raises(penstock.OutcomeUnknown):
            group.start()
    assert group.status == "running"
    assert tube.take(5) is not None


def test_a_lost_answer_to_the_clock_is_one_line_of_the_log(
    broker: penstock.Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def lose_first(tube: Tube) -> Advanced:
        monkeypatch.undo()
        raise penstock.OutcomeUnknown("the connection broke during the call")

    tube = broker.tube("t")
    tube.session_handle.join()  # starts the thread that drives the clock
    monkeypatch.setattr(broker.runtime.store, "advance", lose_first)
    tube.put("late", delay=0.01)
    until(lambda: bool(caplog.records))
    assert [record.getMessage() for record in caplog.records if not record.exc_info] == [
        "store maintenance failed (the connection broke during the call); retrying"
    ]
    assert tube.take(5) is not None


def test_an_ack_whose_stale_task_cannot_be_read_may_have_acked_the_others(
    broker: penstock.Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> dict[int | str, Record]:
        raise penstock.StoreUnavailable("the server is away")

    tube = broker.tube("t")
    tube.put_many(["stale", "held"])
    [stale] = tube.take_many(1)
    tube.release_all()
    tube.delete(stale.id)
    [held] = tube.take_many(1)
    with monkeypatch.context() as patched:
        patched.setattr(Work, "load_by", fail)
        with pytest.raises(penstock.OutcomeUnknown, match="partly applied .1 tasks."):
            tube.ack_many([held, stale])
    assert list(tube.tasks()) == []
