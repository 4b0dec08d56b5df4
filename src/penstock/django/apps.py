"""The Django app, which provides `manage.py penstock_worker`."""

from __future__ import annotations

from django.apps import AppConfig


class PenstockConfig(AppConfig):
    """`penstock.django` in INSTALLED_APPS."""

    name = "penstock.django"
    label = "penstock"
