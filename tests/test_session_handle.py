"""One thread replaces a session that the store ended, while other threads still use the old one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import penstock
from tests.support.verbs import take


@pytest.fixture
def tube() -> Iterator[penstock.Tube]:
    """A tube with two tasks, of a broker whose session has just ended in the store."""
    with penstock.connect("memory://") as broker:
        tube = broker.tube("t")
        assert tube.take(0) is None  # joined
        broker.runtime.store.leave([broker.session_handle.handle])
        tube.put_many(["a", "b"])
        yield tube


def followed(store: object, verb: str, then: Callable[[], object]) -> None:
    """Make the next store call return only after something else has happened in another thread."""
    call = getattr(store, verb)

    def late(*words: Any, **options: Any) -> Any:
        setattr(store, verb, call)
        answer = call(*words, **options)
        then()
        return answer

    setattr(store, verb, late)


def test_a_late_answer_to_a_heartbeat_ends_no_new_session(tube: penstock.Tube) -> None:
    runtime, taken = tube.runtime, list[penstock.Task]()
    followed(runtime.store, "beat", lambda: taken.append(take(tube)))
    runtime.send_heartbeats()
    taken[0].ack()
    assert tube.stats().calls.ack == 1


def test_a_late_answer_to_a_take_ends_no_new_session(tube: penstock.Tube) -> None:
    taken = list[penstock.Task]()
    followed(tube.runtime.store, "take", lambda: taken.append(take(tube)))
    taken.append(take(tube))
    for task in taken:
        task.ack()
    assert tube.stats().calls.ack == 2
