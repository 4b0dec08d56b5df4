"""A connection to one queue of RabbitMQ. The only module that knows the driver, pika.

Its I/O runs in a separate thread, so that heartbeats are answered while the caller waits for the store.
"""

from __future__ import annotations

import logging
import queue
import ssl
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

import msgspec
import pika
import pika.exceptions

from penstock.amqp.message import Message
from penstock.errors import BadValue, PenstockError
from penstock.transfer.move import shown_url

# Timeouts in seconds: for connecting, an answer, the confirms of a batch, and closing.
CONNECT_SECONDS, ANSWER_SECONDS, CONFIRM_SECONDS, CLOSE_SECONDS = 10.0, 30.0, 30.0, 5.0
HEARTBEAT_SECONDS = 30
PORTS = {"amqp": 5672, "amqps": 5671}
UNCONFIRMED = "RabbitMQ did not confirm it"
_TLS_FILES = ("cacertfile", "certfile", "keyfile")


class ConnectionLost(PenstockError):
    """RabbitMQ cannot be reached, refused a request, or closed the connection."""


class Server(msgspec.Struct, frozen=True):
    """Where RabbitMQ is, from a URL. `shown` has no password."""

    shown: str
    parts: SplitResult
    parameters: dict[str, str]

    @property
    def user(self) -> str:
        """The user to log in as."""
        return unquote(self.parts.username or "guest")

    @property
    def vhost(self) -> str:
        """The virtual host."""
        return unquote(self.parts.path[1:]) or "/"


def parse_url(url: str) -> Server:
    """Read amqp://user:password@host:port/vhost; BadValue, without the password, if it is not one."""
    try:
        parts = urlsplit(url)
        shown, parameters, _ = shown_url(url), dict(parse_qsl(parts.query)), parts.port
    except ValueError as error:
        raise BadValue(f"the AMQP URL cannot be read ({error}): give amqp://user:password@host/vhost") from None
    if parts.scheme not in PORTS or not parts.hostname:
        raise BadValue(f"{shown} is not an AMQP URL: give amqp:// or amqps://user:password@host/vhost")
    if unknown := [name for name in parameters if name not in _TLS_FILES]:
        raise BadValue(f"parameter {unknown[0]} of {shown} is unknown: use {', '.join(_TLS_FILES)}")
    if parameters and parts.scheme == "amqp":
        raise BadValue(f"{shown} names files for TLS and is not encrypted: give amqps://")
    return Server(shown, parts, parameters)


