"""Eight processes, started once for all tests, that run a function on a store at the same time."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import time
from collections.abc import Callable
from functools import cache
from multiprocessing.pool import Pool
from multiprocessing.synchronize import Barrier
from typing import TypeVar

import penstock

R = TypeVar("R")
TAKERS = 8
PATIENCE = 120.0
_barrier: Barrier | None = None


def in_processes(function: Callable[[str], R], url: str) -> list[R]:
    """Run a function in each process. Returns the results. A process imports `function`, so it must be in a module."""
    try:
        return _crowd().starmap(_run, [(function, url, os.environ["PENSTOCK_LOCKS"])] * TAKERS, chunksize=1)
    except BaseException:
        _crowd().terminate()
        _crowd.cache_clear()
        raise


@cache
def _crowd() -> Pool:
    context = multiprocessing.get_context("spawn")
    pool = context.Pool(TAKERS, _join, (context.Barrier(TAKERS),))
    atexit.register(pool.terminate)
    return pool


def meet() -> None:
    """Wait, in one of the processes, until all the others are here."""
    assert _barrier is not None
    _barrier.wait(PATIENCE)


def retry_while_busy(call: Callable[[], R]) -> R:
    """Retry the call while others hold its locks: StoreBusy promises that nothing was applied."""
    ends = time.monotonic() + PATIENCE
    while True:
        try:
            return call()
        except penstock.StoreBusy:
            if time.monotonic() > ends:
                raise


def _join(barrier: Barrier) -> None:
    global _barrier
    _barrier = barrier


def _run(function: Callable[[str], R], url: str, locks: str) -> R:
    """Run it once all are here, so that each process runs it once."""
    os.environ["PENSTOCK_LOCKS"] = locks
    meet()
    return function(url)
