"""Converts RabbitMQ messages to tasks, and tasks to messages. Pure: knows no connection and no driver."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256

import msgspec

from penstock.core import names
from penstock.core.options import PutOptions
from penstock.core.options import Tube as StoredTube
from penstock.core.task import Task
from penstock.errors import BadValue

# AMQP's priority is one byte, where larger is more urgent: with a tube's pri of 255, all fit between 255 and 0.
MAX_PRIORITY = 255
JSON, BYTES = "application/json", "application/octet-stream"


class Message(msgspec.Struct, frozen=True):
    """One message: its body, and the properties that a task can have. `tag` is its delivery tag."""

    body: bytes
    message_id: str | None = None
    content_type: str | None = None
    content_encoding: str | None = None
    priority: int | None = None
    expiration: str | None = None
    reply_to: str | None = None
    headers: Mapping[str, object] | None = None
    tag: int = 0


def read_data(message: Message) -> object:
    """The body as task data: JSON or text if the content type says so and the body is valid, otherwise bytes."""
    kind = (message.content_type or "").partition(";")[0].strip().lower()
    if (message.content_encoding or "utf-8").lower() not in ("utf-8", "utf8"):
        return message.body
    try:
        if kind == JSON or kind.endswith("+json"):
            return msgspec.json.decode(message.body)
        return message.body.decode() if kind.startswith("text/") else message.body
    except (ValueError, RecursionError):  # the body is not what its content type says
        return message.body


def read_options(message: Message, tube: StoredTube) -> PutOptions:
    """The put options for a message: those that the tube's kind accepts."""
    options: PutOptions = {}
    if message.message_id:
        options |= {"address": address_of(message.message_id), "on_duplicate": "ignore"}
    if message.reply_to and is_tube_name(message.reply_to):
        options["reply_to"] = message.reply_to
    if message.priority and tube.kind.has("pri"):
        options["pri"] = max(0, tube.pri - message.priority)
    if (ttl := _ms(message.expiration)) is not None and tube.kind.has("ttl"):
        options["ttl"] = max(ttl, 1) / 1000  # "0" means at once, and a ttl is above 0
    # Set by RabbitMQ's delayed-message plugin, which makes it negative after the delay.
    if (delay := _ms((message.headers or {}).get("x-delay"))) is not None and tube.kind.has("delay"):
        options["delay"] = delay / 1000
    return options


def address_of(message_id: str) -> str:
    """The task's address for a message id: the id itself, or its hash if it is not a valid address."""
    try:
        return names.label("address", message_id)
    except BadValue:
        return f"sha256:{sha256(message_id.encode('utf-8', 'surrogatepass')).hexdigest()}"


def is_tube_name(text: str) -> bool:
    """Whether the text is a valid tube name."""
    try:
        names.name("tube", text)
    except BadValue:
        return False
    return True


def make_message(task: Task, base_pri: int) -> Message:
    """The message for a taken task. Its id is the same at every attempt, so that consumers can recognise duplicates."""
    plain = isinstance(task.data, bytes)
    priority = min(base_pri - task.pri, MAX_PRIORITY)
    left = None if task.expires is None else max(0, round((task.expires - task.taken) * 1000))
    return Message(
        task.data if isinstance(task.data, bytes) else msgspec.json.encode(task.data),
        message_id=task.address or f"{task.tube}-{task.id}-{round(task.created * 1000)}",
        content_type=BYTES if plain else JSON,
        priority=priority if priority > 0 else None,
        expiration=None if left is None else str(left),
    )


def _ms(value: object) -> int | None:
    """Milliseconds from a number or a text; None if it is neither, or negative."""
    try:
        number = int(value) if isinstance(value, (int, str)) else -1
    except ValueError:
        return None
    return number if number >= 0 else None
