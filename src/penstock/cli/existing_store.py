"""Opens an existing store, for commands that must not create one."""

from __future__ import annotations

from urllib.parse import unquote

import penstock
from penstock.core.store_url import split_url
from penstock.errors import NotFound
from penstock.store.open import look_at_schema
from penstock.transfer.move import shown_url


def connect_existing(url: str) -> penstock.Broker:
    """Connect to an existing store. Raises NotFound instead of creating a missing one."""
    must_exist(url)
    return penstock.connect(url)


def exists(url: str) -> bool:
    """Whether the store exists. Changes nothing, except that a pool's index is rebuilt if needed."""
    return url.startswith("memory://") or split_url(url)[2] is not None or look_at_schema(url).stored is not None


def must_exist(url: str) -> None:
    """Raise NotFound if opening the store would create it."""
    if exists(url):
        return
    where = shown_url(url)
    if where.startswith("sqlite:///"):
        where = unquote(where.removeprefix("sqlite:///").partition("?")[0])
    raise NotFound(f"there is no store at {where}: give another --url, or create it with penstock migrate")
