"""Opens a store for commands that work on what is there. They never create one."""

from __future__ import annotations

from urllib.parse import unquote

import penstock
from penstock.errors import NotFound
from penstock.store.open import has_pool, look_at_schema
from penstock.transfer.move import shown_url


def connect_existing(url: str) -> penstock.Broker:
    """Connect, for a command that only works on what is there: a missing store is an error, and is not created."""
    must_exist(url)
    return penstock.connect(url)


def exists(url: str) -> bool:
    """Whether the store is there, for which nothing is changed. A pool may have to be rebuilt, so it is."""
    return url.startswith("memory://") or has_pool(url) or look_at_schema(url).stored is not None


def must_exist(url: str) -> None:
    """NotFound if opening the store would create it."""
    if exists(url):
        return
    where = shown_url(url)
    if where.startswith("sqlite:///"):
        where = unquote(where.removeprefix("sqlite:///").partition("?")[0])
    raise NotFound(f"there is no store at {where}: give another --url, or create it with penstock migrate")
