"""Settings of the Django project of these tests; each test names its own store in TASKS."""

from __future__ import annotations

from django.conf import settings

from penstock.django import task_results  # Django 6's, or the backport's

BACKPORT = ["django_tasks"] if task_results.base.__name__.startswith("django_tasks") else []
SETTINGS = {
    "DATABASES": {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
    "INSTALLED_APPS": [*BACKPORT, "penstock.django", "tests.django.shop"],
    "LOGGING_CONFIG": None,
    "TASKS": {"default": {"BACKEND": "penstock.django.PenstockBackend", "QUEUES": ["default", "mail"]}},
    "USE_TZ": True,
}
if not settings.configured:
    settings.configure(**SETTINGS)
