"""The time of every dashboard page on a large store: `python -m tests.server.http.page_times [URL]`.

Fills a store (by default a SQLite file) with 200 tubes and a million tasks, serves it, requests each page five times,
and fails if any median is 500 ms or more.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time

import penstock
from tests.server.http.server_thread import Serving, serving

TUBES, TASKS = 200, 1_000_000
LIMIT_MS = 500
ROUNDS = 5
PAGES = (
    *("/", "/?order=ready&page=2", "/?q=tube-01", "/?span=1h", "/?span=24h", "/handlers", "/sessions", "/groups"),
    *("/schedules", "/callbacks", "/bulk", "/audit", "/metrics"),
    *("/tubes/tube-000", "/tubes/tube-000?status=buried", "/tubes/tube-000?after=4000", "/tubes/tube-000?span=24h"),
    *("/tubes/tube-000?q=user77%40example", "/tubes/tube-000?q=nothing%20like%20it", "/tubes/tube-000/put"),
    *("/tubes/tube-000/tasks/1", "/tubes/tube-000/groups"),
    *("/tubes/tube-001", "/tubes/tube-001/utubes"),
)


def fill(broker: penstock.Broker, tubes: int, tasks: int) -> None:
    """Fill tubes of equal size, mostly with ready tasks; some delayed, buried and taken, with groups and callbacks."""
    each = tasks // tubes
    for number in range(tubes):
        name = f"tube-{number:03}"
        tube = broker.tube(name, "utubettl" if number % 10 == 1 else "fifottl")
        micro_queue = number % 10 == 1
        items = [
            (
                {"task": "send_mail", "args": {"to": f"user{n}@example.org", "subject": "your order"}},
                {
                    "delay": 86_400 if n % 50 == 1 else 0,
                    **({"utube": f"customer {n % 100}"} if micro_queue else {}),
                    **({"callback": f"https://hooks{n % 7}.example/orders"} if n % 20 == 2 else {}),
                },
            )
            for n in range(each)
        ]
        for first in range(0, each, 10_000):
            tube.put_many(items[first : first + 10_000])
        for id in range(1, each, 500):
            tube.bury(id, "550 no such mailbox")
        tube.take_many(5)
        group = tube.group("monthly")
        group.put_many(range(3), utube="g" if micro_queue else None)
        group.start()


def measure(server: Serving, path: str) -> float:
    """The median time of a page, in milliseconds."""
    times = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        answer = server.get(path)
        times.append((time.perf_counter() - began) * 1000)
        assert answer.status_code == 200, (path, answer.text)
    return statistics.median(times)


def show(line: str) -> None:
    """Print without buffering."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> None:
    """Fill a store, serve it, and measure."""
    with tempfile.TemporaryDirectory() as folder:
        url = sys.argv[1] if len(sys.argv) > 1 else f"sqlite:///{folder}/pages.db?durability=relaxed"
        with penstock.connect(url) as broker:
            began = time.perf_counter()
            fill(broker, TUBES, TASKS)
            show(f"{TASKS:,} tasks in {TUBES} tubes, put in {time.perf_counter() - began:.0f} s")
            with serving(url) as server:
                late = []
                for path in PAGES:
                    median = measure(server, path)
                    show(f"{median:8.0f} ms  {path}{'  TOO LONG' if median >= LIMIT_MS else ''}")
                    if median >= LIMIT_MS:
                        late.append(path)
    if late:
        sys.exit(f"{len(late)} pages take {LIMIT_MS} ms or more")


if __name__ == "__main__":
    main()
