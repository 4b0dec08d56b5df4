"""A blocking verb: its generator, run step by step in the caller's thread."""

from __future__ import annotations

import pytest

import penstock
from penstock.operations.operation import Call, Operation, blocking
from penstock.runtime.wait_queue import Waiter


@blocking
def divided(number: int, by: int) -> Operation[str]:
    """The quotient, or None if there is none."""
    try:
        quotient: int = yield Call(lambda: number // by)
    except ZeroDivisionError:
        return "none"
    finally:
        yield Call(lambda: None)
    return str(quotient)


def test_a_verb_returns_what_its_operation_returns() -> None:
    assert divided(7, by=2) == "3"


def test_an_error_of_a_step_is_raised_in_the_operation() -> None:
    assert divided(7, 0) == "none"
    with pytest.raises(TypeError):
        divided(7, "x")  # type: ignore[arg-type]


def test_a_verb_keeps_its_name_and_docstring() -> None:
    assert (divided.__name__, divided.__doc__) == ("divided", "The quotient, or None if there is none.")


def test_an_interrupted_take_leaves_nothing_behind(broker: penstock.Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    tube = broker.tube("t")
    tube.put("x")
    assert tube.take(0) is not None

    def interrupted(waiter: Waiter, seconds: float | None) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(Waiter, "sleep", interrupted)
    with pytest.raises(KeyboardInterrupt):
        tube.take()
    assert len(broker.runtime.wait_queue.topics) == 0
    assert [session.waits for session in broker.sessions()] == [[]]
