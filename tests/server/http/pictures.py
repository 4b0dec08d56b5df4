"""Pictures of every page of the dashboard, for docs/images and for looking at it.

`python -m tests.server.http.pictures` makes those of docs/images again, in two minutes; with a folder, one of every
page there, light and dark, on a desktop and on a phone.
"""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from playwright.sync_api import Browser

import penstock
from penstock.app.schedules import declared
from penstock.schedule import schedule_status
from penstock.schedule.schedule_status import SCHEDULE_TUBE
from tests.server.http.browser import launched, watched
from tests.server.http.serving import Serving, serving

IMAGES = Path(__file__).parents[3] / "docs" / "images"
URL = "memory://pictures"
LIVE_MS = 115_000  # what a chart shows
DESKTOP: dict[str, Any] = {"viewport": {"width": 1280, "height": 800}}
PHONE: dict[str, Any] = {"viewport": {"width": 390, "height": 844}, "device_scale_factor": 2, "is_mobile": True}
DARK: dict[str, Any] = {"color_scheme": "dark"}
DOCS: dict[str, tuple[str, dict[str, Any]]] = {
    "dashboard": ("/", DESKTOP),
    "tube": ("/tubes/mail", DESKTOP | DARK),
    "phone": ("/tubes/mail", PHONE),
}
PAGES = {
    "tubes": "/",
    "tubes-none": "/?q=nothing",
    "tube": "/tubes/mail",
    "tube-buried": "/tubes/mail?status=buried",
    "tube-search": "/tubes/mail?q=reminder",
    "tube-utubes": "/tubes/crawl",
    "utubes": "/tubes/crawl/utubes",
    "task-buried": "/tubes/mail/tasks/1",
    "task-taken": "/tubes/render/tasks/1",
    "task-ended": "/tubes/mail/tasks/3",
    "task-unknown": "/tubes/mail/tasks/999999",
    "put": "/tubes/mail/put",
    "groups": "/groups",
    "sessions": "/sessions",
    "schedules": "/schedules",
    "callbacks": "/callbacks",
    "bulk": "/bulk",
    "audit": "/audit",
    "error": "/nowhere",
}
LOOKS = {
    "desktop": DESKTOP,
    "desktop-dark": DESKTOP | DARK,
    "phone": PHONE,
    "phone-dark": PHONE | DARK,
}

app = penstock.App(URL)


@app.task(tube="mail", max_attempts=2)
def send_mail(to: str, subject: str) -> str:
    """Fails for some."""
    if to.startswith("nobody"):
        raise ConnectionRefusedError(f"550 no such mailbox: {to}")
    return f"sent to {to}"


@app.cron("30 2 * * *", tube="mail")
def clean_up() -> None:
    """Every night."""


def filled(broker: penstock.Broker) -> list[penstock.Tube]:
    """Some tubes with work in every state."""
    mail = broker.tube("mail", ttr=60, max_attempts=3)
    data = {"task": "send_mail", "args": {"to": "nobody@example.org", "subject": "your order"}}
    mail.put(data)
    mail.bury(1, "ConnectionRefusedError: 550 no such mailbox: nobody@example.org")
    mail.put({"task": "send_mail", "args": {"to": "eve@example.org", "subject": "timed out"}})
    mail.bury(2, "timed out after 30 s")
    mail.put("not any more", address="order 7")
    mail.cancel(3, "the order was withdrawn")
    mail.put_many(
        {"task": "send_mail", "args": {"to": f"user{n}@example.org", "subject": "your order"}} for n in range(60)
    )
    mail.put_many([({"to": "ada@example.org", "subject": "reminder"}, {"delay": 3600})] * 9)
    mail.put({"order": 7}, callback="https://hooks.example.com/orders")
    crawl = broker.tube("crawl", "utubettl", ttr=30)
    crawl.put_many(
        ({"url": f"https://{host}/page/{n}"}, {"utube": host})
        for n in range(40)
        for host in ("example.org", "example.com", "example.net")
    )
    render = broker.tube("render", "fifo")
    film = render.group("film-7")
    film.put_many({"frame": n} for n in range(48))
    film.on_end({"encode": "film-7"})
    film.start()
    render.take(0)
    schedule_status.save(broker.tube(SCHEDULE_TUBE), [declared(app.schedules)[0].record(mail)])
    return [mail, crawl, render]


def work(tubes: list[penstock.Tube], over: threading.Event) -> None:
    """Puts and takes, so that the charts move."""
    dice = random.Random(7)
    while not over.wait(0.05):
        tubes[0].put_many([{"task": "send_mail", "args": {"to": "bob@example.org"}}] * dice.randrange(4))
        tubes[1].put({"url": "https://example.org/new"}, utube="example.org")
        for tube in tubes:
            for task in tube.take_many(dice.randrange(1, 3)):
                task.ack()


@contextmanager
def playing() -> Iterator[Serving]:
    """A server on a store in which something happens."""
    over = threading.Event()
    with penstock.connect(URL) as broker, serving(URL) as server:
        working = threading.Thread(target=work, args=(filled(broker), over))
        working.start()
        try:
            press(server, "/tubes/crawl/pause")
            press(server, "/tubes/crawl/resume")
            press(server, "/tubes/mail/bulk", verb="cancel", status="delayed", all="1")
            yield server
        finally:
            over.set()
            working.join()


def press(server: Serving, path: str, **fields: str) -> None:
    """A button of the dashboard."""
    seal = server.app.server.authentication.logins.seal("")
    assert server.client.post(path, data={"seal": seal, **fields}).status_code == httpx.codes.SEE_OTHER, path


def picture(browser: Browser, url: str, file: Path, settings: dict[str, Any], wait_ms: int, *, full: bool) -> None:
    """One page as a file."""
    context = browser.new_context(**settings)
    page = context.new_page()
    page.goto(url)
    page.wait_for_timeout(wait_ms)
    page.screenshot(path=file, full_page=full)
    context.close()


def main() -> None:
    """Serve, work, and look."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    with playing() as server, launched() as browser:
        if folder is None:
            for name, (path, settings) in DOCS.items():
                with watched(browser, **settings) as page:
                    page.goto(server.url + path)
                    page.wait_for_timeout(LIVE_MS if path == "/" else 3_000)
                    page.screenshot(path=IMAGES / f"{name}.png")
            return
        folder.mkdir(parents=True, exist_ok=True)
        for look, settings in LOOKS.items():
            for name, path in PAGES.items():
                picture(browser, server.url + path, folder / f"{name}-{look}.png", settings, 1500, full=True)


if __name__ == "__main__":
    main()
