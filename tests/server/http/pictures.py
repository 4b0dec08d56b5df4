"""Makes the pictures of the dashboard in docs/images: `python -m tests.server.http.pictures`, two minutes."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import Any

import penstock
from tests.server.http.browser import launched, watched
from tests.server.http.serving import serving

IMAGES = Path(__file__).parents[3] / "docs" / "images"
URL = "memory://pictures"
LIVE_MS = 115_000  # what a chart shows
PICTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "dashboard": ("/", {"viewport": {"width": 1280, "height": 800}}),
    "tube": ("/tubes/mail", {"viewport": {"width": 1280, "height": 800}, "color_scheme": "dark"}),
    "phone": ("/tubes/mail", {"viewport": {"width": 390, "height": 844}, "device_scale_factor": 2, "is_mobile": True}),
}


def filled(broker: penstock.Broker) -> list[penstock.Tube]:
    """Some tubes with work in every state."""
    mail = broker.tube("mail", ttr=60, max_attempts=3)
    mail.put_many({"to": f"user{n}@example.org", "subject": "your order"} for n in range(60))
    for reason in ("550 no such mailbox", "timed out after 30 s"):
        task = mail.take(0)
        assert task is not None
        task.bury(reason)
    mail.put_many([({"to": "ada@example.org", "subject": "reminder"}, {"delay": 3600})] * 9)
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
    return [mail, crawl, render]


def work(tubes: list[penstock.Tube], over: threading.Event) -> None:
    """Puts and takes, so that the charts move."""
    dice = random.Random(7)
    while not over.wait(0.05):
        tubes[0].put_many([{"to": "bob@example.org", "subject": "receipt"}] * dice.randrange(4))
        tubes[1].put({"url": "https://example.org/new"}, utube="example.org")
        for tube in tubes:
            for task in tube.take_many(dice.randrange(1, 3)):
                task.ack()


def main() -> None:
    """Serve, work, and look."""
    over = threading.Event()
    with penstock.connect(URL) as broker, serving(URL) as server, launched() as browser:
        working = threading.Thread(target=work, args=(filled(broker), over))
        working.start()
        for name, (path, settings) in PICTURES.items():
            with watched(browser, **settings) as page:
                page.goto(server.url + path)
                page.wait_for_timeout(LIVE_MS if path == "/" else 3_000)
                page.screenshot(path=IMAGES / f"{name}.png")
        over.set()
        working.join()


if __name__ == "__main__":
    main()
