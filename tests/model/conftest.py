"""Stores without background scans: the model is compared after every call, so nothing else may apply deadlines."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="module")
def _undriven() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("penstock.runtime.store_clock.CLOCK_SECONDS", 600.0)
        yield
