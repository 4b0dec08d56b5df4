"""penstock for Django projects: a backend for Django's tasks, and `manage.py penstock_worker`, which runs them.

INSTALLED_APPS += ["penstock.django"]
TASKS = {"default": {"BACKEND": "penstock.django.PenstockBackend", "OPTIONS": {"url": "redis://localhost/0"}}}
"""

from __future__ import annotations

from penstock.django.backend import PenstockBackend

__all__ = ["PenstockBackend"]
