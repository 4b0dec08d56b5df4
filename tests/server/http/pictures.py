"""Screenshots of every dashboard page, for docs/images and for review.

`python -m tests.server.http.pictures` updates docs/images, in two minutes; with a folder, it writes one of every page
there, light and dark, on a desktop and on a phone.
"""

from __future__ import annotations

import random
import sys
import threading
import time
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
from penstock.server.http.history import MINUTE
from penstock.worker.settings import make_settings
from penstock.worker.worker import Worker
from tests.server.http.browser import launched, watched
from tests.server.http.server_thread import Serving, serving

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
    "handlers": ("/handlers", DESKTOP),
    "task": ("/tubes/mail/tasks/1", DESKTOP),
}
PAGES = {
    "tubes": "/",
    "tubes-hour": "/?span=1h",
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
    "handlers": "/handlers",
    "workers": "/sessions",
    "groups": "/groups",
    "schedules": "/schedules",
    "callbacks": "/callbacks",
    "bulk": "/bulk",
    "audit": "/audit",
    "error": "/nowhere",
}
# Hosts of callbacks, and why they failed.
HOOKS = (
    ("hooks.example.com", "POST failed: 503 Service Unavailable"),
    ("hooks.example.com", "POST failed: timed out after 30 s"),
    ("shop.example.org", None),
)
# Tracebacks contain paths of the machine that makes the pictures.
ELSEWHERE = """(root) => document.querySelectorAll("pre").forEach((each) => {
  each.textContent = each.textContent.replaceAll(root, "/srv/shop");
})"""
LOOKS = {
    "desktop": DESKTOP,
    "desktop-dark": DESKTOP | DARK,
    "phone": PHONE,
    "phone-dark": PHONE | DARK,
}

app = penstock.App(URL)
dice = random.Random(7)


@app.task(tube="mail", max_attempts=2, backoff=penstock.Backoff(base=0.1))
def send_mail(to: str, subject: str) -> None:
    """A handler that fails for some recipients."""
    time.sleep(dice.random() / 20)
    if to.startswith("nobody"):
        raise ConnectionRefusedError(f"550 no such mailbox: {to}")


@app.task(tube="reports")
def monthly_report(customer: int) -> int:
    """A slow handler."""
    penstock.current_task().progress = 0.4
    time.sleep(dice.random())
    return customer


@app.cron("30 2 * * *", tube="mail")
def clean_up() -> None:
    """A nightly schedule."""


def mail_to(name: str) -> dict[str, Any]:
    """A task for the handler."""
    return {"task": "send_mail", "args": {"to": f"{name}@example.org", "subject": "your order"}}


def filled(broker: penstock.Broker) -> list[penstock.Tube]:
    """Some tubes with work in every state."""
    mail = broker.tube("mail", ttr=60)
    mail.put(mail_to("nobody"))
    mail.put(mail_to("eve"))
    mail.bury(2, "timed out after 30 s")
    mail.put("not any more", address="order 7")
    mail.cancel(3, "the order was withdrawn")
    mail.put_many(mail_to(f"user{n}") for n in range(60))
    mail.put_many([({"to": "ada@example.org", "subject": "reminder"}, {"delay": 3600})] * 9)
    orders = broker.tube("orders")
    for number, (host, reason) in enumerate(HOOKS, 1):
        orders.put({"order": number}, callback=f"https://{host}/orders", delay=0 if reason else 600)
        if reason:
            orders.bury(number, reason)
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
    """Put and take, so that the charts change."""
    while not over.wait(0.05):
        tubes[0].put_many(mail_to("nobody" if dice.random() < 0.02 else "bob") for _ in range(dice.randrange(6)))
        tubes[1].put({"url": "https://example.org/new"}, utube="example.org")
        monthly_report.put(dice.randrange(100)) if dice.random() < 0.1 else None
        for task in tubes[1].take_many(dice.randrange(1, 3)):
            task.ack()


@contextmanager
def playing() -> Iterator[Serving]:
    """A server on a store with activity."""
    over = threading.Event()
    with penstock.connect(URL) as broker, serving(URL) as server:
        tubes = filled(broker)
        worker = Worker(app, make_settings(concurrency=4, name="shop:app"))
        working = threading.Thread(target=work, args=(tubes, over))
        now = int(time.time()) // MINUTE
        for minute in range(now - 60, now):  # an hour with this much work
            tubes[1].put_many([("page", {"utube": "example.net"})] * dice.randrange(150))
            tubes[1].ack_many(tubes[1].take_many(dice.randrange(150)))
            server.await_in_loop(server.app.history.note(minute))
        worker.start()
        working.start()
        try:
            press(server, "/tubes/crawl/pause")
            press(server, "/tubes/crawl/resume")
            time.sleep(12)  # until the worker has reported, and the first task has failed twice
            press(server, "/tubes/mail/bulk", verb="cancel", status="delayed", all="1")
            server.await_in_loop(server.app.history.note(now))
            yield server
        finally:
            over.set()
            working.join()
            worker.stop(1)
            app.close()


def press(server: Serving, path: str, **fields: str) -> None:
    """Press a button of the dashboard."""
    csrf_token = server.app.server.authentication.logins.csrf_token("")
    assert server.client.post(path, data={"csrf_token": csrf_token, **fields}).status_code == httpx.codes.SEE_OTHER, (
        path
    )


def look(browser: Browser, server: Serving, folder: Path, name: str, settings: dict[str, Any]) -> None:
    """Take a screenshot of every page, as one reader sees it."""
    context = browser.new_context(**settings)
    page = context.new_page()
    for page_name, path in PAGES.items():
        page.goto(server.url + path)
        page.wait_for_timeout(400)
        page.screenshot(path=folder / f"{page_name}-{name}.png", full_page=True)
    context.close()


def main() -> None:
    """Serve, work, and take screenshots."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    with playing() as server, launched() as browser:
        if folder is None:
            for name, (path, settings) in DOCS.items():
                with watched(browser, **settings) as page:
                    page.goto(server.url + path)
                    page.wait_for_timeout(LIVE_MS if path == "/" else 3_000)
                    page.evaluate(ELSEWHERE, str(IMAGES.parents[1]))
                    page.screenshot(path=IMAGES / f"{name}.png")
            return
        folder.mkdir(parents=True, exist_ok=True)
        for name, settings in LOOKS.items():
            look(browser, server, folder, name, settings)


if __name__ == "__main__":
    main()
