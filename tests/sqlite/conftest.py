"""A new file for each test."""

from __future__ import annotations

from tests.support.sqlite_files import broker as broker
from tests.support.sqlite_files import path as path
