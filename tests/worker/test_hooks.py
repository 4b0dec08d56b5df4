"""Hooks of an app in a worker and in its child processes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from penstock.worker.settings import Settings
from penstock.worker.worker import Worker
from tests.support.worker_process import PATIENCE
from tests.worker import hooks_app


def test_hooks_run_once_in_the_worker_and_in_every_child(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOOKED", str(tmp_path / "lines"))
    hooks_app.app.connection.use(url)
    worker = Worker(hooks_app.app, Settings(processes=1))
    worker.start()
    handle = hooks_app.pid.put(False)
    child = handle.result(PATIENCE)
    buried = hooks_app.pid.put(True)
    try:
        buried.result(PATIENCE)
    except Exception as error:
        assert "as requested" in str(error)  # noqa: PT017
    worker.stop()
    hooks_app.app.close()
    lines = [line.split(maxsplit=1) for line in (tmp_path / "lines").read_text().splitlines()]
    assert [what for pid, what in lines if int(pid) == os.getpid()] == [
        "startup", "async startup", "bury 2 as requested", "async shutdown", "shutdown",
    ]  # fmt: skip
    assert [what for pid, what in lines if int(pid) == child] == [
        "startup", "async startup", "around 1", "log of 1", "over 1", "around 2", "over 2", "async shutdown",
        "shutdown",
    ]  # fmt: skip
