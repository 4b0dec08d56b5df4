"""Helpers for tests of programs that use penstock. Nothing in penstock imports this."""

from __future__ import annotations

from penstock.testing.clock import Clock
from penstock.testing.eager import eager
from penstock.testing.queued import run_queued

__all__ = ["Clock", "eager", "run_queued"]
