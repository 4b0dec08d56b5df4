"""An order and the mail about it in one psycopg transaction: both are stored, or neither.

PENSTOCK_URL=postgresql://… python examples/transactions/with_psycopg.py
"""

from __future__ import annotations

import os

import psycopg

import penstock

URL = os.environ["PENSTOCK_URL"]


def place_order(broker: penstock.Broker, db: psycopg.Connection, customer: str, *, paid: bool) -> None:
    with db.transaction():
        db.execute("INSERT INTO orders (customer) VALUES (%s)", [customer])
        broker.bind(db).tube("mail").put(f"to {customer}: your order is on its way")
        if not paid:
            raise psycopg.Rollback  # the order and the mail are gone together


with penstock.connect(URL) as broker, psycopg.connect(URL.partition("?")[0], autocommit=True) as db:
    mail = broker.tube("mail")
    db.execute("CREATE TEMPORARY TABLE orders (id serial PRIMARY KEY, customer text NOT NULL)")
    place_order(broker, db, "ada@example.org", paid=True)
    place_order(broker, db, "bob@example.org", paid=False)
    print("orders:", [row[0] for row in db.execute("SELECT customer FROM orders")])
    while task := mail.take(timeout=0):
        with task:
            print("mail", task.data)
