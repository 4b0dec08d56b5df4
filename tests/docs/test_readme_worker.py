"""Run the README's worker example as printed, from an empty folder to a task that has run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.docs.test_examples import RUN
from tests.support.peer import environment


def test_the_readme_leads_from_nothing_to_a_running_worker(tmp_path: Path) -> None:
    [shop] = [block.code for block in RUN["README.md"] if "@app.task" in block.code]
    assert len(shop.splitlines()) <= 20
    (tmp_path / "shop.py").write_text(shop)
    variables = {name: value for name, value in environment().items() if name != "PENSTOCK_URL"}
    variables["PENSTOCK_LOCKS"] = str(tmp_path / "locks")
    put = subprocess.run(
        [sys.executable, "shop.py"], cwd=tmp_path, env=variables, capture_output=True, text=True, check=True
    )
    assert put.stdout.startswith("put 1;")
    command = [sys.executable, "-m", "penstock", "worker", "shop:app"]
    worker = subprocess.Popen(command, cwd=tmp_path, env=variables, stdout=subprocess.PIPE, text=True)
    try:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "to ada@example.org: hello\n"
        worker.terminate()
        assert worker.wait(60) == 0
    finally:
        worker.kill()
        worker.communicate()
    assert os.path.exists(tmp_path / "shop.db")
