"""Concurrent callers share a commit in the database."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import pytest

import penstock
from penstock.core.options import Tube
from penstock.store.pool.index import PAGE, Mirror
from penstock.store.pool.pool_store import PoolStore, PutLine
from penstock.store.pool.vault import Changes
from tests.pool.conftest import Connect

THREADS = 8


def pool_of(broker: penstock.Broker) -> PoolStore:
    return cast(PoolStore, broker.runtime.store)


def scripts_of(broker: penstock.Broker, then: Callable[[str], object] = lambda name: None) -> list[str]:
    """The names of the scripts that a broker runs from now on; `then` is called after each."""
    servers, names = pool_of(broker)._servers, list[str]()
    script = servers.run

    def run(request: Any, *, idempotent: bool) -> Any:
        answer = script(request, idempotent=idempotent)
        if request.script is not None:  # else it is a single command
            names.append(request.script.name)
            then(request.script.name)
        return answer

    servers.run = run  # type: ignore[method-assign]
    return names


def put_together(broker: penstock.Broker, error: BaseException | None = None) -> list[int]:
    """Put batches from several threads; the first write waits until all have run their scripts, and may fail. Returns
    how many tasks each write stored."""
    store, tube, first, sizes = pool_of(broker), broker.tube("t"), threading.Lock(), list[int]()
    write, vault_write = store._mirror._write, store._vault.write

    def write_all(*arguments: Any) -> None:
        if first.acquire(blocking=False):
            while cast(int, store._runner.command(1, "marks", b"ZCARD")) < THREADS:
                pass
            if error is not None:
                raise error
        write(*arguments)

    def counted(no: int, beside: bytes, pages: Sequence[Changes], **versions: int) -> int | None:
        sizes.append(sum(len(changes.tasks) for changes in pages))
        return vault_write(no, beside, pages, **versions)

    store._mirror._write = write_all  # type: ignore[method-assign,assignment]
    store._vault.write = counted  # type: ignore[method-assign]
    threads = [threading.Thread(target=tube.put_many, args=([place],)) for place in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sizes


def test_threads_that_put_at_the_same_time_share_a_commit(broker: penstock.Broker, connect: Connect) -> None:
    broker.tube("t").put_many(["first"])
    assert put_together(broker) == [1, THREADS - 1]
    taken = connect().tube("t").take_many(THREADS + 1)
    assert {task.data for task in taken} == {"first", *range(THREADS)}


def test_a_thread_that_is_interrupted_leaves_the_commit_to_the_others(
    broker: penstock.Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    broker.tube("t").put_many(["first"])
    assert put_together(broker, KeyboardInterrupt()) == [THREADS]
    assert len(broker.tube("t")) == THREADS + 1


def put_in_line(store: Callable[[list[Any]], list[Any]]) -> tuple[list[int], list[object]]:
    """Put from several threads; the first one waits before it stores its task until the others have gathered. Returns
    the sizes of the batches, and the answers and errors of the threads, sorted by their names."""
    line, sizes, answers = PutLine(), list[int](), list[object]()

    def store_all(puts: list[Any]) -> list[Any]:
        while not sizes and len(line._puts) < THREADS - 1:
            pass
        sizes.append(len(puts))
        return store(puts)

    def put(payload: bytes) -> None:
        try:
            answers.append(line.put((cast(Any, None), payload), store_all))
        except BaseException as error:
            answers.append(type(error))

    threads = [threading.Thread(target=put, args=(b"%d" % place,)) for place in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sizes, sorted(answers, key=str)


def test_puts_that_come_while_another_is_stored_are_stored_together() -> None:
    sizes, answers = put_in_line(lambda puts: [payload for _, payload in puts])
    assert sizes == [1, THREADS - 1]
    assert answers == [b"%d" % place for place in range(THREADS)]


@pytest.mark.parametrize("single", [True, False])
@pytest.mark.parametrize(
    ("error", "others"),
    [(penstock.StoreFull("full"), penstock.StoreFull), (KeyboardInterrupt(), penstock.OutcomeUnknown)],
)
def test_a_failed_write_fails_the_puts_that_it_was_to_store(
    error: BaseException, others: type[Exception], single: bool
) -> None:
    def store(puts: list[Any]) -> list[Any]:
        if (len(puts) == 1) is single:
            raise error
        return ["stored"] * len(puts)

    failed = [type(error)] if single else [type(error), *[others] * (THREADS - 2)]
    assert put_in_line(store)[1] == sorted([*failed, *["stored"] * (THREADS - len(failed))], key=str)


def test_threads_put_at_the_same_time_into_two_tubes(broker: penstock.Broker) -> None:
    def put(place: int) -> None:
        for _ in range(5):
            broker.tube(f"t{place % 2}").put(place)

    threads = [threading.Thread(target=put, args=(place,)) for place in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for no in range(2):
        found = [task.data for task in broker.tube(f"t{no}").take_many(100)]
        assert sorted(found) == sorted([place for place in range(no, THREADS, 2) for _ in range(5)])


def test_what_another_process_has_written_is_not_written_again(connect: Connect) -> None:
    one, two = connect().tube("t"), connect()
    tube = two.tube("t")
    tube.put("a")

    def write_first(name: str) -> None:
        """The turn ends, and the other one puts and writes what both have marked."""
        if name == "put_plain":
            pool_of(two)._runner.command(tube.stored.no, "turn", b"DEL")
            one.put("c")

    scripts = scripts_of(two, write_first)
    tube.put("b")
    assert scripts == ["put_plain", "clear_changes"]
    assert [task.data for task in one.take_many(3)] == ["a", "b", "c"]


def test_a_commit_has_all_pages_of_what_others_marked_meanwhile(connect: Connect) -> None:
    one, two = connect(), connect()
    tube, other = one.tube("t"), two.tube("t")
    pool_of(two)._mirror.write_all = lambda changes: None  # type: ignore[method-assign]  # as if it died before its commit
    many = 2 * PAGE + 1
    put_many = [partial(other.put_many, range(many))]
    # After the script of the put and before its commit.
    scripts_of(one, lambda name: put_many.pop()() if put_many and name.startswith("put") else None)
    tube.put("first")
    assert one.check() == []
    assert len(tube.take_many(many + 1)) == many + 1


def begin_turn(mirror: Mirror, tube: Tube, client: str) -> None:
    epoch = str(mirror._runner.servers.epoch)
    assert mirror._on_marks("collect_changes", tube, epoch, client, 99, 0, 0)[1]


def crowd(connect: Connect) -> tuple[penstock.Broker, penstock.Broker]:
    """Two brokers that have put in turns."""
    one, two = connect(), connect()
    for broker in (one, two, one, two):
        broker.tube("t").put("before")
    return one, two


def test_what_a_process_waits_for_is_written_by_the_one_whose_turn_it_is(connect: Connect) -> None:
    one, two = crowd(connect)
    first, second = pool_of(one)._mirror, pool_of(two)._mirror
    stored, epoch = one.tube("t").stored, str(pool_of(one)._servers.epoch)
    begin_turn(first, stored, "writing")
    second._vault = None  # type: ignore[assignment]  # it must not write
    waiting = threading.Thread(target=two.tube("t").put, args=("waited for",))
    waiting.start()
    while not pool_of(one)._runner.command(stored.no, "waiting", b"ZCARD"):
        pass
    first.write(stored, epoch, client="writing")
    waiting.join()
    assert one.check() == []
    assert [task.data for task in one.tube("t").take_many(9)][4:] == ["waited for"]


def test_a_turn_of_a_process_that_died_ends(connect: Connect) -> None:
    one, two = crowd(connect)
    stored, mirror = one.tube("t").stored, pool_of(one)._mirror
    begin_turn(mirror, stored, "dead")
    two.tube("t").put("after")
    assert len(two.tube("t")) == 5
    assert two.check() == []


def test_a_batch_that_fails_before_its_turn_blocks_no_other(
    broker: penstock.Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    tube, mirror = broker.tube("t"), pool_of(broker)._mirror
    tube.put("before")

    def fail(*_: object) -> int:
        raise penstock.StoreUnavailable("Redis is away")

    with monkeypatch.context() as patched:
        patched.setattr(mirror, "_collect", fail)
        with pytest.raises(penstock.OutcomeUnknown):
            tube.put("unknown")
    tube.put("after")
    assert [task.data for task in tube.take_many(9)] == ["before", "unknown", "after"]
