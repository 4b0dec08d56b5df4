"""The table of everything the API does."""

from __future__ import annotations

from penstock.server.auth import Role
from penstock.server.http import api_tasks as tasks
from penstock.server.http import api_tubes as tubes
from penstock.server.http.operations import Operation

_TUBE = "/api/tubes/{name}"
# Ids of round tubes are the callers', and may hold a slash; so verbs stand before the bare path.
_TASK = _TUBE + "/tasks/{id:path}"
_GROUP = _TUBE + "/groups/{group}"
_SCHEDULE = "/api/schedules/{key}"
READ, OPERATE, ADMIN = Role.READ, Role.OPERATE, Role.ADMIN

OPERATIONS = (
    Operation("GET", "/api/tubes", READ, tubes.list_tubes),
    Operation("POST", "/api/tubes", ADMIN, tubes.create_tube, 201),
    Operation("GET", _TUBE, READ, tubes.show_tube),
    Operation("DELETE", _TUBE, ADMIN, tubes.drop),
    Operation("GET", _TUBE + "/stats", READ, tubes.stats),
    Operation("POST", _TUBE + "/truncate", ADMIN, tubes.truncate),
    Operation("POST", _TUBE + "/release_all", ADMIN, tubes.release_all),
    Operation("POST", _TUBE + "/pause", ADMIN, tubes.pause),
    Operation("POST", _TUBE + "/resume", ADMIN, tubes.resume),
    Operation("POST", _TUBE + "/kick", OPERATE, tubes.kick),
    Operation("POST", _TUBE + "/wait", READ, tubes.wait_for),
    Operation("GET", _TUBE + "/tasks", READ, tasks.list_tasks),
    Operation("POST", _TUBE + "/tasks", OPERATE, tasks.put, 201),
    Operation("POST", _TUBE + "/tasks/batch", OPERATE, tasks.put_many, 201),
    Operation("POST", _TUBE + "/take", OPERATE, tasks.take),
    Operation("POST", _TUBE + "/ack", OPERATE, tasks.ack_many),
    Operation("POST", _TUBE + "/recover", OPERATE, tasks.recover),
    Operation("GET", _TUBE + "/inspect", READ, tasks.inspect),
    Operation("GET", _TASK + "/why", READ, tasks.why),
    Operation("POST", _TASK + "/ack", OPERATE, tasks.ack),
    Operation("POST", _TASK + "/release", OPERATE, tasks.release),
    Operation("POST", _TASK + "/touch", OPERATE, tasks.touch),
    Operation("POST", _TASK + "/fail", OPERATE, tasks.fail),
    Operation("POST", _TASK + "/bury", OPERATE, tasks.bury),
    Operation("POST", _TASK + "/kick", OPERATE, tasks.kick_one),
    Operation("POST", _TASK + "/retry", OPERATE, tasks.retry),
    Operation("GET", _TASK, READ, tasks.peek),
    Operation("DELETE", _TASK, OPERATE, tasks.delete),
    Operation("GET", _TUBE + "/groups", READ, tubes.list_groups),
    Operation("GET", _GROUP, READ, tubes.show_group),
    Operation("POST", _GROUP + "/start", OPERATE, tubes.start_group),
    Operation("POST", _GROUP + "/cancel", OPERATE, tubes.cancel_group),
    Operation("POST", _GROUP + "/on_end", OPERATE, tubes.set_end_work),
    Operation("POST", _GROUP + "/on_cancel", OPERATE, tubes.set_cancel_work),
    Operation("POST", _GROUP + "/wait", READ, tubes.wait_group),
    Operation("POST", "/api/take", OPERATE, tasks.take_first),
    Operation("GET", "/api/schedules", READ, tubes.list_schedules),
    Operation("POST", _SCHEDULE + "/run", OPERATE, tubes.run_schedule, 201),
    Operation("POST", _SCHEDULE + "/pause", OPERATE, tubes.pause_schedule),
    Operation("POST", _SCHEDULE + "/resume", OPERATE, tubes.resume_schedule),
    Operation("DELETE", _SCHEDULE, OPERATE, tubes.forget_schedule),
    Operation("GET", "/api/sessions", READ, tubes.list_sessions),
    Operation("POST", "/api/sessions", OPERATE, tubes.begin_session, 201),
    Operation("DELETE", "/api/sessions/{id}", OPERATE, tubes.end_session),
    Operation("POST", "/api/check", ADMIN, tubes.check),
    Operation("GET", "/health", None, tubes.health),
    Operation("GET", "/ready", None, tubes.ready),
)
