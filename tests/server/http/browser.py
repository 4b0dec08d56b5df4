"""A real Chromium, without a window, that fails a test for anything a person would find in its console."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from tests.servers.base import Missing, find


def chromium() -> str:
    """Debian's browser; a missing one fails where CI=true, and is a named skip elsewhere."""
    try:
        return find("chromium", "chromium", ())
    except Missing as missing:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(str(missing))


@contextmanager
def launched() -> Iterator[Browser]:
    """A browser process."""
    path = chromium()
    with sync_playwright() as playwright:
        # As root, in a container, its own sandbox cannot be set up.
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@contextmanager
def watched(browser: Browser, **settings: Any) -> Iterator[Page]:
    """A page of a fresh profile: errors, dialogs and refusals by the content policy fail the test."""
    context = browser.new_context(**settings)
    page = context.new_page()
    found: list[str] = []
    page.on("console", lambda message: found.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: found.append(str(error)))
    page.on("dialog", lambda dialog: (found.append(f"dialog: {dialog.message}"), dialog.dismiss()))
    page.on("requestfailed", lambda request: found.append(f"failed: {request.url}") if _matters(request) else None)
    yield page
    page.wait_for_load_state()
    context.close()
    assert not found, found


def _matters(request: Any) -> bool:
    return "/api/events" not in request.url  # a stream is cut when its page is left
