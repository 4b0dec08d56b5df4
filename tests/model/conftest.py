"""The model is compared call by call: nobody else drives the clock of a store in between."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="module")
def _undriven() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("penstock.runtime.clock.CLOCK_SECONDS", 600.0)
        yield
