"""`ledger report`: one page with the figures of the ledger, without scripts or network access."""

from __future__ import annotations

import base64
import hashlib
import html
import importlib.util
import os
import re
import shutil
import struct
import subprocess
import zlib
from html.parser import HTMLParser
from pathlib import Path

import pytest

from ledgerbeam._base.extensions import install_command
from ledgerbeam.ledger import Job, Source
from ledgerbeam.ledger.lmdb import jobs as lmdb_jobs
from ledgerbeam.ledger.lmdb.store import LmdbStore
from ledgerbeam.ledger.lmdb.tables import HISTORY, HISTORY_KEY, HISTORY_ROW, Transaction
from ledgerbeam.ledger.model.rows import Failure, Leaf, SourceRow, Totals
from ledgerbeam.ledger.opening import open_local_store
from ledgerbeam.pipelines.report.data import DurationBin, OpenTasks, Step, report_data
from ledgerbeam.pipelines.report.page import render_page
from ledgerbeam.pipelines.report.plots import durations_plot, hosts_plot, progress_plot, throughput_plot
from ledgerbeam.pipelines.report.run_info import Work
from tests.pipelines.conftest import Workspace, make_workspace

MOST_BYTES = 500_000
HOSTILE = "<script>document.title='owned'</script><img src=x onerror=alert(1)>\"'&\x1b[2J\u202e"
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

needs_extra = pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("jinja2", "vl_convert"))),
    reason="no plots: pip install 'ledgerbeam[report]'",
)
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason='no browser: run "apt-get install chromium"')


class Page(HTMLParser):
    """A parsed page: its elements in order, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def all(self, *tags: str) -> list[dict[str, str | None]]:
        return [attributes for tag, attributes in self.elements if tag in tags]


def write_hostile_ledger(workspace: Workspace) -> None:
    """Make a ledger whose names and errors are markup."""
    store = open_local_store(str(workspace.root / "L"), create=True)
    store.open_job(Job(HOSTILE, {"output": f"s3://bucket/{HOSTILE}", "function": HOSTILE, "base": "/in/"}))
    command = ["ledgerbeam", "map", HOSTILE]
    run = store.begin_run({"pid": 1, "host": HOSTILE, "command": command, "folder": HOSTILE})
    sources = [Source(f"/in/{HOSTILE}{number}.jsonl", 1000 * number, "v") for number in range(5)]
    store.register(sources)
    for number, source in enumerate(sources):
        leaf = Leaf(source.id, ((0, 2),), "filtered", (), 0, 100, 0.01 * 10**number)
        store.commit([leaf], [Failure(source.id, ((1, 2),), HOSTILE, f"Error{number % 2}{HOSTILE}", HOSTILE)])
    store.note_listing(run, listed=5, finished=True)
    store.close()


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a ledger whose names and errors are markup."""
    workspace = make_workspace(tmp_path_factory.mktemp("report"))
    write_hostile_ledger(workspace)
    workspace.run("ledger", "report", "L", "--output", "report.html", status=0)
    return workspace.root / "report.html"


@needs_extra
def test_it_replaces_an_earlier_report_and_no_other_page(failed_job: Workspace, tmp_path: Path) -> None:
    words = ("ledger", "report", "L", "--output", tmp_path / "report.html")
    for _ in range(2):
        assert failed_job.run(*words).status == 0
    (tmp_path / "report.html").write_text("<!doctype html>\n<title>My thesis</title>\n")
    failed_job.run(*words, status=2, err="report.html: expected no file, or an earlier report")
    assert "My thesis" in (tmp_path / "report.html").read_text()


@needs_extra
def test_the_page_shows_what_the_ledger_holds(failed_job: Workspace, tmp_path: Path) -> None:
    ran = failed_job.run("ledger", "report", "L", "--output", tmp_path / "report.html", "--json", status=0)
    text = (tmp_path / "report.html").read_text()
    assert ran.json == {"output": str(tmp_path / "report.html"), "bytes": len(text.encode())}
    status = failed_job.run("ledger", "status", "L", "--json").json
    page = Page(text)
    assert "not complete: 2 sources failed" in page.text
    assert "3 done (50 %)3 failed (50 %)Sources: 1 complete, 2 failed" in page.text
    assert "Progress" in page.text
    assert "JobProgress" not in page.text
    assert f"{status['tasks']['done']}3 failed" in page.text
    for words in ("Progress", "Throughput", "Task durations", "Failures by reason", "Slowest sources", "Runs"):
        assert words in page.text
    assert "needs_service raised ConnectionError: the service is down" in page.text
    assert "c.jsonl" in page.text
    assert "hunter2" not in text
    assert len(text) < MOST_BYTES