class QueueConnection:
    """A connection with one channel on one queue, for consuming or publishing. Every error is a ConnectionLost."""

    def __init__(self, server: Server, name: str, *, declare: bool = False) -> None:
        logging.getLogger("pika").setLevel(logging.CRITICAL)  # errors are raised here instead
        self.name = name
        self._server = server
        self._messages: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._answer: Future[Any] = Future()
        self._lost: ConnectionLost | None = None
        self._sent = 0
        self._open: dict[int, str | None] = {}  # publish number -> message id, until RabbitMQ has answered
        self._unconfirmed: dict[str | None, str] = {}  # message id -> why RabbitMQ may not have it
        self._connection = pika.SelectConnection(
            _parameters(server),
            on_open_callback=lambda connection: self._answer.set_result(connection),
            on_open_error_callback=self._closed,
            on_close_callback=self._closed,
        )
        self._thread = threading.Thread(target=self._serve, name="penstock-amqp", daemon=True)
        self._thread.start()
        try:
            self._wait(self._answer, CONNECT_SECONDS)
            self._channel = self._open_channel()
            self._find_queue(declare)
        except BaseException:
            self.close()
            raise

    # Called in the caller's thread.

    def consume(self, prefetch: int) -> None:
        """Start receiving messages, with at most `prefetch` unacked ones."""
        self._messages = queue.SimpleQueue()
        self._ask(lambda done: self._channel.basic_qos(prefetch_count=prefetch, callback=done))
        self._channel.add_on_cancel_callback(lambda _: self._end("RabbitMQ cancelled the consumer"))
        self._ask(lambda done: self._channel.basic_consume(self.name, self._received, callback=done))

    def receive(self, most: int, timeout: float) -> list[Message]:
        """Return up to `most` messages; wait up to `timeout` seconds, but only for the first."""
        received: list[Message] = []
        with suppress(queue.Empty):
            while len(received) < most:
                message = self._messages.get_nowait() if received else self._messages.get(timeout=timeout)
                if message is None:
                    break
                received.append(message)
        self.check()
        return received

    def ack(self, message: Message) -> None:
        """Ack this message and all earlier ones."""
        self._run(partial(self._channel.basic_ack, message.tag, multiple=True))

    def reject(self, message: Message) -> None:
        """Send this message to the queue's dead-letter exchange; RabbitMQ drops it if there is none."""
        self._run(partial(self._channel.basic_reject, message.tag, requeue=False))

    def confirm(self) -> None:
        """Enable publisher confirms."""
        self._channel.add_on_return_callback(self._returned)
        self._ask(lambda done: self._channel.confirm_delivery(self._confirmed, done))

    def publish(self, messages: Sequence[Message]) -> list[str | None]:
        """Publish to the queue. Returns None for each message that RabbitMQ has confirmed, otherwise the reason."""
        self._unconfirmed = {message.message_id: UNCONFIRMED for message in messages}
        try:
            self._ask(lambda done: self._publish(messages), CONFIRM_SECONDS)
        except ConnectionLost as error:
            self._end(error)  # late confirms would be counted for the next batch
        left = dict(self._unconfirmed)
        return [left.get(message.message_id) for message in messages]

    def check(self) -> None:
        """Raise ConnectionLost if the connection has ended."""
        if self._lost is not None:
            raise self._lost

    def close(self) -> None:
        """End the connection; messages that were not acked return to the queue."""
        self._run(self._shut)
        self._thread.join(CLOSE_SECONDS)  # a daemon thread: if RabbitMQ does not answer, it ends with the program
        if not self._thread.is_alive():
            self._connection.ioloop.close()

    def _open_channel(self) -> Any:
        channel = self._ask(lambda done: self._connection.channel(on_open_callback=done))
        channel.add_on_close_callback(lambda _, error: self._end(error))
        return channel

    def _find_queue(self, declare: bool) -> None:
        """Raise ConnectionLost if the queue is missing, or declare it."""
        try:
            self._ask(lambda done: self._channel.queue_declare(self.name, passive=True, callback=done))
        except ConnectionLost as error:
            if not declare or not isinstance(error.__cause__, pika.exceptions.ChannelClosedByBroker):
                raise
            self._lost = None
            self._channel = self._open_channel()
            self._ask(lambda done: self._channel.queue_declare(self.name, durable=True, callback=done))

    def _ask(self, start: Callable[[Callable[..., None]], object], seconds: float = ANSWER_SECONDS) -> Any:
        """Run `start(done)` in the I/O thread, and wait until `done` is called. Returns its argument."""
        answer = self._answer = Future[Any]()
        self.check()

        def done(given: object = None) -> None:
            if not answer.done():
                answer.set_result(given)

        self._run(lambda: start(done))
        return self._wait(answer, seconds)

    def _wait(self, answer: Future[Any], seconds: float) -> Any:
        try:
            return answer.result(seconds)
        except TimeoutError:
            raise ConnectionLost(f"RabbitMQ at {self._server.shown} did not answer within {seconds:g} s") from None

    # Called in the I/O thread.

    def _run(self, step: Callable[[], object]) -> None:
        def guarded() -> None:
            try:
                step()
            except pika.exceptions.AMQPError as error:  # the loop must keep running, to close the connection
                self._end(error)

        self._connection.ioloop.add_callback_threadsafe(guarded)

    def _serve(self) -> None:
        try:
            self._connection.ioloop.start()
        except Exception as error:
            self._end(error)

    def _shut(self) -> None:
        if self._connection.is_closed:
            self._connection.ioloop.stop()
        elif not self._connection.is_closing:
            self._connection.close()

    def _closed(self, connection: object, error: object) -> None:
        self._end(error)
        self._connection.ioloop.stop()

    def _received(self, channel: object, method: Any, properties: Any, body: bytes) -> None:
        self._messages.put(
            Message(
                body, properties.message_id, properties.content_type, properties.content_encoding,
                properties.priority, properties.expiration, properties.reply_to, properties.headers,
                method.delivery_tag,
            )
        )  # fmt: skip

    def _publish(self, messages: Sequence[Message]) -> None:
        for message in messages:
            properties = pika.BasicProperties(
                message_id=message.message_id, content_type=message.content_type, priority=message.priority,
                expiration=message.expiration, delivery_mode=pika.DeliveryMode.Persistent.value,
            )  # fmt: skip
            self._sent += 1
            self._open[self._sent] = message.message_id
            self._channel.basic_publish("", self.name, message.body, properties, mandatory=True)

    def _returned(self, channel: object, method: Any, properties: Any, body: bytes) -> None:
        """Record a message that RabbitMQ could not route: it returns the message, and then confirms it."""
        self._unconfirmed[properties.message_id] = f"RabbitMQ returned it: {method.reply_text}"

    def _confirmed(self, frame: Any) -> None:
        last, is_ack = frame.method.delivery_tag, frame.method.NAME == "Basic.Ack"
        for tag in [tag for tag in self._open if tag <= last] if frame.method.multiple else [last]:
            id = self._open.pop(tag)
            if not is_ack:
                self._unconfirmed[id] = "RabbitMQ refused it: the queue is full, or cannot store it"
            elif self._unconfirmed[id] == UNCONFIRMED:
                del self._unconfirmed[id]
        if not self._open and not self._answer.done():
            self._answer.set_result(None)

    def _end(self, error: object) -> None:
        """Remember why the connection ended, and wake the caller."""
        if self._lost is None:
            self._lost = _explained(error, self._server, self.name)
        if not self._answer.done():
            self._answer.set_exception(self._lost)
        self._messages.put(None)


