"""Each test has a file of its own."""

from __future__ import annotations

from tests.files import broker as broker
from tests.files import path as path
