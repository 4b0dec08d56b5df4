"""Django's own tests of its tasks, with penstock instead of the dummy and the immediate backend.

They are not in Django's wheel: the source of the installed version is downloaded. For `make matrix ONLY=django-6`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import django

from tests.matrix.programs import PROJECT, pip_for
from tests.matrix.roots import run

BACKENDS = """
from penstock.django import PenstockBackend
from penstock.testing import run_queued


class Dummy(PenstockBackend):
    def __init__(self, alias, params):
        super().__init__(alias, {**params, "OPTIONS": {"url": "sqlite:///jobs.db", "enqueue": "now"}})

    def clear(self):
        for tube in self.app.broker.tubes():
            self.app.broker.tube(tube.name).truncate()

    @property
    def results(self):
        tubes = [self.app.broker.tube(info.name) for info in self.app.broker.tubes()]
        return [self.get_result(f"{tube.name}:{task.address}") for tube in tubes for task in tube.tasks()]


class Immediate(Dummy):
    supports_defer = False

    def enqueue(self, task, args, kwargs):
        result = super().enqueue(task, args, kwargs)
        self.app.load()
        run_queued(self.app, raises=False)
        result.refresh()
        return result
"""
# Tests of the two backends themselves.
OTHERWISE = {
    "test_dummy_backend": {
        "test_using_correct_backend",  # it has no options
        "test_refresh_result", "test_refresh_result_async",  # they change the status in its list of results
    },
    "test_immediate_backend": {
        "test_using_correct_backend",
        "test_cannot_get_result", "test_cannot_refresh_result",  # ours can
        "test_enqueue_task_async",  # it runs an async task inside a sync_to_async call, which no worker does
        "test_throws_keyboard_interrupt",
    },
}  # fmt: skip


def test_django_agrees_with_the_backend(tmp_path: Path) -> None:
    version = django.get_version()
    pip = pip_for(Path(sys.executable))
    run([*pip, "download", "--quiet", "--no-deps", "--no-binary", "django", f"django=={version}"], cwd=tmp_path)
    with tarfile.open(next(tmp_path.glob("*.tar.gz"))) as source:
        source.extractall(tmp_path, filter="data")
    folder = next(tmp_path.glob("*/tests"))
    (folder / "ours.py").write_text(BACKENDS)
    for path in (folder / "tasks").glob("test_*.py"):
        text = path.read_text()
        text = re.sub(r"django\.tasks\.backends\.\w+\.(Dummy|Immediate)Backend", r"ours.\1", text)
        text = re.sub(
            r"from django\.tasks\.backends\.\w+ import (Dummy|Immediate)B", r"from ours import \1 as \1B", text
        )
        for name in OTHERWISE.get(path.stem, ()):
            assert f"def {name}(" in text, f"Django {version} has no {name}"
            text = text.replace(f"def {name}(", f"def not_{name}(")
        path.write_text(text)
    environment = {**os.environ, "PYTHONPATH": str(PROJECT / "src"), "PENSTOCK_LOCKS": str(tmp_path / "locks")}
    command = [sys.executable, "runtests.py", "tasks", "--parallel", "1"]
    ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=280, check=False)
    assert ran.returncode == 0, ran.stderr
    count = re.search(r"Ran (\d+) tests", ran.stderr)
    assert count is not None
    assert int(count[1]) >= 75
