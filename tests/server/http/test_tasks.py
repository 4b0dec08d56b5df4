"""The task verbs over HTTP, on every kind of store."""

from __future__ import annotations

import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import quote

import httpx

import penstock
from penstock.core.task import lease_text
from penstock.testing import run_queued
from tests.server.http.server_thread import EVERY_STORE, PATIENCE, Serving
from tests.support.inspection import waiters
from tests.support.threads import until

MAIL = "/api/tubes/mail"


def refused(answer: httpx.Response) -> tuple[int, str]:
    body = answer.json()
    assert body.keys() == {"error", "message"}
    assert body["message"]
    return answer.status_code, body["error"]


@EVERY_STORE
def test_put_take_ack(server: Serving, direct: penstock.Broker) -> None:
    put = server.post(f"{MAIL}/tasks", {"data": {"to": "ada", "n": 1.5}, "pri": 3})
    assert put.status_code == 201
    assert put.json()["id"] == 1
    assert put.json()["status"] == "r"
    assert put.json()["pri"] == 3
    taken = server.post(f"{MAIL}/take", {"timeout": 0})
    assert taken.status_code == 200
    assert taken.json()["data"] == {"to": "ada", "n": 1.5}
    assert taken.json()["status"] == "t"
    session = taken.json()["session"]
    assert taken.headers["penstock-session"] == session
    assert session in [each.id for each in direct.sessions()]
    acked = server.post(f"{MAIL}/tasks/1/ack", {}, penstock_session=session)
    assert (acked.status_code, acked.json()) == (200, {"id": 1, "tube": "mail"})
    assert direct.tube("mail").stats().calls.ack == 1


def test_a_take_of_nothing_is_204(server: Serving) -> None:
    server.post("/api/tubes", {"name": "mail"})
    for body in ({"timeout": 0}, {}, {"timeout": 0.05}, {"timeout": None}, {"count": 5}):
        answer = server.post(f"{MAIL}/take", body)
        assert (answer.status_code, answer.content) == (204, b"")


DATA: list[object] = [None, "", 0, False, [], {}, "ü\n\u2028", 2**70, -1.5e-300, [[[1]]], {"": None}]


def test_data_is_read_back_equal(server: Serving) -> None:
    for data in DATA:
        assert server.post(f"{MAIL}/tasks", {"data": data}).json()["data"] == data
        taken = server.post(f"{MAIL}/take").json()["data"]
        assert taken == data
        assert type(taken) is type(data)


def test_bytes_are_base64(server: Serving, direct: penstock.Broker) -> None:
    direct.tube("mail").put(b"\0\xff")
    taken = server.post(f"{MAIL}/take").json()
    assert "data" not in taken
    assert taken["base64"] == "AP8="
    server.post(f"{MAIL}/tasks", {"base64": "AP8="})
    task = direct.tube("mail").take(0)
    assert task is not None
    assert task.data == b"\0\xff"


@EVERY_STORE
def test_many_at_once(server: Serving, direct: penstock.Broker) -> None:
    put = server.post(f"{MAIL}/tasks/batch", {"tasks": [{"data": 1, "pri": 5}, {"data": 2}, {"base64": ""}]})
    assert [task["id"] for task in put.json()["tasks"]] == [1, 2, 3]
    taken = server.post(f"{MAIL}/take", {"count": 2}).json()
    assert [task["id"] for task in taken["tasks"]] == [2, 3]
    leases = [task["lease"] for task in taken["tasks"]]
    assert refused(server.post(f"{MAIL}/ack", {"ids": [2, 3]})) == (400, "BadValue")
    assert refused(server.post(f"{MAIL}/ack", {"ids": [2, 3], "leases": leases[:1]})) == (400, "BadValue")
    acked = server.post(f"{MAIL}/ack", {"ids": [2, 1, 2, 3], "leases": [leases[0], leases[0], "x", leases[1]]})
    assert acked.json() == {"acked": [True, False, False, True]}
    bad = server.post(f"{MAIL}/tasks/batch", {"tasks": [{"data": 1}, {"data": 2, "pri": -1}]})
    assert refused(bad) == (400, "BadValue")
    assert direct.tube("mail").stats().calls.put == 3


def test_a_bad_put_leaves_no_tube_behind(server: Serving) -> None:
    assert refused(server.post(f"{MAIL}/tasks", {"data": 1, "utube": "ada"})) == (400, "UnsupportedOption")
    batch = {"tasks": [{"data": 1}, {"data": 2, "pri": -1}]}
    assert refused(server.post(f"{MAIL}/tasks/batch", batch)) == (400, "BadValue")
    assert server.get("/api/tubes").json() == []


