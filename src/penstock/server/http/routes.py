"""The table of all operations of the API."""

from __future__ import annotations

from penstock.server.auth import Role
from penstock.server.http import api_tasks, api_tubes
from penstock.server.http.operations import Operation

_TUBE = "/api/tubes/{name}"
# Callers choose the ids of round tubes, which may contain a slash; so verbs come before the bare path.
_TASK = _TUBE + "/tasks/{id:path}"
_ADDRESS = _TUBE + "/addresses/{address:path}"
_GROUP = _TUBE + "/groups/{group}"
_SCHEDULE = "/api/schedules/{key}"
READ, OPERATE, ADMIN = Role.READ, Role.OPERATE, Role.ADMIN

OPERATIONS = (
    Operation("GET", "/api/tubes", READ, api_tubes.list_tubes),
    Operation("POST", "/api/tubes", ADMIN, api_tubes.create_tube, 201),
    Operation("GET", _TUBE, READ, api_tubes.show_tube),
    Operation("DELETE", _TUBE, ADMIN, api_tubes.drop),
    Operation("GET", _TUBE + "/stats", READ, api_tubes.stats),
    Operation("POST", _TUBE + "/truncate", ADMIN, api_tubes.truncate),
    Operation("POST", _TUBE + "/release_all", ADMIN, api_tubes.release_all),
    Operation("POST", _TUBE + "/pause", ADMIN, api_tubes.pause),
    Operation("POST", _TUBE + "/resume", ADMIN, api_tubes.resume),
    Operation("POST", _TUBE + "/kick", OPERATE, api_tubes.kick),
    Operation("POST", _TUBE + "/wait", READ, api_tubes.wait_for),
    Operation("GET", _TUBE + "/tasks", READ, api_tasks.list_tasks),
    Operation("POST", _TUBE + "/tasks", OPERATE, api_tasks.put, 201),
    Operation("POST", _TUBE + "/tasks/batch", OPERATE, api_tasks.put_many, 201),
    Operation("POST", _TUBE + "/take", OPERATE, api_tasks.take),
    Operation("POST", _TUBE + "/ack", OPERATE, api_tasks.ack_many),
    Operation("POST", _TUBE + "/recover", OPERATE, api_tasks.recover),
    Operation("GET", _TUBE + "/inspect", READ, api_tasks.inspect),
    Operation("GET", _TASK + "/why", READ, api_tasks.why),
    Operation("POST", _TASK + "/ack", OPERATE, api_tasks.ack),
    Operation("POST", _TASK + "/release", OPERATE, api_tasks.release),
    Operation("POST", _TASK + "/touch", OPERATE, api_tasks.touch),
    Operation("POST", _TASK + "/fail", OPERATE, api_tasks.fail),
    Operation("POST", _TASK + "/bury", OPERATE, api_tasks.bury),
    Operation("POST", _TASK + "/cancel", OPERATE, api_tasks.cancel),
    Operation("POST", _TASK + "/kick", OPERATE, api_tasks.kick_one),
    Operation("POST", _TASK + "/retry", OPERATE, api_tasks.retry),
    Operation("GET", _TASK, READ, api_tasks.peek),
    Operation("DELETE", _TASK, OPERATE, api_tasks.delete),
    Operation("POST", _ADDRESS + "/cancel", OPERATE, api_tasks.cancel_address),
    Operation("GET", _ADDRESS, READ, api_tasks.peek_address),
    Operation("DELETE", _ADDRESS, OPERATE, api_tasks.delete_address),
    Operation("GET", _TUBE + "/groups", READ, api_tubes.list_groups),
    Operation("GET", _GROUP, READ, api_tubes.show_group),
    Operation("POST", _GROUP + "/start", OPERATE, api_tubes.start_group),
    Operation("POST", _GROUP + "/cancel", OPERATE, api_tubes.cancel_group),
    Operation("POST", _GROUP + "/on_end", OPERATE, api_tubes.set_end_work),
    Operation("POST", _GROUP + "/on_cancel", OPERATE, api_tubes.set_cancel_work),
    Operation("POST", _GROUP + "/wait", READ, api_tubes.wait_group),
    Operation("POST", "/api/take", OPERATE, api_tasks.take_first),
    Operation("GET", "/api/schedules", READ, api_tubes.list_schedules),
    Operation("POST", _SCHEDULE + "/run", OPERATE, api_tubes.run_schedule, 201),
    Operation("POST", _SCHEDULE + "/pause", OPERATE, api_tubes.pause_schedule),
    Operation("POST", _SCHEDULE + "/resume", OPERATE, api_tubes.resume_schedule),
    Operation("DELETE", _SCHEDULE, OPERATE, api_tubes.forget_schedule),
    Operation("GET", "/api/sessions", READ, api_tubes.list_sessions),
    Operation("POST", "/api/sessions", OPERATE, api_tubes.begin_session, 201),
    Operation("DELETE", "/api/sessions/{id}", OPERATE, api_tubes.end_session),
    Operation("POST", "/api/check", ADMIN, api_tubes.check),
    Operation("GET", "/health", None, api_tubes.health),
    Operation("GET", "/ready", None, api_tubes.ready),
)
