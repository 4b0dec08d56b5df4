"""The demo runs, verifies itself, and reports what happened."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import penstock
from tests.conftest import STORES


@pytest.mark.timeout(300)
@pytest.mark.parametrize("store", [None, "redis"])
def test_demo_keeps_every_promise(tmp_path: Path, store: str | None) -> None:
    url = None if store is None else STORES[store](tmp_path)
    words = ["demo", "--json", *(["--url", url] if url else [])]
    done = subprocess.run(
        [sys.executable, "-m", "penstock", *words], capture_output=True, text=True, timeout=280, check=False
    )
    if url is not None:
        with penstock.connect(url) as broker:
            assert broker.tubes() == []
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
