"""How long to wait before another attempt."""

from __future__ import annotations

import msgspec

from penstock.core.names import shown
from penstock.core.values import Seconds, number, plain_seconds, positive_ms, span_ms
from penstock.errors import BadValue


class Backoff(msgspec.Struct, frozen=True):
    """Exponential back-off: base * factor**(n-1) seconds after attempt n, at most `limit`, ± the share `jitter`."""

    base: Seconds = 1
    factor: float = 2
    limit: Seconds = 300
    jitter: float = 0.1

    def __post_init__(self) -> None:
        span_ms("backoff base", self.base)
        positive_ms("backoff limit", self.limit)
        for name in ("base", "limit"):
            msgspec.structs.force_setattr(self, name, plain_seconds(getattr(self, name)))
        if number("backoff factor", self.factor) < 1:
            raise BadValue(f"backoff factor {shown(self.factor)} is below 1, so waits would shrink: give 1 or more")
        if not 0 <= number("backoff jitter", self.jitter) <= 1:
            raise BadValue(f"backoff jitter {shown(self.jitter)} is not a share: give 0 to 1")

    def delay(self, attempt: int, chance: float) -> float:
        """Seconds to wait after that attempt; chance, from 0 to 1, places it within the jitter."""
        assert isinstance(self.base, (int, float))
        assert isinstance(self.limit, (int, float))
        try:
            grown = self.base * float(self.factor) ** max(attempt - 1, 0)
        except OverflowError:  # above any limit
            grown = self.limit if self.base else 0
        return min(grown, self.limit) * (1 + self.jitter * (2 * chance - 1))
