"""The demo runs, checks itself, and says what happened."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest


@pytest.mark.timeout(300)
def test_demo_keeps_every_promise() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "penstock", "demo", "--json"], capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    kinds = ["fifo", "fifottl", "utube", "utubettl", "lifo", "round", "reliable"]
    assert "what happened" in done.stderr
    for kind in kinds:
        assert f"│ {kind} " in done.stderr
    assert "verified" in done.stderr
    facts = json.loads(done.stdout)
    assert (facts["wrong"], facts["tasks"]) == ([], 5 * 1201)
    assert [tube["tube"] for tube in facts["tubes"]] == kinds
    assert facts["tubes"][0]["calls"]["ack"] == 1201
