"""OpenTelemetry, if installed: a task carries the trace context of its put, and its handler continues the trace."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opentelemetry.trace import Span

# The key of the trace context in a task's data, next to `task` and `args`.
TRACE = "trace"


class PutSpan:
    """The span of a put, as a child of the current span, and the trace context that its tasks carry.

    Does nothing if there is no current span.
    """

    __slots__ = ("_span", "fields")

    def __init__(self, name: str, tube: str, count: int) -> None:
        self._span: Span | None = None
        #: Fields to add to the data of the tasks: the trace context, or nothing.
        self.fields: dict[str, object] = {}
        if "opentelemetry.trace" not in sys.modules:  # not imported, so there is no current span
            return
        from opentelemetry import propagate, trace

        if not trace.get_current_span().get_span_context().is_valid:
            return
        facts: dict[str, str | int] = {**_facts(name, tube), "messaging.batch.message_count": count}
        tracer = trace.get_tracer("penstock")
        self._span = tracer.start_span(f"put {name}", kind=trace.SpanKind.PRODUCER, attributes=facts)
        carrier: dict[str, str] = {}
        propagate.inject(carrier, trace.set_span_in_context(self._span))
        if carrier:
            self.fields[TRACE] = carrier

    def __enter__(self) -> PutSpan:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._span is None:
            return
        if error is not None:
            self._span.record_exception(error)
        self._span.end()


def _facts(name: str, tube: str) -> dict[str, str]:
    return {"messaging.system": "penstock", "messaging.destination.name": tube, "penstock.task": name}


def is_traced(data: Mapping[str, object]) -> bool:
    """Whether the run of a task has a span: its put had one, or it is a tick of a schedule, which starts a trace."""
    return TRACE in data or ("tick" in data and "opentelemetry.trace" in sys.modules)


@contextmanager
def continued(data: Mapping[str, object], tube: str, id: object) -> Iterator[None]:
    """Run the block in a span: a child of the span of its put, or a new trace for a tick. Does nothing otherwise."""
    carrier = data.get(TRACE, {}) if is_traced(data) else None
    if not isinstance(carrier, dict) or not all(isinstance(value, str) for value in carrier.values()):
        yield
        return
    try:
        from opentelemetry import propagate, trace
    except ImportError:
        yield
        return
    name = str(data.get("task"))
    facts = {**_facts(name, tube), "messaging.message.id": str(id)}
    with trace.get_tracer("penstock").start_as_current_span(
        f"run {name}", propagate.extract(carrier), trace.SpanKind.CONSUMER, facts
    ):
        yield
