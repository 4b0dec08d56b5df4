"""The core verbs by HTTP on the stores that the other tests of this folder do not serve."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.server.http.metrics import BUCKETS
from tests.conftest import STORES
from tests.server.http.serving import Serving, serving
from tests.server.http.test_tasks import MAIL, refused


@pytest.fixture(params=["mariadb", "redis", "redis-cluster"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Serving]:
    with serving(STORES[request.param](tmp_path)) as running:
        yield running


def test_the_core_verbs(server: Serving) -> None:
    assert server.post("/api/tubes", {"name": "mail", "ttr": 60}).status_code == 201
    put = server.post(f"{MAIL}/tasks", {"data": {"to": "ada"}, "pri": 1, "address": "first"})
    assert (put.status_code, put.json()["id"], put.json()["status"]) == (201, 1, "r")
    batch = server.post(f"{MAIL}/tasks/batch", {"tasks": [{"data": n} for n in range(2, 6)]}).json()["tasks"]
    assert [task["id"] for task in batch] == [2, 3, 4, 5]
    taken = server.post(f"{MAIL}/take", {"count": 5}).json()
    assert [task["id"] for task in taken["tasks"]] == [2, 3, 4, 5, 1]
    assert server.post(f"{MAIL}/take", {"timeout": 0}).status_code == 204
    for id, verb, body in (
        (1, "ack", {"result": "sent"}), (2, "release", {}), (3, "touch", {"seconds": 5}), (4, "bury", {}),
        (5, "fail", {"error": "no"}),
    ):  # fmt: skip
        assert server.post(f"{MAIL}/tasks/{id}/{verb}", body).json() == {"id": id, "tube": "mail"}
    assert refused(server.post(f"{MAIL}/tasks/1/ack")) == (409, "NotTaken")
    assert server.post(f"{MAIL}/wait", {"address": "first"}).json()["result"] == "sent"
    assert server.post(f"{MAIL}/kick").json() == {"count": 1}
    assert refused(server.post(f"{MAIL}/tasks/4/kick")) == (404, "NotFound")
    server.post(f"{MAIL}/tasks/4/bury")
    assert server.post(f"{MAIL}/tasks/4/retry").json() == {"id": 4, "tube": "mail"}
    assert [task["status"] for task in server.get(f"{MAIL}/tasks").json()["tasks"]] == ["r", "t", "r"]
    assert server.client.delete(f"{MAIL}/tasks/2").status_code == 204
    stats = server.get(f"{MAIL}/stats").json()
    assert stats["tasks"] == {"ready": 1, "taken": 1, "delayed": 0, "buried": 0, "done": 3, "total": 2}
    assert f'penstock_put_to_take_seconds_bucket{{le="{BUCKETS[-1]}",tube="mail"}} 5' in server.get("/metrics").text


def test_sessions_groups_and_both_other_kinds(server: Serving) -> None:
    session = server.post("/api/sessions").json()["session"]
    server.post(f"{MAIL}/tasks", {"data": 1})
    assert server.post(f"{MAIL}/take", Penstock_Session=session).json()["session"] == session
    assert refused(server.post(f"{MAIL}/tasks/1/ack")) == (409, "NotTaken")
    assert server.client.delete(f"/api/sessions/{session}").status_code == 204
    assert server.get(f"{MAIL}/tasks/1").json()["status"] == "r"
    server.post(f"{MAIL}/tasks", {"data": 2, "group": "g"})
    assert server.get(f"{MAIL}/groups/g").json() == {"name": "g", "state": "open", "done": 0, "total": 1}
    server.post("/api/tubes", {"name": "feeds", "kind": "round", "period": 60})
    server.post("/api/tubes/feeds/tasks", {"data": "x", "id": "feed/1"})
    assert server.post("/api/tubes/feeds/take").json()["id"] == "feed/1"
    server.post("/api/tubes", {"name": "orders", "kind": "reliable"})
    id = server.post("/api/tubes/orders/tasks", {"data": "x"}).json()["id"]
    assert server.post("/api/tubes/orders/take").json()["id"] == id
    assert server.post("/api/tubes/orders/recover", {"elapsed": 0}).json()["tasks"][0]["attempts"] == 2
    assert server.post("/api/tubes/orders/ack", {"ids": [id]}).json() == {"acked": [id]}


def test_pages(server: Serving) -> None:
    server.post(f"{MAIL}/tasks", {"data": "hello"})
    for path in ("/", "/tubes/mail", "/tubes/mail/tasks/1", "/sessions", "/groups", "/schedules", "/callbacks"):
        assert server.get(path).status_code == 200, path
