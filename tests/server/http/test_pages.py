"""Every page works on every store."""

from __future__ import annotations

import penstock
from tests.server.http.server_thread import EVERY_STORE, Serving

PAGES = (
    *("/", "/?span=24h", "/handlers", "/sessions", "/groups", "/schedules", "/callbacks", "/bulk", "/audit"),
    *("/tubes/mail", "/tubes/mail/put", "/tubes/mail/tasks/1", "/tubes/mail/groups"),
    *("/tubes/micro_queues", "/tubes/micro_queues/utubes"),
)


@EVERY_STORE
def test_pages(server: Serving, direct: penstock.Broker) -> None:
    direct.tube("mail").put("hello", group="letters")
    direct.tube("micro_queues", "utube").put_many([(1, {"utube": "ada"}), (2, {"utube": "ada"})])
    assert direct.tube("micro_queues").take(0) is not None
    for path in PAGES:
        assert server.get(path).status_code == 200, path
    assert "letters" in server.get("/groups").text
    assert "ada" in server.get("/tubes/micro_queues/utubes").text
