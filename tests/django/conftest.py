"""A Django project with its store; tests run tasks in their own thread, or in a `manage.py` worker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import django
import pytest
from django.test import override_settings

from penstock.broker.broker import connect
from penstock.testing import Clock, run_queued
from tests.django import project

_ = project.SETTINGS
django.setup()

from penstock.django import backend as backends  # noqa: E402 - after the settings
from penstock.django.task_results import base, task_backends  # noqa: E402

FRAMEWORK = base.__name__.removesuffix(".base")  # django.tasks, or the backport
Use = Callable[..., Any]


@pytest.fixture
def use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: Clock) -> Iterator[Use]:
    """Gives the project a backend with these OPTIONS, on a store whose clock only the test moves."""
    monkeypatch.setenv("PENSTOCK_LOCKS", str(tmp_path / "locks"))
    changed = []

    def begin(url: str | None = None, **options: Any) -> Any:
        url = url or f"sqlite:///{tmp_path}/jobs.db?durability=relaxed"
        params = {"BACKEND": "penstock.django.PenstockBackend", "QUEUES": ["default", "mail"]}
        immediate = f"{FRAMEWORK}.backends.immediate.ImmediateBackend"
        setting = override_settings(
            TASKS={"default": {**params, "OPTIONS": {"url": url, **options}}, "here": {"BACKEND": immediate}}
        )
        setting.enable()
        changed.append(setting)
        made = task_backends["default"]
        made.app.connection._broker = connect(url, clock=clock)
        return made

    yield begin
    for setting in reversed(changed):
        setting.disable()
    for app in backends._apps.values():
        app.close()
    backends._apps.clear()


@pytest.fixture
def backend(use: Use) -> Any:
    """The project's only backend."""
    return use()


def work(backend: Any) -> int:
    """Run the ready tasks, as a worker does."""
    backend.app.load()
    return run_queued(backend.app, raises=False)
