"""The demo runs, checks itself, and says what happened."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.timeout(70)
def test_demo_keeps_every_promise() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "penstock", "demo"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "what happened" in done.stdout
    for kind in ("fifo", "fifottl", "utube", "utubettl", "lifo", "round", "reliable"):
        assert f"│ {kind} " in done.stdout
    assert "verified" in done.stdout