@EVERY_STORE
def test_every_way_to_settle(server: Serving, direct: penstock.Broker) -> None:
    tube = direct.tube("mail", ttr=60)
    tube.put_many([1, 2, 3, 4, 5])
    taken = server.post(f"{MAIL}/take", {"count": 4}).json()["tasks"]
    lease = {task["id"]: task["lease"] for task in taken}
    assert server.post(f"{MAIL}/tasks/1/release", {"delay": 60, "lease": lease[1]}).status_code == 200
    assert tube.peek(1).status == "~"
    before = tube.peek(2).due
    assert server.post(f"{MAIL}/tasks/2/touch", {"seconds": 30, "lease": lease[2]}).status_code == 200
    assert tube.peek(2).due == (before or 0) + 30
    assert server.post(f"{MAIL}/tasks/3/bury", {"reason": "broken"}).status_code == 200
    assert tube.peek(3).reason == "broken"
    assert server.post(f"{MAIL}/tasks/4/fail", {"error": "no", "code": 7, "lease": lease[4]}).status_code == 200
    assert 4 not in tube
    assert server.client.delete(f"{MAIL}/tasks/5").status_code == 204
    assert 5 not in tube
    assert server.post(f"{MAIL}/kick", {"count": 10}).json() == {"count": 1}
    assert "ready" in server.get(f"{MAIL}/tasks/3/why").json()["why"]


@EVERY_STORE
def test_one_task_is_kicked_and_retried(server: Serving, direct: penstock.Broker) -> None:
    tube = direct.tube("mail")
    tube.put_many([1, (2, {"delay": 60}), 3])
    tube.bury(1)
    assert refused(server.post(f"{MAIL}/tasks/3/kick")) == (404, "NotFound")
    assert server.post(f"{MAIL}/tasks/1/kick").json() == {"id": 1, "tube": "mail"}
    tube.bury(1)
    for id in (1, 2):
        assert server.post(f"{MAIL}/tasks/{id}/retry").json() == {"id": id, "tube": "mail"}
    assert [task.status for task in tube.tasks()] == ["r", "r", "r"]


@EVERY_STORE
def test_an_ack_of_another_session_or_too_late_is_refused(server: Serving, direct: penstock.Broker) -> None:
    tube = direct.tube("mail")
    tube.put(1)
    held = tube.take(0)
    assert held is not None
    foreign = lease_text(held)
    assert refused(server.post(f"{MAIL}/tasks/1/ack", {"lease": foreign})) == (409, "NotTaken")
    held.release()
    taken = server.post(f"{MAIL}/take").json()
    for verb in ("ack", "bury"):
        assert refused(server.post(f"{MAIL}/tasks/1/{verb}", {"lease": foreign})) == (409, "NotTaken")
    assert refused(server.post(f"{MAIL}/tasks/7/ack", {"lease": taken["lease"]})) == (409, "NotTaken")
    assert server.get(f"{MAIL}/tasks/1").json()["lease"] == 2
    assert server.post(f"{MAIL}/tasks/1/ack", {"lease": taken["lease"]}).status_code == 200
    assert refused(server.post(f"{MAIL}/tasks/1/ack", {"lease": taken["lease"]})) == (409, "NotTaken")


SETTLES: list[tuple[str, dict[str, object]]] = [
    ("ack", {}), ("release", {}), ("touch", {"seconds": 1}), ("fail", {"error": "x"}),
]  # fmt: skip


@EVERY_STORE
def test_a_settle_names_its_hand_out_or_its_session(server: Serving, direct: penstock.Broker) -> None:
    tube = direct.tube("mail", ttr=60)
    for verb, body in SETTLES:
        id = tube.put(verb).id
        taken = server.post(f"{MAIL}/take").json()
        path = f"{MAIL}/tasks/{id}/{verb}"
        for missing in ({}, {"lease": None}, {"lease": 1}, {"lease": ["x"]}):
            assert refused(server.post(path, body | missing)) == (400, "BadValue")
        for wrong in ("", "x", "0", "1" * 14, "f" * 100, taken["lease"] + "0", taken["lease"].upper() + " "):
            assert refused(server.post(path, body | {"lease": wrong})) == (409, "NotTaken")
        assert tube.peek(id).status == "t"
        assert server.post(path, body | {"lease": taken["lease"]}).status_code == 200
        tube.truncate()
    for verb, body in SETTLES:
        id = tube.put(verb).id
        session = server.post(f"{MAIL}/take").json()["session"]
        path = f"{MAIL}/tasks/{id}/{verb}"
        assert refused(server.post(path, body | {"lease": "2f"}, penstock_session=session)) == (409, "NotTaken")
        assert server.post(path, body, penstock_session=session).status_code == 200
        tube.truncate()
    for verb in ("bury", "cancel"):
        id = tube.put(verb).id
        server.post(f"{MAIL}/take")
        assert server.post(f"{MAIL}/tasks/{id}/{verb}").status_code == 200


