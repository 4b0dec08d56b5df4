"""The examples that need a worker, run as written."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import penstock

EXAMPLES = Path(__file__).parents[2] / "examples"
PAGES = {"index.html": "a.html b.html", "a.html": "b.html index.html#top", "b.html": "a.html ../elsewhere.html"}


class Quiet(SimpleHTTPRequestHandler):
    """Serves files without logging."""

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def worker(module: str, environment: dict[str, str], *options: str) -> Iterator[None]:
    command = [sys.executable, "-m", "penstock", "worker", f"{module}:app", *options]
    process = subprocess.Popen(command, cwd=EXAMPLES, env=environment, stderr=subprocess.PIPE)
    try:
        yield
    finally:
        process.terminate()
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == 0, stderr.decode()


def environment(folder: Path) -> dict[str, str]:
    source = str(Path(penstock.__file__).parents[1])
    return {**os.environ, "PENSTOCK_URL": f"sqlite:///{folder}/example.db", "PYTHONPATH": source}


def run(example: str, environment: dict[str, str], *arguments: str) -> str:
    command = [sys.executable, "-W", "error", f"{example}.py", *arguments]
    return subprocess.run(command, cwd=EXAMPLES, env=environment, check=True, capture_output=True, text=True).stdout


def test_images_are_shrunk_in_processes(tmp_path: Path) -> None:
    with worker("images", environment(tmp_path), "--processes", "2"):
        assert run("images", environment(tmp_path)).split() == ["1037", "269", "75"]


def test_the_crawler_visits_each_page_of_the_site_once(tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    for name, links in PAGES.items():
        (site / name).write_text("".join(f'<a href="{link}">' for link in links.split()))
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path))) as server:
        Thread(target=server.serve_forever).start()
        start = f"http://127.0.0.1:{server.server_port}/site/index.html"
        root = start.removesuffix("index.html")
        with worker("crawler", environment(tmp_path)):
            run("crawler", environment(tmp_path), start)
        server.shutdown()
    with penstock.connect(environment(tmp_path)["PENSTOCK_URL"]) as broker:
        tube = broker.tube("pages")
        assert [tube.wait(root + name, 0).result for name in PAGES] == [2, 2, 2]
        assert tube.stats().calls.ack == len(PAGES)
