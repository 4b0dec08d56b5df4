"""OpenTelemetry: the context of a put goes with its task, and the handler continues it, where the package is there."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

# Where a task keeps it, beside its name and arguments.
TRACE = "trace"


def carried() -> dict[str, str] | None:
    """What a task keeps of the context that it is put in; None outside of any span."""
    if "opentelemetry.trace" not in sys.modules:  # nobody in this program can have begun one
        return None
    from opentelemetry import propagate, trace

    if not trace.get_current_span().get_span_context().is_valid:
        return None
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    return carrier or None


@contextmanager
def continued(data: Mapping[str, object], tube: str, id: object) -> Iterator[None]:
    """A span around a handler, below the one that its task was put in; without a context, or the package, nothing."""
    carrier = data.get(TRACE)
    if not isinstance(carrier, dict) or not all(isinstance(value, str) for value in carrier.values()):
        yield
        return
    try:
        from opentelemetry import propagate, trace
    except ImportError:
        yield
        return
    facts = {"messaging.system": "penstock", "messaging.destination.name": tube, "messaging.message.id": str(id)}
    with trace.get_tracer("penstock").start_as_current_span(
        f"run {data.get('task')}", propagate.extract(carrier), trace.SpanKind.CONSUMER, facts
    ):
        yield
