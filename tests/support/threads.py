"""Calls in background threads, and waiting for conditions."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def begin(call: Callable[[], T]) -> Future[T]:
    """Run the call in a new thread; one that hangs does not hang the test run."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def until(condition: Callable[[], bool], seconds: float = 30) -> None:
    """Wait until the condition holds; fail after that many seconds."""
    end = time.monotonic() + seconds
    pause = threading.Event()
    while True:
        late = time.monotonic() >= end  # before the check: one after a pause of the machine still counts
        if condition():
            return
        assert not late, "the condition never held"
        pause.wait(0.005)