@EVERY_STORE
def test_commands_that_show(server: Serving, direct: penstock.Broker) -> None:
    tube = direct.tube("mail")
    tube.put_many(range(5))
    tube.bury(2)
    ids = [task["id"] for task in server.get(f"{MAIL}/tasks?limit=2&after=1").json()["tasks"]]
    assert ids == [2, 3]
    assert [task["id"] for task in server.get(f"{MAIL}/tasks?status=!").json()["tasks"]] == [2]
    assert server.get(f"{MAIL}/tasks/2").json()["status"] == "!"
    assert refused(server.get(f"{MAIL}/tasks/99")) == (404, "NotFound")
    assert refused(server.client.delete(f"{MAIL}/tasks/99")) == (404, "NotFound")
    assert refused(server.get("/api/tubes/none")) == (404, "NoSuchTube")
    assert refused(server.post("/api/tubes/none/take")) == (404, "NoSuchTube")


@EVERY_STORE
def test_a_blocked_take_is_woken_by_a_put(server: Serving, direct: penstock.Broker) -> None:
    tube = direct.tube("mail")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(server.post, f"{MAIL}/take", {"timeout": PATIENCE})
        until(lambda: waiters(direct, "mail") == 1)
        tube.put("late")
        assert waiting.result(PATIENCE).json()["data"] == "late"


@EVERY_STORE
def test_a_blocked_take_over_several_tubes(server: Serving, direct: penstock.Broker) -> None:
    direct.tube("urgent")
    direct.tube("mail").put(1)
    assert server.post("/api/take", {"tubes": ["urgent", "mail"]}).json()["tube"] == "mail"
    assert server.post("/api/take", {"tubes": ["urgent", "mail"]}).status_code == 204


@EVERY_STORE
def test_a_client_that_disconnects_in_a_blocked_take_takes_nothing(server: Serving, direct: penstock.Broker) -> None:
    tube = direct.tube("mail")
    head = (
        f"POST {MAIL}/take HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 15\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", httpx.URL(server.url).port or 0)) as hasty:
        hasty.sendall(head.encode() + b'{"timeout": 50}')
        until(lambda: waiters(direct, "mail") == 1)
    until(lambda: waiters(direct, "mail") == 0)
    tube.put(1)
    assert tube.peek(1).status == "r"
    assert tube.peek(1).attempts == 0


def test_many_blocked_takes_need_no_thread_each(server: Serving, direct: penstock.Broker) -> None:
    tube = direct.tube("mail")
    threads = threading.active_count()
    with ThreadPoolExecutor(30) as pool:
        clients = [httpx.Client(base_url=server.url, timeout=PATIENCE) for _ in range(30)]
        waiting = [pool.submit(client.post, f"{MAIL}/take", json={"timeout": PATIENCE}) for client in clients]
        until(lambda: server.in_loop(lambda: server.app.access._own.busy) == 30)
        assert threading.active_count() <= threads + 30 + 6  # those of the test's own clients
        tube.put_many(range(30))
        assert sorted(each.result(PATIENCE).json()["id"] for each in waiting) == list(range(1, 31))
        for client in clients:
            client.close()


@EVERY_STORE
def test_addresses_and_outcomes(server: Serving) -> None:
    assert server.post(f"{MAIL}/tasks", {"data": 1, "address": "a"}).status_code == 201
    assert refused(server.post(f"{MAIL}/tasks", {"data": 1, "address": "a"})) == (409, "DuplicateAddress")
    assert server.post(f"{MAIL}/wait", {"address": "a"}).status_code == 204
    lease = server.post(f"{MAIL}/take").json()["lease"]
    server.post(f"{MAIL}/tasks/1/ack", {"result": {"ok": True}, "lease": lease})
    done = server.post(f"{MAIL}/wait", {"address": "a", "timeout": 1}).json()
    assert done == {"status": "done", "result": {"ok": True}, "error": None, "code": None}


