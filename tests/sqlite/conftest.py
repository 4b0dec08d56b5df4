"""Each test has a file of its own."""

from __future__ import annotations

from tests.support.sqlite_files import broker as broker
from tests.support.sqlite_files import path as path
