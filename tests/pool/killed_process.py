"""A process that dies at its nth step between Redis and the database, and reports how far it came."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable
from typing import Any, cast

import penstock
from penstock.store.pool.pool_store import PoolStore

Report = Callable[[str], object]
Scenario = Callable[[penstock.Broker, Report], object]


def die_at(step: int, front: str, database: str, scenario: Scenario) -> tuple[list[str], bool]:
    """Run the scenario in a child that is killed at that step. Returns its reports, and whether it finished."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        _live(step, front, database, scenario, writing)
    os.close(writing)
    with os.fdopen(reading) as lines:
        words = lines.read().split()
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, words
    return words, not os.WIFSIGNALED(status)


def _live(step: int, front: str, database: str, scenario: Scenario, writing: int) -> None:
    status = 1
    try:
        with penstock.connect(front, pool=database) as broker:
            _count_down(broker, step)
            scenario(broker, lambda word: os.write(writing, f"{word}\n".encode()))
            status = 0
            os._exit(0)  # not by closing, which would release its tasks
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def _count_down(broker: penstock.Broker, step: int) -> None:
    """Every script and every commit is a step, and starts only if any are left."""
    store, left = cast(PoolStore, broker.runtime.store), [step]
    script, transact, write = store._servers.run, store._vault._db.run, store._vault._db.write

    def run(*arguments: Any, **options: Any) -> Any:
        _step(left)
        return script(*arguments, **options)

    def commit(work: Callable[[Any], Any], **options: Any) -> Any:
        def worked(session: Any) -> Any:
            done = work(session)
            _step(left)
            return done

        return transact(worked, **options)

    def stepped_write(guard: Any, writes: Any) -> None:
        _step(left)
        write(guard, writes)

    store._servers.run = run  # type: ignore[method-assign]
    store._vault._db.run = commit  # type: ignore[method-assign]
    store._vault._db.write = stepped_write  # type: ignore[method-assign]


def _step(left: list[int]) -> None:
    left[0] -= 1
    if left[0] < 0:
        os.kill(os.getpid(), signal.SIGKILL)
