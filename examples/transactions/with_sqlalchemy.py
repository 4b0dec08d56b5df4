"""An order and the mail about it in one SQLAlchemy session: both are stored, or neither.

PENSTOCK_URL=postgresql://… python examples/transactions/with_sqlalchemy.py
"""

from __future__ import annotations

import os

from sqlalchemy import String, create_engine, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

import penstock

URL = os.environ["PENSTOCK_URL"]
engine = create_engine(URL.partition("?")[0].replace("postgresql://", "postgresql+psycopg://"))


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    __table_args__ = {"prefixes": ["TEMPORARY"]}  # noqa: RUF012 - as SQLAlchemy wants it
    id: Mapped[int] = mapped_column(primary_key=True)
    customer: Mapped[str] = mapped_column(String)


def place_order(broker: penstock.Broker, session: Session, customer: str) -> None:
    session.add(Order(customer=customer))
    broker.bind(session).tube("mail").put(f"to {customer}: your order is on its way")


with penstock.connect(URL) as broker, engine.connect() as connection:
    mail = broker.tube("mail")
    Base.metadata.create_all(connection)
    connection.commit()
    with Session(connection) as session:
        place_order(broker, session, "ada@example.org")
        session.commit()
        place_order(broker, session, "bob@example.org")
        session.rollback()  # the order and the mail are gone together
        print("orders:", list(session.scalars(select(Order.customer))))
    while task := mail.take(timeout=0):
        with task:
            print("mail", task.data)
