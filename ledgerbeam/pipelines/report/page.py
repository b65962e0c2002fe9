"""HTML page of the report, rendered from `ReportData`.

Names and error messages come from outside and may be hostile. Jinja escapes the text of the page, and Vega escapes the
text of plots. The page's content security policy allows no script, and no style but the page's own.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.resources
import shlex
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rich.filesize import decimal

from ledgerbeam._base.redaction import printable, without_secrets
from ledgerbeam._base.version import __version__
from ledgerbeam.ledger.model.accounts import RecordCounts
from ledgerbeam.pipelines.console.run_progress import count, duration
from ledgerbeam.pipelines.report import plots
from ledgerbeam.pipelines.report.accounts import account_table, time_table
from ledgerbeam.pipelines.report.data import ReportData
from ledgerbeam.pipelines.report.state import LedgerState

LONGEST_TEXT = 400  # maximum number of characters of a name or an error message; longer text is cut in the middle

_TIME = "Seconds of all workers of a run, by activity. Wait: time between tasks, and in the runner."

Cells = Sequence[Sequence[str]]
Heads = Sequence[tuple[str, str]]  # column heads of a table, each with the CSS class of the column


class PlotSection(NamedTuple):
    """A plot, with its data as a table."""

    id: str
    title: str
    text: str
    drawn: plots.Plot
    heads: Heads
    rows: Cells


class Fact(NamedTuple):
    """A number of the job, with a remark."""

    name: str
    value: str
    note: str = ""


def render_page(data: ReportData) -> bytes:
    """Return the page as UTF-8. Its size does not grow with the job."""
    import jinja2  # noqa: PLC0415 - an extra

    files = importlib.resources.files("ledgerbeam.pipelines.report")
    style, template = (files.joinpath(f"page.{suffix}").read_text("utf-8") for suffix in ("css", "html"))
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=False, keep_trailing_newline=True
    )
    job = data.status["job"] or {"pipeline": "no job yet", "parameters": {}}
    parameters = job["parameters"]
    function = parameters.get("function")
    function = ", ".join(function) if isinstance(function, list) else function
    state, mood = _state(data)
    html: str = environment.from_string(template).render(
        style=style,
        style_hash=f"sha256-{digest}",
        title=_text(f"{job['pipeline']} {function}" if function else job["pipeline"]),
        state=state,
        mood=mood,
        ledger=_text(data.ledger),
        output=_text(parameters["output"]) if isinstance(parameters.get("output"), str) else None,
        **_shares(data),
        facts=_facts(data),
        plots=_plots(data) if data.steps else [],
        tables=_tables(data, parameters.get("base")),
        version=__version__,
        made=_moment(time.time()),
    )
    return html.encode()


def _text(text: str) -> str:
    """Return text from outside without secrets and control characters, cut to `LONGEST_TEXT`."""
    shown = printable(without_secrets(text))
    if len(shown) <= LONGEST_TEXT:
        return shown
    return f"{shown[: LONGEST_TEXT // 2]} … {shown[-LONGEST_TEXT // 2 :]}"


def _moment(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(seconds))


def _state(data: ReportData) -> tuple[str, str]:
    sources = data.status["sources"]
    if data.progress.running:
        return "running", "busy"
    if data.status["complete"]:
        return "complete", "good"
    if sources["failed"]:
        return f"not complete: {count(sources['failed'], 'source')} failed", "bad"
    return "not complete", "bad"


def _shares(data: ReportData) -> dict[str, Any]:
    """Return the shares of the task bar: done, failed and, as an estimate, open tasks."""
    tasks, sources = data.status["tasks"], data.status["sources"]
    about = "about " if data.open_tasks else ""
    total = tasks["done"] + tasks["failed"] + data.open_tasks
    shares: list[dict[str, Any]] = []
    x = 0.0
    for number, fill, words in (
        (tasks["done"], "good-fill", "done"),
        (tasks["failed"], "bad-fill", "failed"),
        (data.open_tasks, "open-fill", "open"),
    ):
        if number:
            width = 1000 * number / total
            text = f"{about if words == 'open' else ''}{number:,} {words} ({about}{_percent(number, total)})"
            shares.append({"fill": fill, "x": round(x, 2), "width": round(width, 2), "text": text})
            x += width
    parts = [f"{sources[state]:,} {state}" for state in ("complete", "failed", "open") if sources[state]]
    gone = data.status["gone"]
    return {
        "shares": shares,
        "shares_label": "Tasks: " + (", ".join(share["text"] for share in shares) or "none yet"),
        "sources": f"Sources: {', '.join(parts) or 'none yet'}"
        + (f"; {gone:,} not in the last listing" if gone else ""),
    }


def _percent(part: int, whole: int) -> str:
    """Return a share as text. Only exact shares are shown as 0 % and 100 %."""
    share = 100 * part / whole
    return f"{share:.0f} %" if share == round(share) else f"{min(max(share, 0.1), 99.9):.1f} %"


def _facts(data: ReportData) -> list[Fact]:
    status, progress, records = data.status, data.progress, data.records
    tasks = status["tasks"]
    failed = f"{tasks['failed']:,} failed" if tasks["failed"] else "none failed"
    filtered = f", {status['filtered']:,} without output" if status["filtered"] else ""
    not_kept = ("dropped", sum(records.dropped.values())), ("rejected", sum(records.rejected.values()))
    facts = [
        Fact("Tasks done", f"{tasks['done']:,}", failed + filtered),
        Fact("Records", f"{records.records:,}", ", ".join(f"{number:,} {what}" for what, number in not_kept if number)),
        Fact("Data", decimal(status["bytes"])),
    ]
    if progress.run is not None:
        name = "This run" if progress.running else "Last run"
        facts.append(Fact(name, duration(progress.run["seconds"]), f"{progress.run['tasks']:,.1f} tasks a second"))
    if data.quantiles:
        half, longest = (_seconds(data.quantiles[name]) for name in ("half", "all"))
        facts.append(Fact("Typical task", half, f"longest {longest}"))
    if data.runs and (found := data.runs[0]["set_ups"]):
        facts.append(Fact("Set-up", duration(found["longest"]), f"the longest of {found['times']:,}, by the last run"))
    if progress.running:
        left = progress.time_left
        facts.append(Fact("Time left", "not known yet" if left is None else duration(left), "at the rate so far"))
    return facts


def _seconds(value: float) -> str:
    """Return a duration as text with two significant digits, because the ledger rounds durations."""
    value = float(f"{value:.2g}")
    milliseconds = 1000 * value
    return duration(value) if value >= 1 else f"{milliseconds:.{0 if milliseconds >= 10 else 1}f} ms"


def _plots(data: ReportData) -> list[PlotSection]:
    steps = data.steps
    begin, end = steps[0].begin, steps[-1].end
    total, fastest = steps[-1].tasks_so_far, max(step.rate(step.work.tasks) for step in steps)
    runs = len(data.runs) + data.runs_left_out
    course = f"{count(total, 'task')} from {_moment(begin)} to {_moment(end)}, in {count(runs, 'run')}"
    again = total - data.status["tasks"]["done"]
    if again > 0:
        course += f"; {again:,} of them no longer count, because their sources were processed again"
    step = f"steps of {duration(data.step_seconds)}"
    sections = [
        PlotSection(
            "progress",
            "Progress",
            f"{course}. Dashed lines: start of a run.",
            plots.progress_plot(steps, [run["began"] for run in data.runs], f"Tasks recorded over time: {course}"),
            _heads("until|when", "tasks", "sources"),
            [[_moment(s.end), f"{s.tasks_so_far:,}", f"{s.work.sources:,}"] for s in steps if s.work.tasks],
        ),
        PlotSection(
            "throughput",
            "Throughput",
            f"At most {fastest:,.1f} tasks per second, in {step}.",
            plots.throughput_plot(steps, data.step_seconds, f"Tasks per second over time, at most {fastest:,.1f}"),
            _heads("from|when", "tasks/s", "records/s", "bytes/s", "failed"),
            [
                [
                    _moment(s.begin),
                    f"{s.rate(s.work.tasks):,.1f}",
                    f"{s.rate(s.work.records):,.1f}",
                    decimal(int(s.rate(s.work.bytes))),
                    f"{s.failures:,}",
                ]
                for s in steps
                if s.work.tasks or s.failures
            ],
        ),
    ]
    if data.hosts:
        sections.append(_hosts_section(data))
    if data.durations:
        below = ", ".join(f"{name} within {_seconds(value)}" for name, value in data.quantiles.items())
        sections.append(
            PlotSection(
                "durations",
                "Task durations",
                f"{below[0].upper()}{below[1:]}.",
                plots.durations_plot(data.durations, data.quantiles, f"Number of tasks by duration: {below}"),
                _heads("from", "to", "tasks"),
                [[_seconds(b.low), _seconds(b.high), f"{b.tasks:,}"] for b in data.durations if b.tasks],
            )
        )
    if data.kinds:
        most = f"{data.kinds[0]['count']:,}: {_text(data.kinds[0]['reason'])}"
        failed = sum(kind["count"] for kind in data.kinds)
        sections.append(
            PlotSection(
                "failures",
                "Failures by reason",
                f"{count(failed, 'task')} failed and were not done later.",
                plots.failures_plot(data.kinds, f"Failed tasks by reason; most, {most}"),
                _heads("reason|name", "tasks", "sources"),
                [row[:3] for row in _failure_rows(data)],
            )
        )
    return sections


def _heads(*heads: str) -> Heads:
    """Return column heads given as ``NAME|CLASS``; a name alone is the head of a column of numbers."""
    parts = (head.partition("|") for head in heads)
    return [(name, kind if bar else "number") for name, bar, kind in parts]


def _hosts_section(data: ReportData) -> PlotSection:
    bands = data.hosts
    most = max(bands, key=lambda band: band.fastest)
    darkest = f"the darkest is {most.fastest:,.1f} tasks per second, on {_text(most.host)}"
    text = f"Darker means more tasks per second: {darkest}. A line below: a run was active."
    label = "; ".join(f"{_text(band.host)}: {count(band.work.tasks, 'task')}" for band in bands)
    return PlotSection(
        "hosts",
        "Hosts",
        text,
        plots.hosts_plot(bands, data.steps, f"Tasks over time by host: {label}"),
        _heads("host|name", "runs", "tasks", "records", "failed", "tasks/s at most"),
        [
            [
                _text(band.host),
                *(f"{number:,}" for number in (band.number, band.work.tasks, band.work.records, band.failures)),
                f"{band.fastest:,.1f}",
            ]
            for band in bands
        ],
    )


class TableSection(NamedTuple):
    """A table. The table of runs also has the command line and the folder of the last run."""

    id: str
    title: str
    text: str
    heads: Heads
    rows: Cells
    command: str = ""
    folder: str = ""


def _tables(data: ReportData, base: Any) -> list[TableSection]:
    timed = any(run["time"] for run in data.runs)
    tables = [
        _stages_table(data.stages) if data.stages else None,
        None if data.records.is_plain else _records_table(data.records),
        _functions_table(data) if data.functions else None,
        _failures_table(data) if data.kinds else None,
        _statistics_table(data) if data.statistics or data.statistics_error else None,
        _slowest_table(data, base if isinstance(base, str) else "") if data.slowest else None,
        TableSection("time", "Where the time went", _TIME, *time_table(data.runs)) if timed else None,
        _runs_table(data.runs, data.runs_left_out) if data.runs else None,
    ]
    return [table for table in tables if table is not None]


def _stages_table(stages: Mapping[str, LedgerState]) -> TableSection:
    columns = ("sources", "tasks", "failed", "records read", "written", "size", "buckets", "largest", "of the mean")
    rows = []
    for name, stage in stages.items():
        found, sizes = stage.found, stage.buckets
        sources, tasks, records = found["sources"], found["tasks"], found["records"]
        counts = (sum(sources.values()), tasks["done"], tasks["failed"], records["read"])
        done = [f"{number:,}" for number in (*counts, sum(records["written"].values()))]
        skew = ["", "", ""] if sizes is None else [f"{sizes.number:,}", decimal(sizes.largest), f"{sizes.skew:,.1f} x"]
        state = "complete" if found["complete"] else "not complete"
        rows.append([name, state, *done, decimal(found["bytes"]), *skew])
    heads = _heads("stage|name", "state|", *columns)
    text = "Stages run in this order, each with its own ledger. A stage reads the outputs of the stage before."
    return TableSection("stages", "Stages", text, heads, rows)


def _records_table(records: RecordCounts) -> TableSection:
    heads = _heads("records|", "reason or route|name", "number", "of those read")
    rows = [
        [what, _text(name), f"{number:,}", _percent(number, records.read) if records.read else ""]
        for what, name, number in account_table(records)
    ]
    text = "Every record that was read is kept, dropped or rejected; a kept record may be written as several records."
    return TableSection("records", "Outcomes of records", text, heads, rows)


def _functions_table(data: ReportData) -> TableSection:
    heads = _heads("function|name", "received", "returned", "dropped", "rejected")
    rows = []
    for one in data.functions:
        numbers = (one["received"], one["returned"], *(sum(one[end].values()) for end in ("dropped", "rejected")))
        rows.append([_text(one["function"]), *(f"{number:,}" for number in numbers)])
    text = "The functions run in this order. Each receives the records that the function before returned."
    return TableSection("functions", "Functions", text, heads, rows)


def _failures_table(data: ReportData) -> TableSection:
    heads = _heads("reason|", "tasks", "sources", "for example|error")
    command = _text(shlex.join(["ledgerbeam", "ledger", "failures", data.ledger]))
    text = f"To list all failures and commands to retry: {command}"
    return TableSection("examples", "Failures", text, heads, _failure_rows(data))


def _failure_rows(data: ReportData) -> list[list[str]]:
    return [
        [_text(kind["reason"]), f"{kind['count']:,}", f"{kind['sources']:,}", _text(kind["example"]["error"])]
        for kind in data.kinds
    ]


def _statistics_table(data: ReportData) -> TableSection:
    heads = _heads("name|name", "kind|", "tasks", "value|", "off by|")
    rows = [[_text(cell) for cell in row] for row in data.statistics]
    text = _text(data.statistics_error) or "Statistics that the function recorded, over all recorded tasks."
    return TableSection("statistics", "Statistics", text, heads, rows)


def _slowest_table(data: ReportData, base: str) -> TableSection:
    rows = []
    for source in data.slowest:
        pack = f" and {source.members - 1:,} more in a pack" if source.members > 1 else ""
        totals, counts = source.totals, source.counts
        not_kept = [f"{sum(part.values()):,}" for part in (counts.dropped, counts.rejected)]
        numbers = [
            decimal(source.size),
            f"{totals.tasks:,}",
            *(f"{counts.read:,}", *not_kept, f"{counts.records:,}"),
            _seconds(totals.milliseconds / 1000),
        ]
        rows.append([_text(source.url.removeprefix(base)) + pack, source.state, *numbers])
    columns = ("size", "tasks", "read", "dropped", "rejected", "written", "task time")
    heads = _heads("source|name", "state|", *columns)
    text = "By the total time of their tasks, over all workers."
    return TableSection("slowest", "Slowest sources", text, heads, rows)


def _runs_table(runs: Sequence[Mapping[str, Any]], left_out: int) -> TableSection:
    rows = []
    for run in runs:
        info, work = run["info"], run["done"]
        listed = "" if run["listed"] is None else f"{run['listed']:,}"
        done = ["", ""] if work is None else [f"{work['tasks']:,}", f"{work['sources']:,}"]
        took = "" if run["seconds"] is None else duration(run["seconds"])
        where = _text(f"{info.get('host', '?')}, process {info.get('pid', '?')}")
        rows.append([run["id"], _moment(run["began"]), took, run["state"], listed, *done, where])
    heads = _heads("run|", "began|when", "took", "outcome|when", "listed", "tasks", "sources", "where|when")
    text = f"The newest {len(runs):,}; {left_out:,} older runs are left out." if left_out else "Newest first."
    last = runs[0]["info"]
    command = _text(shlex.join(last["command"])) if last.get("command") else ""
    return TableSection("runs", "Runs", text, heads, rows, command, _text(str(last.get("folder"))))
