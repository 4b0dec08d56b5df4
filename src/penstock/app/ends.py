"""What a handler raises to say how its task goes on."""

from __future__ import annotations

from penstock.core import names
from penstock.core.numbers import span_ms


class Retry(Exception):
    """Not now: the task is released, and handed out again after `delay` seconds (None: the handler's back-off).

    The attempt counts.
    """

    def __init__(self, delay: float | None = None, reason: str | None = None) -> None:
        if delay is not None:
            span_ms("delay", delay)
        self.delay = delay
        self.reason = names.text("reason", reason)
        super().__init__(delay, reason)


class Bury(Exception):
    """Not again until somebody looks: the task is buried with the reason."""

    def __init__(self, reason: str | None = None) -> None:
        self.reason = names.text("reason", reason)
        super().__init__(reason)
