"""A real headless Chromium that fails a test for any error in its console."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from playwright.sync_api import Browser, ConsoleMessage, Dialog, Page, Request, expect, sync_playwright

from tests.servers import present
from tests.servers.base import find

# A busy machine needs a while to show a page; Playwright's own limit is five seconds.
expect.set_options(timeout=60_000)


def chromium() -> str:
    """The path of Debian's Chromium; if it is missing, fail where CI=true, otherwise skip by name."""
    return present(lambda: find("chromium", "chromium", ()))


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
def watched(browser: Browser, *, refused: bool = False, **settings: Any) -> Iterator[Page]:
    """A page without cookies: errors, dialogs and violations of the content policy fail the test.

    With settings it is a page of a new profile, which takes longer. `refused`: the server may refuse requests.
    """
    usual = None if settings else next(iter(browser.contexts), None)
    context = usual or browser.new_context(**settings)
    context.set_default_timeout(60_000)
    page = context.new_page()
    found: list[str] = []

    def on_console(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning") and not (refused and "Failed to load resource" in message.text):
            found.append(message.text)

    def asked(dialog: Dialog) -> None:
        found.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def failed(request: Request) -> None:
        if request.failure != "net::ERR_ABORTED":  # streams and icons are aborted when their page is left
            found.append(f"failed: {request.url} {request.failure}")

    page.on("console", on_console)
    page.on("pageerror", lambda error: found.append(str(error)))
    page.on("dialog", asked)
    page.on("requestfailed", failed)
    yield page
    page.wait_for_load_state()
    if settings:
        context.close()
    else:
        page.close()
        context.clear_cookies()
    assert not found, found
