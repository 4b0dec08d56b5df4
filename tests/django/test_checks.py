"""`manage.py check` reports errors in TASKS before a task is put."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.core import checks
from django.test import override_settings

from penstock.django.task_results import task_backends


def check(options: dict[str, Any], **params: Any) -> list[str]:
    """The ids of the reported errors."""
    setting = {
        "BACKEND": "penstock.django.PenstockBackend",
        "QUEUES": ["default", "mail"],
        "OPTIONS": options,
        **params,
    }
    with override_settings(TASKS={"default": setting}):
        found = [message for message in checks.run_checks() if (message.id or "").startswith("penstock.")]
        assert all(message.hint for message in found)
        assert found == list(task_backends["default"].check())
    return [str(message.id) for message in found]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"url": "sqlite:////var/lib/jobs.db", "enqueue": "now", "database": "default"},
        {"url": "postgresql://localhost/shop", "enqueue": "in_transaction"},
        {"url": "mysql://localhost/shop", "tubes": {"mail": {"ttr": 60}}},
        {"url": "redis+cluster://a:1,b:2", "tubes": {"mail": {"kind": "utubettl", "max_attempts": 3}}},
        {"url": "redis://localhost/0?pool=sqlite%3A%2F%2F%2Fjobs.db"},
    ],
)
def test_good_settings_pass(options: dict[str, Any]) -> None:
    assert check(options) == []


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"URL": "memory://"}, "E001"),
        ({"enqueue": "later"}, "E002"),
        ({"database": "orders"}, "E003"),
        ({"url": "ftp://x"}, "E004"),
        ({"url": "postgresql://localhost/shop?pool_size=x"}, "E004"),
        ({"url": "mysql://localhost"}, "E004"),
        ({"url": "redis://localhost/x"}, "E004"),
        ({"url": "sqlite://"}, "E004"),
        ({"url": "redis://localhost/0", "enqueue": "in_transaction"}, "E005"),
        ({"tubes": {"orders": {}}}, "E007"),
        ({"tubes": {"mail": {"ttr": -1}}}, "E008"),
        ({"tubes": {"mail": {"timeout": 1}}}, "E008"),
        ({"tubes": {"mail": {"kind": "mystery"}}}, "E008"),
        ({"tubes": {"mail": {"kind": "fifo"}}}, "E009"),
        ({"tubes": {"mail": {"kind": "round", "period": 1}}}, "E009"),
        ({"url": "memory://"}, "W001"),
    ],
)
def test_bad_settings_are_found(options: dict[str, Any], found: str) -> None:
    assert check(options) == [f"penstock.{found}"]


def test_a_queue_must_have_the_name_of_a_tube() -> None:
    assert check({}, QUEUES=["default", "my mail"]) == ["penstock.E010"]


def test_the_store_is_not_in_the_file_of_a_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(settings.DATABASES["default"], "NAME", tmp_path / "site.db")
    assert check({"url": "sqlite:///site.db"}) == ["penstock.E006"]
    assert check({"url": "sqlite:///jobs.db"}) == []


def test_a_missing_driver_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    for module in [name for name in sys.modules if name.startswith("penstock.store.postgres")]:
        monkeypatch.delitem(sys.modules, module)
    assert check({"url": "postgresql://localhost/shop"}) == ["penstock.E004"]
