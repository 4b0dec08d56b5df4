"""A site crawled by async handlers, each page once.

PENSTOCK_URL=sqlite:///crawl.db penstock worker crawler:app --concurrency 100
PENSTOCK_URL=sqlite:///crawl.db python crawler.py https://example.org/
"""

from __future__ import annotations

import asyncio
import re
import sys
import time
import urllib.request
from urllib.parse import urldefrag, urljoin

import penstock

app = penstock.App()


@app.task(tube="pages", ttr=30, max_attempts=3)
async def crawl(url: str, site: str) -> int:
    """Read a page and put the pages of the site that it links to. Returns the number of links."""
    text = await asyncio.to_thread(fetch, url)
    found = {urldefrag(urljoin(url, link)).url for link in re.findall(r'href="([^"]+)"', text)}
    await asyncio.gather(*(visit(link, site) for link in found if link.startswith(site)))
    return len(found)


async def visit(url: str, site: str) -> None:
    """Put a page, unless it is queued or was crawled; results are kept for a week."""
    try:
        crawled = (await asyncio.to_thread(app.broker.tube("pages").wait, url, timeout=0)).result is not None
    except TimeoutError:  # it is in the tube
        return
    if not crawled:
        await crawl.options(address=url, on_duplicate="ignore").aio.put(url, site)


def fetch(url: str) -> str:
    """The text of a page."""
    with urllib.request.urlopen(url, timeout=20) as answer:
        return str(answer.read().decode(errors="replace"))


if __name__ == "__main__":
    start = sys.argv[1]
    crawl.options(address=start).put(start, start.rpartition("/")[0] + "/")
    while app.broker.tube("pages").stats().tasks.total:
        time.sleep(0.1)
