"""The Django app, for its command."""

from __future__ import annotations

from django.apps import AppConfig


class PenstockConfig(AppConfig):
    """`penstock.django` in INSTALLED_APPS."""

    name = "penstock.django"
    label = "penstock"