def _parameters(server: Server) -> pika.ConnectionParameters:
    parts, files = server.parts, server.parameters
    tls = None
    if parts.scheme == "amqps":
        try:
            context = ssl.create_default_context(cafile=files.get("cacertfile"))
            if "certfile" in files:
                context.load_cert_chain(files["certfile"], files.get("keyfile"))
        except OSError as error:
            raise BadValue(f"the TLS files of {server.shown} cannot be read ({error}): check their paths") from None
        tls = pika.SSLOptions(context, parts.hostname)
    return pika.ConnectionParameters(
        host=parts.hostname,
        port=parts.port or PORTS[parts.scheme],
        virtual_host=server.vhost,
        credentials=pika.PlainCredentials(server.user, unquote(parts.password or "guest"), erase_on_connect=True),
        heartbeat=HEARTBEAT_SECONDS,
        ssl_options=tls,
        socket_timeout=CONNECT_SECONDS,
        stack_timeout=CONNECT_SECONDS,
        client_properties={"connection_name": "penstock bridge"},
    )


def _explained(error: object, server: Server, name: str) -> ConnectionLost:
    """The error as a ConnectionLost with a remedy, if RabbitMQ gives a reason."""
    if isinstance(error, ConnectionLost):
        return error
    cause = _root_cause(error) if isinstance(error, BaseException) else None
    code, text = getattr(cause, "reply_code", 0), getattr(cause, "reply_text", "") or str(cause or error)
    if isinstance(cause, pika.exceptions.ProbableAuthenticationError):
        message = f"{server.shown} refused the login of {server.user}: check user and password in the URL"
    elif isinstance(cause, pika.exceptions.ProbableAccessDeniedError):
        message = f"{server.shown} refused vhost {server.vhost} to {server.user}: check the vhost at the end of the URL"
    elif code == 404:
        message = f"queue {name} does not exist at {server.shown}: create it, or give --declare"
    elif code in (403, 405):
        message = (
            f"{server.shown} refused queue {name} to {server.user} ({text}): grant the permission, or use another user"
        )
    elif isinstance(cause, OSError):
        message = (
            f"{server.shown} cannot be reached ({cause.strerror or cause}): start RabbitMQ, or check host and port"
        )
    else:
        message = f"{server.shown} closed the connection ({text})"
    lost = ConnectionLost(message)
    lost.__cause__ = cause
    return lost


def _root_cause(error: BaseException) -> BaseException:
    """The innermost cause of a driver error."""
    inner = [*getattr(error, "exceptions", ()), getattr(error, "exception", None), *error.args]
    found = next((each for each in reversed(inner) if isinstance(each, BaseException)), None)
    return error if found is None else _root_cause(found)
