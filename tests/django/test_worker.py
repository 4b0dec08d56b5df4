"""`manage.py penstock_worker` in a new project, as an operator runs it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command, load_command_class

import penstock
from tests.django.conftest import FRAMEWORK, Use
from tests.django.project import BACKPORT

MANAGE = """
import os, sys
from django.core.management import execute_from_command_line
os.environ["DJANGO_SETTINGS_MODULE"] = "site_settings"
execute_from_command_line(sys.argv)
"""
SETTINGS = f"""
SECRET_KEY = "x"
USE_TZ = True
DATABASES = {{"default": {{"ENGINE": "django.db.backends.sqlite3", "NAME": "site.db"}}}}
INSTALLED_APPS = {[*BACKPORT, "penstock.django", "shop"]}
TASKS = {{
    "default": {{"BACKEND": "penstock.django.PenstockBackend", "QUEUES": ["default", "mail"],
                "OPTIONS": {{"url": "sqlite:///jobs.db", "tubes": {{"mail": {{"ttr": 60}}}}}}}},
}}
"""
TASKS = f"""
from {FRAMEWORK} import task

@task
def add(a, b):
    return a + b

@task(queue_name="mail")
async def greet(name):
    return f"hello {{name}}"

@task
def broken():
    raise ValueError("broken")
"""
SCRIPT = """
import os, sys, django
os.environ["DJANGO_SETTINGS_MODULE"] = "site_settings"
django.setup()
"""
PUT = """
from shop.tasks import add, broken, greet
print(*(result.id for result in (add.enqueue(1, b=2), greet.enqueue("ada"), broken.enqueue())))
"""
READ = """
from shop.tasks import add
for id in sys.argv[1:]:
    result = add.get_backend().get_result(id)
    print(result.status, result.errors[0].exception_class.__name__ if result.errors else result.return_value)
"""
Run = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs a program of a new project."""
    (tmp_path / "shop").mkdir()
    for name, text in {
        "manage.py": MANAGE, "site_settings.py": SETTINGS, "shop/__init__.py": "", "shop/tasks.py": TASKS,
        "put.py": SCRIPT + PUT, "read.py": SCRIPT + READ,
    }.items():  # fmt: skip
        (tmp_path / name).write_text(text)
    environment = {**os.environ, "PENSTOCK_LOCKS": str(tmp_path / "locks"), "PENSTOCK_URL": "sqlite:///wrong.db"}
    environment["PYTHONPATH"] = str(Path(penstock.__file__).parents[1])

    def start(*words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, *words],
            cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    return start


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


def test_the_worker_runs_what_other_processes_put(run: Run) -> None:
    code, ids, err = finish(run("put.py"))
    assert code == 0, err
    code, out, err = finish(run("manage.py", "penstock_worker", "--json", "--max-tasks", "3", "--concurrency", "2"))
    assert code == 0, err
    working, stopped = map(json.loads, out.splitlines())
    assert sorted(working["tubes"]) == ["default", "mail"]
    assert (stopped["counts"]["done"], stopped["counts"]["buried"]) == (2, 1)
    assert "ValueError: broken" in err
    code, out, err = finish(run("read.py", *ids.split()))
    assert out.splitlines() == ["SUCCESSFUL 3", "SUCCESSFUL hello ada", "FAILED ValueError"], err


def test_a_signal_stops_the_worker(run: Run) -> None:
    worker = run("manage.py", "penstock_worker", "--json")
    assert worker.stdout is not None
    assert json.loads(worker.stdout.readline())["event"] == "working"
    worker.send_signal(signal.SIGTERM)
    code, out, err = finish(worker)
    assert (code, json.loads(out)["event"]) == (0, "stopped"), err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--concurrency", "0"), "concurrency 0"),
        (("--limit", "1=4", "--limit", "x"), "limit 'x' is not P=N"),
        (("--max-memory", "much"), "is not a size"),
        (("--backend", "here"), "is not a PenstockBackend"),
    ],
)
def test_a_wrong_option_is_refused(use: Use, words: tuple[str, ...], message: str) -> None:
    use()
    with pytest.raises(CommandError, match=message):
        call_command("penstock_worker", *words)


def test_the_help_has_the_options_of_penstock_worker() -> None:
    help = load_command_class("penstock.django", "penstock_worker").create_parser("manage.py", "").format_help()
    for option in ("--backend", "--tubes", "--concurrency", "--listen", "--max-tasks", "--max-memory", "--json-logs"):
        assert option in help
    assert "--callbacks" not in help
    assert "--url" not in help
