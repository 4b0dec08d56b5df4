"""Charts of tasks and rates, as SVG paths, so that pages show them without JavaScript."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from penstock.server.http.history import DAY, HOUR
from penstock.server.http.sampler import RATES, STATES, Point

# The size of the SVG view box; pages stretch it to the available width and height.
WIDTH, HEIGHT = 1000, 100
# Rates that are drawn: the first ones of a point.
DRAWN_RATES = RATES[:3]


class Span(NamedTuple):
    """The time that charts cover."""

    name: str
    seconds: int
    label: str


LIVE = Span("", 120, "2 min")
SPANS = {span.name: span for span in (LIVE, Span("1h", HOUR, "1 h"), Span("24h", DAY, "24 h"))}


class Line(NamedTuple):
    """One series: its newest value and, for each stretch without a gap, the SVG paths of the line and the area."""

    name: str
    newest: float | None
    paths: list[tuple[str, str]]


class Chart(NamedTuple):
    """Several series over the same time. `points` has the values that the script shows under the pointer."""

    id: str
    title: str
    unit: str
    top: float
    lines: list[Line]
    points: list[Point]


def make_charts(points: Sequence[Point], span: Span, until: float) -> list[Chart]:
    """The charts of a page, tasks by state and rates, over the span that ends at `until`."""
    recent = [point for point in points if point[0] > until - span.seconds]
    depths = [point[: 1 + len(STATES)] for point in recent]
    first = 1 + len(STATES)
    rates = [(point[0], *point[first : first + len(DRAWN_RATES)]) for point in recent]
    return [
        _chart("depth", "Depth", "", STATES, depths, span, until),
        _chart("rates", "Rates", "/s", DRAWN_RATES, rates, span, until),
    ]


def _chart(
    id: str, title: str, unit: str, series: Sequence[str], points: list[Point], span: Span, until: float
) -> Chart:
    top = _round_up(max((value for point in points for value in point[1:]), default=0))
    stretches = list(_stretches(points, max(15.0, span.seconds / 40)))
    xs = [[round((1 - (until - point[0]) / span.seconds) * WIDTH, 1) for point in stretch] for stretch in stretches]
    lines = []
    for column, name in enumerate(series, 1):
        paths = []
        for stretch, x in zip(stretches, xs, strict=True):
            y = (round((1 - point[column] / top) * HEIGHT, 1) for point in stretch)
            path = "M" + "L".join(f"{left:g} {low:g}" for left, low in zip(x, y, strict=True))
            paths.append((path, f"{path}V{HEIGHT}H{x[0]:g}Z"))
        lines.append(Line(name, points[-1][column] if points else None, paths))
    return Chart(id, title, unit, top, lines, points)


def _stretches(points: Sequence[Point], gap: float) -> Iterator[list[Point]]:
    """The points, split at gaps: no history is written while no server runs. A stretch has at least two points."""
    stretch: list[Point] = []
    for point in points:
        if stretch and point[0] - stretch[-1][0] > gap:
            if len(stretch) > 1:
                yield stretch
            stretch = []
        stretch.append(point)
    if len(stretch) > 1:
        yield stretch


def _round_up(value: float) -> float:
    """A round number at or above the value, so that the scale seldom changes."""
    if value <= 4:
        return 4
    step = 10.0 ** math.floor(math.log10(value))
    return next(n * step for n in (1, 2, 4, 5, 8, 10) if n * step >= value)
