"""Tubes, groups, sessions and the store over HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator

import httpx
import pytest

import penstock
from penstock.app.schedules import declared
from penstock.schedule import schedule_status
from penstock.schedule.schedule_status import SCHEDULE_TUBE
from penstock.server.http import store_access as access
from tests.server.http.server_thread import EVERY_STORE, PATIENCE, Serving
from tests.server.http.test_tasks import MAIL, refused
from tests.support.threads import until


def test_tubes_are_created_listed_shown_and_dropped(server: Serving) -> None:
    made = server.post("/api/tubes", {"name": "mail", "kind": "utubettl", "ttr": 60, "backoff": {"base": 2}})
    assert made.status_code == 201
    assert refused(server.post("/api/tubes", {"name": "mail"})) == (409, "TubeExists")
    (listed,) = server.get("/api/tubes").json()
    assert (listed["name"], listed["kind"], listed["options"]["ttr"]) == ("mail", "utubettl", 60)
    assert listed["options"]["backoff"]["base"] == 2
    shown = server.get(MAIL).json()
    assert shown["paused"] is False
    assert shown["stats"]["tasks"]["total"] == 0
    assert server.client.delete(MAIL).status_code == 204
    assert refused(server.get(MAIL)) == (404, "NoSuchTube")


@EVERY_STORE
def test_metrics_and_stats_agree_on_what_is_due_without_a_taker(server: Serving, direct: penstock.Broker) -> None:
    delayed, old = direct.tube("delayed"), direct.tube("old")
    delayed.put_many(range(50), delay=0.1)
    old.put_many(range(40), ttl=0.1)

    def settled() -> bool:
        counts = [tube.runtime.store.counters(tube.stored).counts for tube in (delayed, old)]
        return counts[0].ready == 50 and counts[1].stored == 0

    until(settled, PATIENCE)
    lines = server.get("/metrics").text.splitlines()
    assert 'penstock_tasks{state="ready",tube="delayed"} 50.0' in lines
    assert 'penstock_tasks{state="delayed",tube="delayed"} 0.0' in lines
    assert 'penstock_done_total{tube="old"} 40.0' in lines


@EVERY_STORE
def test_a_tube_that_was_dropped_and_made_again_is_found(server: Serving, direct: penstock.Broker) -> None:
    assert server.post(f"{MAIL}/tasks", {"data": 1}).json()["id"] == 1
    direct.tube("mail").drop()
    direct.create_tube("mail", "fifo").put("new")
    assert server.post(f"{MAIL}/take").json()["data"] == "new"


@EVERY_STORE
def test_commands_that_change_tubes(server: Serving, direct: penstock.Broker) -> None:
    tube = direct.tube("mail")
    tube.put_many([1, 2])
    assert server.post(f"{MAIL}/pause").status_code == 204
    assert server.get(MAIL).json()["paused"] is True
    assert server.post(f"{MAIL}/take").status_code == 204
    assert server.post(f"{MAIL}/resume").status_code == 204
    assert server.post(f"{MAIL}/take").status_code == 200
    assert refused(server.client.delete(MAIL)) == (409, "TubeBusy")
    assert server.post(f"{MAIL}/release_all").json() == {"count": 1}
    assert server.post(f"{MAIL}/truncate").json() == {"count": 2}
    assert server.get(f"{MAIL}/stats").json()["tasks"]["done"] == 2
    assert server.post("/api/check", {"repair": False}).json() == []


@EVERY_STORE
def test_schedules(server: Serving, direct: penstock.Broker) -> None:
    assert server.get("/api/schedules").json() == []
    app = penstock.App()

    @app.every(3600)
    def collect() -> None: ...

    saved, [schedule] = direct.tube(SCHEDULE_TUBE), declared(app.schedules)
    schedule_status.save(saved, [schedule.record(saved)])
    own = f"/api/schedules/{schedule.key}"
    (listed,) = server.get("/api/schedules").json()
    assert (listed["plan"], listed["paused"], listed["next"] % 3600) == ("every 3600 s", False, 0)
    ran = server.post(f"{own}/run")
    assert (ran.status_code, ran.json()["status"], ran.json()["tube"]) == (201, "r", SCHEDULE_TUBE)
    assert server.post(f"{own}/pause").status_code == 204
    assert server.get("/api/schedules").json()[0] | {"next": 0} == listed | {"paused": True, "next": 0}
    assert server.post(f"{own}/resume").status_code == 204
    assert server.client.delete(own).status_code == 204
    assert refused(server.post(f"{own}/run")) == (404, "NotFound")
    assert server.get("/api/schedules").json() == []


@EVERY_STORE
def test_groups(server: Serving) -> None:
    group = f"{MAIL}/groups/g"
    server.post(f"{MAIL}/tasks", {"data": 1, "group": "g"})
    assert server.post(f"{group}/on_end", {"data": "end"}).status_code == 204
    assert server.get(group).json() == {"name": "g", "state": "open", "done": 0, "total": 1}
    assert server.post(f"{group}/wait").status_code == 204
    assert server.post(f"{group}/start").status_code == 204
    assert [each["state"] for each in server.get(f"{MAIL}/groups").json()] == ["started"]
    lease = server.post(f"{MAIL}/take").json()["lease"]
    server.post(f"{MAIL}/tasks/1/ack", {"lease": lease})
    assert refused(server.get(group)) == (404, "NotFound")
    assert server.post(f"{group}/wait").json() == {"name": "g", "state": "done", "done": 1, "total": 1}
    assert refused(server.post(f"{MAIL}/groups/other/wait")) == (404, "NotFound")
    assert server.post(f"{MAIL}/take").json()["data"] == "end"


@EVERY_STORE
def test_a_session_is_opened_named_and_closed(server: Serving, direct: penstock.Broker) -> None:
    direct.tube("mail").put(1)
    id = server.post("/api/sessions", {"ttr": 0}).json()["session"]
    taken = server.post(f"{MAIL}/take", {}, penstock_session=id)
    assert taken.json()["session"] == id
    lease = taken.json()["lease"]
    assert refused(server.post(f"{MAIL}/tasks/1/ack", {"lease": lease})) == (409, "NotTaken")
    assert [held for each in server.get("/api/sessions").json() for held in each["held"]] == [["mail", 1]]
    assert server.client.delete(f"/api/sessions/{id}").status_code == 204
    assert direct.tube("mail").peek(1).status == "r"
    assert refused(server.post(f"{MAIL}/take", {}, penstock_session=id)) == (404, "NotFound")
    assert refused(server.client.delete(f"/api/sessions/{id}")) == (404, "NotFound")


@EVERY_STORE
def test_a_session_of_another_program_is_joined(server: Serving, direct: penstock.Broker) -> None:
    tube = direct.tube("mail")
    tube.put(1)
    with direct.session(ttr=60) as session:
        assert session.take(["mail"], 0) is not None
    assert server.post(f"{MAIL}/tasks/1/ack", {}, penstock_session=session.id).status_code == 200


def test_a_session_that_nobody_names_ends(server: Serving, direct: penstock.Broker) -> None:
    direct.tube("mail").put(1)
    id = server.post("/api/sessions", {"idle": 1}).json()["session"]
    server.post(f"{MAIL}/take", {}, penstock_session=id)
    until(lambda: direct.tube("mail").peek(1).status == "r")
    assert id not in [each.id for each in direct.sessions()]


@pytest.mark.parametrize("id", ["unknown", "../x", "a b", "x" * 300])
def test_an_unknown_session_is_refused(server: Serving, id: str) -> None:
    status, _ = refused(server.post(f"{MAIL}/tasks", {"data": 1}, penstock_session=id))
    assert status in (400, 404)
    assert server.get("/api/tubes").json() == []


def test_sessions_by_http_are_bounded(server: Serving) -> None:
    server.app.access._max_sessions = 2
    for _ in range(2):
        assert server.post("/api/sessions").status_code == 201
    assert refused(server.post("/api/sessions")) == (429, "TooManyRequests")


def events(lines: Iterator[str]) -> Iterator[tuple[str, dict[str, object]]]:
    name = ""
    for line in lines:
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield name, json.loads(line.removeprefix("data: "))


@EVERY_STORE
def test_events_carry_counters_and_changes(server: Serving, direct: penstock.Broker) -> None:
    direct.tube("mail").put("before")
    with server.client.stream("GET", "/api/events") as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        stream_events = events(stream.iter_lines())
        name, first = next(stream_events)
        assert name == "counters"
        assert first["tubes"]["mail"]["ready"] == 1  # type: ignore[index]
        httpx.post(f"{server.url}{MAIL}/tasks", json={"data": 1}, timeout=PATIENCE)
        httpx.post(f"{server.url}/api/tubes/new/tasks", json={"data": 1}, timeout=PATIENCE)
        seen: list[object] = []
        while len(seen) < 2:
            name, event = next(stream_events)
            seen += [event] if name == "task" else []
        assert seen == [
            {"event": "put", "tube": "mail", "id": 2, "status": "r"},
            {"event": "put", "tube": "new", "id": 1, "status": "r"},
        ]
        direct.tube("mail").put("of another program")
        counted = next(event for name, event in stream_events if name == "counters" and "mail" in event["tubes"])  # type: ignore[operator]
        assert counted["tubes"]["mail"]["ready"] in (2, 3)  # type: ignore[index]


def test_streams_are_bounded_and_end_with_the_server(server: Serving) -> None:
    server.app.streams._limit = 1
    with server.client.stream("GET", "/api/events?tube=mail") as stream:
        assert stream.status_code == 200
        lines = stream.iter_lines()
        next(lines)
        assert refused(server.get("/api/events")) == (503, "ServiceUnavailable")
        server.in_loop(server.app.stop)
        assert list(lines)[-1] == ""


@EVERY_STORE
def test_metrics(server: Serving, direct: penstock.Broker) -> None:
    server.post(f"{MAIL}/tasks/batch", {"tasks": [{"data": 1}, {"data": 2}]})
    lease = server.post(f"{MAIL}/take").json()["lease"]
    server.post(f"{MAIL}/tasks/1/ack", {"lease": lease})
    server.app.sampler.sample = type(server.app.sampler.sample)(0.0, {}, {})
    text = server.get("/metrics").text
    assert 'penstock_tasks{state="ready",tube="mail"} 1.0' in text
    assert 'penstock_calls_total{call="put",tube="mail"} 2.0' in text
    assert 'penstock_put_to_take_seconds_count{tube="mail"} 1.0' in text
    assert 'penstock_take_to_ack_seconds_bucket{le="60.0",tube="mail"} 1.0' in text
    assert "penstock_sessions 1.0" in text
    assert 'penstock_oldest_ready_seconds{tube="mail"} ' in text


def test_health_and_readiness(server: Serving) -> None:
    for path in ("/health", "/ready"):
        assert server.get(path, host="10.0.0.7:8080").json() == {"status": "ok"}


def test_idle_handles_are_bounded(server: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "MAX_HANDLES", 3)
    for number in range(5):
        server.post(f"/api/tubes/t{number}/tasks", {"data": 1})
    assert len(server.app.access._own.tubes) <= 3
