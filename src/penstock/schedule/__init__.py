"""Schedules: compute the times at which a handler is due, and put each tick once."""
