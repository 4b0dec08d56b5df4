"""An order and the mail about it in one Django transaction: both are stored, or neither.

    PENSTOCK_URL=postgresql://… python examples/transactions/with_django.py

In a project, settings and models are in their own files; `place_order` is the part that matters.
"""

from __future__ import annotations

import os
from urllib.parse import urlsplit

import django
from django.conf import settings
from django.db import connection, models, transaction

import penstock

URL = os.environ["PENSTOCK_URL"]
_place = urlsplit(URL)
settings.configure(
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": _place.path.lstrip("/"),
            "USER": _place.username or "",
            "PASSWORD": _place.password or "",
            "HOST": _place.hostname or "",
            "PORT": _place.port or "",
        }
    }
)
django.setup()


class Order(models.Model):
    customer = models.CharField(max_length=200)

    class Meta:
        app_label = "shop"
        db_table = "shop_order"


def place_order(broker: penstock.Broker, customer: str, *, paid: bool) -> None:
    with transaction.atomic():
        Order.objects.create(customer=customer)
        broker.bind(connection).tube("mail").put(f"to {customer}: your order is on its way")
        if not paid:
            raise ValueError(f"{customer} has not paid")  # the order and the mail are gone together


with penstock.connect(URL) as broker:
    mail = broker.tube("mail")
    with connection.schema_editor() as schema:
        schema.create_model(Order)
    place_order(broker, "ada@example.org", paid=True)
    try:
        place_order(broker, "bob@example.org", paid=False)
    except ValueError as error:
        print("refused:", error)
    print("orders:", list(Order.objects.values_list("customer", flat=True)))
    while task := mail.take(timeout=0):
        with task:
            print("mail", task.data)
    with connection.schema_editor() as schema:
        schema.delete_model(Order)