def test_open_tasks_are_estimated_by_sizes() -> None:
    owed = OpenTasks(100)
    for state, size, recorded in (
        ("failed", 1000, 4),  # 6 tasks left, 2 of them failed
        ("open", 950, 3),  # 7 tasks left
        ("open", 10, 50),  # compressed: at least 1
        ("complete", 5000, 9),
        ("gone", 70, 0),
    ):
        owed.add(SourceRow(bytes(16), "u", size, 0, state, 0, Totals(tasks=recorded)))  # type: ignore[arg-type]
    assert owed.without(2) == 4 + 7 + 1
    assert owed.without(20) == 7 + 1
    assert owed.without(2, has_ended=True) == 7 + 1


def many_hosts(folder: Path, hosts: int) -> LmdbStore:
    """Make a ledger with one run per host. Each host starts one step later and does one more task per step."""
    store = LmdbStore(str(folder))
    store.open(create=True)
    store.open_job(Job("map", {}))

    def change(txn: Transaction) -> None:
        for number in range(1, hosts + 1):
            began = 1_700_000_000 + 10 * number
            lmdb_jobs.add_run(txn, f"{number:06d}", {"host": f"node{number}", "runner": "local"}, float(began))
            for step in range(3):
                row = HISTORY_ROW.pack(number, 10 * number, 100 * number, 0, 5, 0, 1)
                txn.put(HISTORY, HISTORY_KEY.pack(began // 10 + step, number), row)
            lmdb_jobs.update_run(txn, f"{number:06d}", {"ended": began + 25.0, "outcome": "done", "tidied": True})

    store._write(change)
    return store


@pytest.mark.parametrize("hosts", [1, 2, 20, 45])
def test_each_host_has_a_band_with_its_runs_and_what_it_did(tmp_path: Path, hosts: int) -> None:
    data = report_data(many_hosts(tmp_path / "L", hosts))
    assert sum(band.work.tasks for band in data.hosts) == data.steps[-1].tasks_so_far == 3 * hosts * (hosts + 1) // 2
    assert sum(band.failures for band in data.hosts) == 3 * hosts
    assert sum(band.number for band in data.hosts) == hosts
    assert len(data.hosts) == min(hosts, 30)
    first = data.hosts[0]
    assert (first.host, first.work.tasks, first.work.records) == (f"node{hosts}", 3 * hosts, 30 * hosts)
    ((begin, end),) = first.runs
    assert (begin, end) == (1_700_000_000 + 10 * hosts, 1_700_000_025 + 10 * hosts)
    ends = {(step.begin, step.end) for step in data.steps}
    assert {(step.begin, step.end) for band in data.hosts for step in band.steps} <= ends
    assert first.fastest == pytest.approx(max(s.work.tasks / (s.end - s.begin) for s in first.steps))
    if hosts > 30:
        assert [band.host for band in data.hosts[-2:]] == ["node17", "16 further hosts"]
        assert data.hosts[-1].number == 16


@needs_extra
@pytest.mark.parametrize("hosts", [1, 20, 45])
def test_the_bands_of_hosts_are_on_the_page(tmp_path: Path, hosts: int) -> None:
    data = report_data(many_hosts(tmp_path / "L", hosts))
    text = render_page(data).decode()
    assert len(text) < MOST_BYTES
    names = [band.host for band in data.hosts]
    for drawn in hosts_plot(data.hosts, data.steps, "h"):
        assert [label for label in labels_of(drawn) if "node" in label or "hosts" in label] == names
        assert drawn.count('stroke="var(--muted)"') >= hosts, "a line for each run"
        (height,) = re.findall(r'<svg [^>]*height="([\d.]+)"', drawn)[:1]
        assert float(height) < 100 + 26 * len(data.hosts)
    page = Page(text)
    assert f"node{hosts}1{3 * hosts:,}{30 * hosts:,}3" in page.text, "the first row of the table"


def short_step(tasks: int) -> Step:
    return Step(1_700_000_000.0, 1_700_000_006.0, Work(tasks=tasks), 0, tasks)


def labels_of(svg: str) -> list[str]:
    return re.findall(r"<text [^>]*>([^<]+)</text>", svg)


@needs_extra
@pytest.mark.parametrize("tasks", [1, 2, 5, 12, 75])
def test_plots_of_a_short_run_have_sensible_ticks_and_no_slab(tasks: int) -> None:
    step = short_step(tasks)
    for svg in progress_plot([step], [step.begin], "p"):
        labels = labels_of(svg)
        counts = [label for label in labels if label.isdecimal()]
        assert len(counts) == len(set(counts)) > 1
        assert any(re.fullmatch(r"22:13:2\d", label) for label in labels)
    for svg in throughput_plot([step], 10, "t"):
        labels = labels_of(svg)
        assert len(labels) == len(set(labels))
        assert not [label for label in labels if "e" in label and label[0].isdigit()]
        (width,) = re.findall(r'd="M[\d.]+,[\d.]+h([\d.]+)v[^"]*" fill="var\(--accent\)"', svg)
        assert float(width) < 70
    for svg in durations_plot([DurationBin(0.01, 0.0141, tasks)], {"half": 0.012, "95 %": 0.012}, "d"):
        labels = labels_of(svg)
        assert len(labels) == len(set(labels))


@pytest.mark.slow
@needs_extra
def test_tasks_that_count_no_more_are_told(workspace: Workspace) -> None:
    source = workspace.jsonl("in/a.jsonl", 10)
    command = ("map", "functions:keep", "in/*.jsonl", "--output", "out", "--to", "jsonl", "--ledger", "L")
    assert workspace.run(*command).status == 0
    source.write_text('{"id": 1, "text": "other"}\n')
    assert workspace.run(*command).status == 0
    assert workspace.run("ledger", "report", "L", "--output", "report.html").status == 0
    page = Page((workspace.root / "report.html").read_text())
    for text in ("Tasks done1none failed", "2 tasks from ", "; 1 of them no longer count"):
        assert text in page.text


@needs_extra
def test_hostile_names_stay_text(hostile: Path) -> None:
    page = Page(hostile.read_text(encoding="utf-8"))
    assert not page.all("script", "img", "iframe", "object", "embed", "form", "base", "a", "image", "foreignobject")
    assert not [name for _, attributes in page.elements for name in attributes if name.startswith("on")]
    assert "<script>document.title='owned'</script>" in page.text, "the name is not shown at all"
    assert not re.search("[\x00-\x08\x0b-\x1f\u202e]", hostile.read_text(encoding="utf-8"))


@needs_extra
def test_the_page_allows_nothing_but_its_own_style_and_loads_nothing(hostile: Path) -> None:
    text = hostile.read_text(encoding="utf-8")
    page = Page(text)
    (policy,) = [meta["content"] for meta in page.all("meta") if meta.get("http-equiv") == "Content-Security-Policy"]
    (style,) = re.findall("<style>(.*?)</style>", text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert policy == f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    attributes = [attributes for _, attributes in page.elements]
    assert not [a for a in attributes if {"src", "href", "xlink:href", "style", "srcset", "action"} & a.keys()]
    assert "url(" not in style
    assert "@import" not in style


@needs_extra
def test_the_page_can_be_read_without_seeing_it(hostile: Path) -> None:
    page = Page(hostile.read_text(encoding="utf-8"))
    assert page.all("html") == [{"lang": "en"}]
    headings = [int(tag[1]) for tag, _ in page.elements if re.fullmatch(r"h\d", tag)]
    assert headings[0] == 1
    assert set(headings[1:]) == {2}
    drawings = [svg for svg in page.all("svg") if svg.get("aria-hidden") != "true"]
    assert len(drawings) == 1 + 2 * 5  # the bar of sources; five plots, wide and narrow
    assert all(svg.get("role") == "img" and svg.get("aria-label") for svg in drawings)
    assert len(page.all("table")) == 5 + 3  # one for each plot; failures, sources, runs
    assert all(head.get("scope") for head in page.all("th"))
    labelled = {section.get("aria-labelledby") for section in page.all("section")}
    assert labelled == {heading.get("id") for heading in page.all("h2")}


@needs_extra
def test_a_ledger_of_which_nothing_is_recorded_has_a_page_too(workspace: Workspace) -> None:
    open_local_store(str(workspace.root / "L"), create=True).close()
    workspace.run("ledger", "report", "L", "--output", "report.html", status=0)
    assert "Nothing recorded yet" in (workspace.root / "report.html").read_text()


@needs_extra
def test_the_page_of_a_large_job_is_small(tmp_path: Path) -> None:
    store = open_local_store(str(tmp_path / "L"), create=True)
    store.open_job(Job("map", {}))
    sources = [Source(f"/in/{'long' * 200}/{number}.jsonl", number, "v") for number in range(2000)]
    store.register(sources)
    leaves = [Leaf(s.id, ((0, 2),), "filtered", (), 0, 1, 1e-4 * 1.01**i) for i, s in enumerate(sources)]
    failed = [Failure(s.id, ((1, 2),), "t", f"reason {i} {'x' * 300}", "y" * 9000) for i, s in enumerate(sources)]
    store.commit(leaves, failed)
    for _ in range(40):
        store.end_run(store.begin_run({"command": ["x" * 500] * 100, "folder": "/", "host": "h" * 200}), "done")
    assert len(render_page(report_data(store))) < MOST_BYTES


def test_without_the_extra_the_error_says_how_to_get_it(failed_job: Workspace, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['vl_convert'] = None\n")
    path = os.pathsep.join(filter(None, (str(tmp_path), failed_job.env.get("PYTHONPATH"))))
    ran = failed_job.run("ledger", "report", "L", "--output", tmp_path / "r.html", env={"PYTHONPATH": path}, status=2)
    assert install_command("report") in ran.err
    assert "vl_convert" in ran.err
    assert not (tmp_path / "r.html").exists()


def in_browser(page: Path, folder: Path, *options: str, width: int = 1200) -> str:
    """Open a page in headless Chromium without a network and return the output."""
    command = [
        *(str(CHROMIUM), "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"),
        *("--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={folder / 'profile'}"),
        *(f"--window-size={width},1600", "--virtual-time-budget=5000", *options, page.as_uri()),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=True)
    return done.stdout


@needs_extra
@needs_chromium
@pytest.mark.slow
@pytest.mark.parametrize("width", [1200, 390])
def test_a_browser_shows_the_page_without_running_anything_nor_overflowing(
    hostile: Path, tmp_path: Path, width: int
) -> None:
    frame = tmp_path / "frame.html"
    frame.write_text(
        f"""<iframe id=f src="{hostile.as_uri()}" width="{width}" height="900" style="border:0"></iframe>
        <pre id=r></pre>
        <script>f.onload = () => {{
          const page = f.contentDocument, root = page.documentElement;
          const shown = [...page.querySelectorAll('figure svg')].filter(svg => svg.getBoundingClientRect().width > 0);
          const wide = [...page.querySelectorAll('section, dl, h1, p')].filter(
            e => e.getBoundingClientRect().right > {width});
          r.textContent = [page.title.includes('owned') && !page.title.includes('<'), page.scripts.length,
            page.images.length, root.scrollWidth, shown.length, wide.length].join(' ');
        }};</script>"""
    )
    dom = in_browser(frame, tmp_path, "--dump-dom", "--disable-web-security", width=1300)
    found = re.search(r'<pre id="r">(.*?)</pre>', dom)
    assert found, dom[-500:]
    owned, scripts, images, scroll_width, plots, too_wide = html.unescape(found[1]).split()
    assert (owned, scripts, images) == ("false", "0", "0")
    assert int(scroll_width) <= width
    assert (plots, too_wide) == ("5", "0")


@needs_extra
@needs_chromium
@pytest.mark.slow
def test_the_page_is_dark_where_the_reader_wants_it_dark(hostile: Path, tmp_path: Path) -> None:
    brightness = {}
    for name, scheme in (("dark", "0"), ("light", "1")):
        shot = tmp_path / f"{name}.png"
        in_browser(hostile, tmp_path, f"--screenshot={shot}", f"--blink-settings=preferredColorScheme={scheme}")
        brightness[name] = sum(first_pixel(shot)) / 3
    assert brightness["dark"] < 60
    assert brightness["light"] > 200


def first_pixel(png: Path) -> bytes:
    """Return red, green and blue of the upper left pixel of a PNG. No PNG filter changes this pixel."""
    data, place, packed = png.read_bytes(), 8, b""
    while place < len(data):
        length, kind = struct.unpack_from(">I4s", data, place)
        packed += data[place + 8 : place + 8 + length] if kind == b"IDAT" else b""
        place += 12 + length
    return zlib.decompress(packed)[1:4]
