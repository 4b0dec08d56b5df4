"""Helpers for tests of programs that use penstock. Nothing in penstock imports this."""

from __future__ import annotations

from penstock.testing.clock import Clock

__all__ = ["Clock"]