@EVERY_STORE
def test_a_full_tube_refuses_or_waits(server: Serving) -> None:
    server.post("/api/tubes", {"name": "small", "capacity": 1})
    assert server.post("/api/tubes/small/tasks", {"data": 1}).status_code == 201
    assert refused(server.post("/api/tubes/small/tasks", {"data": 2})) == (409, "TubeFull")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(server.post, "/api/tubes/small/tasks", {"data": 2, "timeout": PATIENCE})
        lease = server.post("/api/tubes/small/take").json()["lease"]
        server.post("/api/tubes/small/tasks/1/ack", {"lease": lease})
        assert waiting.result(PATIENCE).status_code == 201


@EVERY_STORE
def test_ids_of_the_other_kinds_are_text(server: Serving) -> None:
    server.post("/api/tubes", {"name": "feeds", "kind": "round", "period": 1})
    assert server.post("/api/tubes/feeds/tasks", {"data": 1, "id": "a/b c"}).json()["id"] == "a/b c"
    assert server.get("/api/tubes/feeds/tasks/a%2Fb%20c").json()["id"] == "a/b c"
    assert server.client.delete("/api/tubes/feeds/tasks/a%2Fb%20c").status_code == 204
    server.post("/api/tubes", {"name": "log", "kind": "reliable"})
    id = server.post("/api/tubes/log/tasks", {"data": 1}).json()["id"]
    assert server.get("/api/tubes/log/inspect").json()["tasks"][0]["id"] == id
    assert server.post("/api/tubes/log/take").json()["id"] == id
    recovered = server.post("/api/tubes/log/recover", {"count": 5, "elapsed": 0}).json()["tasks"]
    assert [task["id"] for task in recovered] == [id]
    assert server.post("/api/tubes/log/ack", {"ids": [id, "1-1"]}).json() == {"acked": [id]}


@EVERY_STORE
def test_cancel_ends_a_task_in_any_state(server: Serving, direct: penstock.Broker) -> None:
    tube = direct.tube("mail")
    for address in ("ready", "taken", "with/slash ü?"):
        tube.put(address, address=address)
    task = tube.take(0)
    assert task is not None
    for id in (1, 2):
        cancelled = server.post(f"{MAIL}/tasks/{id}/cancel", {"reason": "too late"})
        assert (cancelled.status_code, cancelled.json()) == (200, {"id": id, "tube": "mail"})
    assert tube.wait("ready", 0) == tube.wait("taken", 0) == penstock.Outcome("cancelled", error="too late")
    assert refused(server.post(f"{MAIL}/tasks/1/cancel")) == (404, "NotFound")
    assert refused(server.post(f"{MAIL}/tasks/x/cancel")) == (400, "BadValue")
    path = f"{MAIL}/addresses/{quote('with/slash ü?')}"
    assert server.get(path).json()["id"] == 3
    assert server.get(path.replace("/slash", "%2Fslash")).json()["address"] == "with/slash ü?"
    assert server.post(f"{path}/cancel").json() == {"id": 3, "tube": "mail"}
    for answer in (server.get(path), server.post(f"{path}/cancel"), server.client.delete(path)):
        assert refused(answer) == (404, "NotFound")
    tube.put("again", address="again")
    assert server.client.delete(f"{MAIL}/addresses/again").status_code == 204
    assert tube.wait("again", 0).status == "deleted"
    direct.tube("feeds", "round", period=1).put(1, id="a")
    assert refused(server.get("/api/tubes/feeds/addresses/a")) == (400, "UnsupportedOption")
    assert refused(server.post("/api/tubes/feeds/tasks/a/cancel")) == (400, "UnsupportedOption")


def test_a_task_shows_the_attempts_that_failed(server: Serving, store_url: str) -> None:
    app = penstock.App(store_url)

    @app.task(tube="mail", max_attempts=1)
    def send(to: str) -> None:
        raise ValueError("<b>no mailbox</b>")

    handle = send.put("ada")
    run_queued(app, raises=False)
    app.close()
    (error,) = server.get(f"{MAIL}/tasks/{handle.id}").json()["errors"]
    assert (error["attempt"], error["error"]) == (1, "ValueError: <b>no mailbox</b>")
    assert "Traceback" in error["traceback"]
    assert "errors" not in server.get(f"{MAIL}/tasks").json()["tasks"][0]
    page = httpx.get(f"{server.url}/tubes/mail/tasks/{handle.id}", timeout=PATIENCE).text
    assert "Failed attempts" in page
    assert "ValueError: &lt;b&gt;no mailbox&lt;/b&gt;" in page
