"""Plots of the report as SVG, drawn by Vega-Lite without a browser.

Colours are CSS variables of the page, so that one drawing works in light and dark mode. Each plot is drawn wide and
narrow, because text that shrinks with its plot cannot be read on a phone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

from ledgerbeam._base.extensions import install_command
from ledgerbeam._base.redaction import printable
from ledgerbeam.errors import UsageError
from ledgerbeam.pipelines.report.data import DurationBin, HostBand, Step

WIDE, NARROW = 560, 330
HEIGHT = 220
BAR_HEIGHT = 26
LABEL_WIDTH = 150
LONG_NUMBER = 100_000  # smallest number that is written as 0.1M
FEW = 5  # largest number of tasks whose axis has a tick at every whole number
LEAST_BARS = 6  # minimum number of bars that a plot has room for, so that a single bar does not fill it
CLOCK_SECONDS = 600  # longest time axis whose ticks show seconds
NUMBERS = ",~r"
LIGHTEST = 0.12  # opacity of a step in which a host did almost nothing
LABEL_SHARE = 0.15  # minimum distance of two labels, as a share of a plot's width

_CONFIG: dict[str, Any] = {
    "aria": False,
    "font": "Helvetica, Arial, Liberation Sans, sans-serif",
    "background": None,
    "padding": {"left": 6, "right": 14, "top": 20, "bottom": 2},
    "view": {"stroke": None},
    "axis": {
        "labelColor": "var(--muted)",
        "titleColor": "var(--muted)",
        "gridColor": "var(--line)",
        "domainColor": "var(--line)",
        "tickColor": "var(--line)",
        "labelFontSize": 12,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
        "titlePadding": 8,
        "labelPadding": 5,
        "labelOverlap": "greedy",
    },
    "axisX": {"grid": False, "tickCount": 5},
    "axisY": {"domain": False, "ticks": False, "tickCount": 4},
}


class Plot(NamedTuple):
    """A plot as two SVG elements: for wide and for narrow pages."""

    wide: str
    narrow: str


def progress_plot(steps: Sequence[Step], runs: Sequence[float], label: str) -> Plot:
    """Draw the recorded tasks over time, with the starts of runs. `label` has the content in words, for the blind."""
    first, end = steps[0].begin, steps[-1].end
    axis = _time_axis(first, end)
    points = [(first, 0), *((step.end, step.tasks_so_far) for step in steps)]
    return _draw(
        label,
        layer=[
            {
                "data": {"values": [{"time": 1000 * time, "tasks": tasks} for time, tasks in points]},
                "mark": {
                    "type": "area",
                    "color": "var(--accent)",
                    "fillOpacity": 0.16,
                    "line": {"color": "var(--accent)", "strokeWidth": 2},
                },
                "encoding": {"x": axis, "y": _tasks_axis(steps[-1].tasks_so_far)},
            },
            {
                "data": {"values": [{"time": 1000 * min(max(began, first), end)} for began in runs]},
                "mark": {"type": "rule", "color": "var(--muted)", "strokeDash": [3, 3], "opacity": 0.7},
                "encoding": {"x": axis},
            },
        ],
    )


def throughput_plot(steps: Sequence[Step], step_seconds: int, label: str) -> Plot:
    """Draw tasks per second over time; see `progress_plot`."""
    first, end = steps[0].begin, steps[-1].end
    room = max(0.0, LEAST_BARS * step_seconds - (end - first)) / 2
    rows = [{"time": 1000 * step.begin, "end": 1000 * step.end, "rate": step.rate(step.work.tasks)} for step in steps]
    return _draw(
        label,
        data={"values": rows},
        mark={"type": "bar", "color": "var(--accent)", "binSpacing": 1},
        encoding={
            "x": {**_time_axis(first - room, end + room), "bin": "binned"},
            "x2": {"field": "end"},
            "y": {"field": "rate", "type": "quantitative", "axis": {"title": "tasks per second", "format": NUMBERS}},
        },
    )


def hosts_plot(bands: Sequence[HostBand], steps: Sequence[Step], label: str) -> Plot:
    """Draw a band for each host over time: darker for more tasks per second, with a line for each run."""
    axis = _time_axis(steps[0].begin, steps[-1].end)
    y = _names_axis("host")
    names = [f"{printable(band.host)[:200]}" for band in bands]
    cells = [
        {"host": name, "time": 1000 * s.begin, "end": 1000 * s.end, "rate": s.rate(s.work.tasks)}
        for name, band in zip(names, bands, strict=True)
        for s in band.steps
        if s.work.tasks
    ]
    runs = [
        {"host": name, "time": 1000 * begin, "end": 1000 * max(begin, end)}
        for name, band in zip(names, bands, strict=True)
        for begin, end in band.runs
    ]
    shade = {
        "field": "rate",
        "type": "quantitative",
        "legend": None,
        "scale": {"domainMin": 0, "range": [LIGHTEST, 1], "zero": True},
    }
    # An empty cell keeps the row of a host that has nothing to draw.
    cells += [{"host": name, "time": axis["scale"]["domain"][0], "end": axis["scale"]["domain"][0]} for name in names]
    return _draw(
        label,
        height={"step": BAR_HEIGHT},
        layer=[
            {
                "data": {"values": cells},
                "mark": {"type": "rect", "color": "var(--accent)", "height": {"band": 0.62}},
                "encoding": {"x": axis, "x2": {"field": "end"}, "y": y, "opacity": shade},
            },
            {
                "data": {"values": runs},
                "mark": {"type": "rule", "color": "var(--muted)", "strokeWidth": 2, "yOffset": BAR_HEIGHT * 0.4},
                "encoding": {"x": axis, "x2": {"field": "end"}, "y": y},
            },
        ],
    )


def durations_plot(bins: Sequence[DurationBin], quantiles: Mapping[str, float], label: str) -> Plot:
    """Draw the number of tasks by duration, on a logarithmic scale, with lines at some quantiles."""
    ratio = bins[0].high / bins[0].low
    room = ratio ** (max(0, LEAST_BARS - len(bins)) / 2)
    low, high = bins[0].low / room, bins[-1].high * room
    scale = {"type": "log", "domain": [low, high], "nice": False}
    axis = {"title": "seconds", "format": NUMBERS, "tickCount": 4}
    half, most = quantiles["half"], quantiles["95 %"]
    marked = [{"at": half, "name": "half"}]
    if (most / half) > (high / low) ** LABEL_SHARE:
        marked.append({"at": most, "name": "95 %"})
    at = {"field": "at", "type": "quantitative", "scale": scale}
    return _draw(
        label,
        layer=[
            {
                "data": {"values": [{"low": b.low, "high": b.high, "tasks": b.tasks} for b in bins]},
                "mark": {"type": "bar", "color": "var(--accent)", "binSpacing": 1},
                "encoding": {
                    "x": {"field": "low", "type": "quantitative", "bin": "binned", "scale": scale, "axis": axis},
                    "x2": {"field": "high"},
                    "y": _tasks_axis(max(b.tasks for b in bins)),
                },
            },
            {
                "data": {"values": marked},
                "mark": {"type": "rule", "color": "var(--text)", "strokeDash": [3, 3]},
                "encoding": {"x": at},
            },
            {
                "data": {"values": marked},
                "mark": {"type": "text", "dy": -4, "baseline": "bottom", "fontSize": 12, "color": "var(--text)"},
                "encoding": {"x": at, "y": {"value": 0}, "text": {"field": "name"}},
            },
        ],
    )  # fmt: skip


def failures_plot(kinds: Sequence[Mapping[str, Any]], label: str) -> Plot:
    """Draw the number of failed tasks by reason; see `grouped_failures`."""
    rows = [{"reason": printable(kind["reason"])[:200], "tasks": kind["count"]} for kind in kinds]
    y = _names_axis("reason")
    x = _tasks_axis(max(kind["count"] for kind in kinds))
    return _draw(
        label,
        height={"step": BAR_HEIGHT},
        data={"values": rows},
        layer=[
            {"mark": {"type": "bar", "color": "var(--bad)", "height": {"band": 0.7}}, "encoding": {"x": x, "y": y}},
            {
                "mark": {"type": "text", "align": "left", "dx": 4, "fontSize": 12, "color": "var(--text)"},
                "encoding": {"x": x, "y": y, "text": {"field": "tasks", "format": ",d"}},
            },
        ],
    )


def _time_axis(first: float, end: float) -> dict[str, Any]:
    axis: dict[str, Any] = {"title": "time, UTC"}
    if end - first <= CLOCK_SECONDS:
        axis |= {"format": "%H:%M:%S", "tickCount": 4}
    scale = {"type": "utc", "domain": [1000 * first, 1000 * end], "nice": False}
    return {"field": "time", "type": "temporal", "scale": scale, "axis": axis}


def _names_axis(field: str) -> dict[str, Any]:
    axis = {"title": None, "labelLimit": LABEL_WIDTH, "labelColor": "var(--text)"}
    return {"field": field, "type": "nominal", "sort": None, "axis": axis}


def _tasks_axis(largest: int) -> dict[str, Any]:
    form = ",d" if largest < LONG_NUMBER else "~s"
    axis: dict[str, Any] = {"title": "tasks", "tickMinStep": 1, "format": form}
    if largest <= FEW:
        axis["values"] = list(range(largest + 1))
    return {"field": "tasks", "type": "quantitative", "axis": axis}


def _draw(label: str, **spec: Any) -> Plot:
    try:
        import vl_convert  # noqa: PLC0415 - an extra, and large
    except ImportError as error:
        raise UsageError(f"the report needs its extra packages; install them: {install_command('report')}") from error
    whole = {"height": HEIGHT, "autosize": {"type": "fit-x", "contains": "padding"}, "config": _CONFIG, **spec}
    start = f'<svg role="img" aria-label="{escape(label)}" '
    drawn = (vl_convert.vegalite_to_svg({**whole, "width": width}) for width in (WIDE, NARROW))
    return Plot(*(svg.replace("<svg ", start, 1) for svg in drawn))
