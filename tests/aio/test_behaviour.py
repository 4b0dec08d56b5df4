"""The behaviour suite through awaited verbs: they must pass the same tests as the blocking ones."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import penstock

ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(1800)
def test_the_behaviour_suite_passes_awaited(tmp_path: Path) -> None:
    command = ["-m", "pytest", "-p", "tests.aio.blocking", "-q", "-x", "-k", "memory", "tests/behaviour"]
    ran = subprocess.run(
        [sys.executable, *command, "-p", "no:cacheprovider", f"--basetemp={tmp_path}/awaited"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(Path(penstock.__file__).parents[1]), "PENSTOCK_STORES": "memory"},
        capture_output=True,
        text=True,
        check=False,
        timeout=1750,
    )
    assert ran.returncode == 0, ran.stdout[-5000:]
