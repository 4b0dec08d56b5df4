"""Schedules: the times at which a handler is due, and putting each of them once."""
