"""Rejects and routes: what is written, counted, limited by `--on-error`, and healed to the bytes of a clean run."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from ledgerbeam.errors import RejectLimitError, UsageError
from ledgerbeam.ledger import LedgerStore, Source
from ledgerbeam.ledger.model.accounts import RecordCounts
from ledgerbeam.ledger.model.rows import Leaf
from ledgerbeam.pipelines.jobs.checks import SHARE_RECORDS, RejectLimit, parse_on_error
from tests.cases import each
from tests.conftest import S3Server
from tests.pipelines.conftest import Ran, Workspace

CLEANING = """
from ledgerbeam import Drop, Reject, Route

REASONS = ["too short", "no text", "spam", "duplicate", "adult", "empty"]

def clean(record):
    number = record["id"]
    if number % 9_100 == 17:
        RAISES
    if number % 100 < 6:
        return Drop(REASONS[number % 100])
    if number % 3 == 0:
        return record
    return Route("en" if number % 3 == 1 else "de", {**record, "text": record["text"].upper()})

def refuse(record):
    if record["id"] % 10 == 3:
        return Reject("no title", f"record {record['id']} has none")
    if record["id"] % 10 == 4:
        return None
    return record
"""
RAISES = 'raise KeyError("language")'
MENDED = 'return {**record, "mended": True}'

LINES, FILES, BROKEN = 100_000, 5, 37
BROKEN_AT = {number * 2_701 + 1 for number in range(BROKEN)}
RAISING = {number for number in range(LINES) if number % 9_100 == 17 and number not in BROKEN_AT}


def write_function(workspace: Workspace, raises: str = RAISES) -> None:
    (workspace.root / "cleaning.py").write_text(CLEANING.replace("RAISES", raises))


def line(number: int) -> bytes:
    if number in BROKEN_AT:
        return b'{"id": %d, "text": ' % number if number % 2 else b'{"id": "\xff%d"}' % number
    return b'{"id": %d, "text": "text of %d"}' % (number, number)


def write_sources(workspace: Workspace, folder: str = "in") -> None:
    (workspace.root / folder).mkdir(parents=True)
    size = LINES // FILES
    for file in range(FILES):
        data = b"".join(line(number) + b"\n" for number in range(file * size, (file + 1) * size))
        (workspace.root / folder / f"{file}.jsonl").write_bytes(data)


@pytest.fixture
def job(workspace: Workspace) -> Workspace:
    write_sources(workspace)
    write_function(workspace)
    return workspace


def clean(workspace: Workspace, *options: str, output: str = "out", ledger: str = "L", **how: Any) -> Ran:
    command = ("map", "cleaning:clean", "in/*.jsonl", "--output", output, "--to", "jsonl", "--ledger", ledger)
    return workspace.run(*command, "--task-bytes", "256K", "--json", *options, **how)


@pytest.mark.slow
def test_what_the_issue_asks_for(job: Workspace) -> None:
    """37 broken lines, 11 that raise, drops for six reasons, three routes."""
    ran = clean(job, "--on-error", "reject:48", "--workers", "2", status=0)
    assert "48 records rejected so far; to see them: ledgerbeam ledger rejects" in ran.err
    records, out = ran.json["records"], job.root / "out"
    assert (len(BROKEN_AT), len(RAISING)) == (37, 11)
    assert records["rejected"] == {"not decoded": 37, "KeyError": 11}
    usable = [number for number in range(LINES) if number not in BROKEN_AT | RAISING]
    dropped = Counter(number % 100 for number in usable if number % 100 < 6)
    reasons = ["too short", "no text", "spam", "duplicate", "adult", "empty"]
    assert records["dropped"] == {reasons[place]: number for place, number in dropped.items()}
    kept = [number for number in usable if number % 100 >= 6]
    written = {"": 0, "de": 2, "en": 1}
    assert records["written"] == {route: sum(number % 3 == rest for number in kept) for route, rest in written.items()}
    assert (records["read"], records["kept"]) == (LINES, len(kept))
    for route, number in records["written"].items():
        assert sum(len(path.read_bytes().splitlines()) for path in (out / route).glob("*.jsonl")) == number
    rows = job.records("out/_rejects")
    assert len(rows) == 48
    size = LINES // FILES
    for row in rows:
        source = int(Path(row["source"]).stem)
        number = source * size + row["record"]
        data = (job.root / "in" / f"{source}.jsonl").read_bytes()
        start, stop = row["bytes"]
        assert data[start:stop] == line(number)
        if row["reason"] == "KeyError":
            assert number in RAISING
            assert (row["error"], row["at"]) == ("'language'", "cleaning.py:9")
        else:
            assert number in BROKEN_AT
            assert f"record {row['record']}, bytes [{start}, {stop})" in row["error"]
        assert ("raw" in row) == (number % 2 == 1 or number not in BROKEN_AT)
    assert job.run("ledger", "verify", "L", "--json").json["ok"]
    outputs = job.run("ledger", "outputs", "L", "--json").json["outputs"]
    assert {output["route"] for output in outputs} == {"", "de", "en", "_rejects"}
    sums = Counter({output["route"]: 0 for output in outputs})
    for output in outputs:
        sums[output["route"]] += output["records"]
    assert sums == {**records["written"], "_rejects": 48}
    again = clean(job, "--on-error", "reject:48")
    assert (again.status, again.json["skipped"], again.json["records"]) == (0, FILES, records)


@pytest.mark.slow
def test_healing_ends_with_the_bytes_of_a_run_that_never_failed(job: Workspace) -> None:
    assert clean(job, "--on-error", "reject").status == 0
    write_function(job, MENDED)
    clean(job, "--on-error", "reject", "--only-rejected", "KeyError", status=1, err="--on-job-change")
    before = job.run("ledger", "status", "L", "--json").json["records"]
    assert before["rejected"]["KeyError"] == 11, "nothing is withdrawn for a job that is refused"
    ran = clean(job, "--on-error", "reject", "--only-rejected", "KeyError", "--on-job-change", "accept", status=0)
    assert ran.json["records"]["rejected"] == {"not decoded": 37}
    assert clean(job, "--on-error", "reject", output="clean", ledger="L2").status == 0
    shown = ("out", "clean")
    found, expected = ({k: v for k, v in job.files(name).items() if "_ledgerbeam" not in k} for name in shown)
    # Tasks that had no reason to run again are those of the former function, which made the same of them.
    assert found == expected
    status = [job.run("ledger", "status", ledger, "--json").json["records"] for ledger in ("L", "L2")]
    assert status[0] == status[1]


@pytest.mark.slow
def test_the_reject_files_of_healed_tasks_go(workspace: Workspace) -> None:
    workspace.jsonl("in/a.jsonl", 30)
    write_function(workspace)
    command = ("map", "cleaning:refuse", "in/*.jsonl", "--output", "out", "--to", "tar", "--ledger", "L")
    (workspace.root / "cleaning.py").write_text(
        "from ledgerbeam import Reject\n"
        "def refuse(record):\n"
        "    return Reject('no title') if record['id'] == 3 else {'json': b'{}'}\n"
    )
    workspace.succeed(*command, "--on-error", "reject", "--json")
    assert [path.name for path in (workspace.root / "out/_rejects").iterdir()] == ["a.jsonl-0000000000.jsonl"]
    (workspace.root / "cleaning.py").write_text("def refuse(record):\n    return {'json': b'{}'}\n")
    ran = workspace.succeed(*command, "--only-rejected", "--on-job-change", "accept", "--json")
    assert (ran.json["records"]["rejected"], ran.json["records"]["written"]) == ({}, {"": 30})
    assert not list((workspace.root / "out").rglob("_rejects/*"))
    ran = workspace.run(*command, "--only-rejected", "Key*", status=2)
    assert "no record was rejected for such a reason; the reasons are: none" in ran.err


def refuse(workspace: Workspace, *options: str, output: str = "out", ledger: str = "L", **how: Any) -> Ran:
    command = ("map", "cleaning:refuse", "in/*.jsonl", "--output", output, "--to", "jsonl", "--ledger", ledger)
    return workspace.run(*command, "--json", *options, **how)


@pytest.fixture
def refusing(workspace: Workspace) -> Workspace:
    """Ten records, of which one is rejected and one is dropped, a hundred times."""
    workspace.jsonl("in/a.jsonl", 600)
    workspace.jsonl("in/b.jsonl", 400, first=600)
    write_function(workspace)
    return workspace


@pytest.mark.slow
def test_a_record_that_is_rejected_fails_its_task_unless_it_may_be(refusing: Workspace) -> None:
    ran = refuse(refusing)
    assert (ran.status, ran.json["tasks"]["failed"]) == (3, 2)
    ran = refuse(refusing, "--on-error", "reject")
    assert (ran.status, ran.json["tasks"]["failed"]) == (0, 0)
    records = ran.json["records"]
    assert records == {
        "read": 1000,
        "kept": 800,
        "dropped": {"returned nothing": 100},
        "rejected": {"no title": 100},
        "written": {"": 800},
    }


@pytest.mark.slow
@pytest.mark.parametrize(("low", "high"), [("reject:99", "reject:100"), ("reject:9.9%", "reject:10%")])
def test_above_the_limit_all_that_is_done_stays(refusing: Workspace, low: str, high: str) -> None:
    for _ in range(2):
        ran = refuse(refusing, "--on-error", low, status=1, err=f"--on-error {low}: expected at most")
        assert "found 100 of 1,000 read (no title 100)" in ran.err
    ran = refuse(refusing, "--on-error", high)
    assert (ran.status, ran.json["skipped"]) == (0, 2)


@pytest.mark.slow
def test_a_runner_that_nobody_watches_holds_to_the_limit(refusing: Workspace) -> None:
    ran = refuse(refusing, "--on-error", "reject:30", "--", "--runner=BundleBasedDirectRunner", status=1)
    assert "expected at most 30 rejected records" in ran.err
    ran = refuse(refusing, "--on-error", "reject:100", "--", "--runner=BundleBasedDirectRunner", status=0)
    assert ran.json["records"]["rejected"] == {"no title": 100}
    ran = refuse(refusing, "--only-rejected", "--", "--runner=BundleBasedDirectRunner", status=2)
    assert "work on the local runner only" in ran.err


@pytest.mark.slow
def test_the_command_shows_what_was_rejected(refusing: Workspace) -> None:
    assert refuse(refusing, "--on-error", "reject").status == 0
    shown = refusing.run("ledger", "rejects", "L").out
    assert shown.startswith("100 records of 2 sources: no title\n")
    assert f"{refusing.root}/in/a.jsonl: record 3, bytes [" in shown
    assert ": record 3 has none\n" in shown
    assert "and 95 more; --limit 100 shows all" in shown
    assert "--only-rejected 'no title'" in shown
    found = refusing.run("ledger", "rejects", "L", "--json", "--source", "*b.jsonl", "--limit", "2").json
    assert found["rejected"] == {"no title": 40}
    assert [(row["record"], row["file"]) for row in found["examples"]] == [
        (3, "_rejects/b.jsonl-0000000000.jsonl"),
        (13, "_rejects/b.jsonl-0000000000.jsonl"),
    ]
    assert refusing.run("ledger", "rejects", "L", "--reason", "Key*").out == "no rejected records\n"
    (refusing.root / "out/_rejects/a.jsonl-0000000000.jsonl").unlink()
    refusing.run("ledger", "rejects", "L", status=1, err="_rejects/a.jsonl-0000000000.jsonl")
    assert refuse(refusing, "--on-error", "reject").status == 0
    assert refusing.run("ledger", "rejects", "L").status == 0


@pytest.mark.slow
def test_rejects_and_routes_are_the_job_s_own(workspace: Workspace) -> None:
    """No source of the job, and of no other job but one that names them."""
    workspace.jsonl("data/a.jsonl", 30)
    (workspace.root / "f.py").write_text(
        "from ledgerbeam import Reject, Route\n"
        "def f(record):\n"
        "    return Reject('odd') if record['id'] % 2 else Route('even', record)\n"
        "def g(record):\n"
        "    return record\n"
    )
    for output in ("data", "data/out"):
        command = ("map", "f:f", "data/**/*.jsonl", "--output", output, "--to", "jsonl", "--on-error", "reject")
        for number in range(2):
            ran = workspace.succeed(*command, "--ledger", f"L-{output.replace('/', '-')}", "--json")
            assert (ran.json["sources"]["complete"], ran.json["skipped"]) == (1, number)
        if output == "data":
            ran = workspace.run("map", "f:f", "data/a.jsonl", "--output", output, "--to", "tar", "--ledger", "other")
            assert ran.status == 2
            assert "it belongs to another ledger" in ran.err
            for path in (*(workspace.root / "data").rglob("*-0*"), *(workspace.root / "data").rglob("_led*/*")):
                path.unlink()
    ran = workspace.run("map", "f:g", "data/**/*.jsonl", "--output", "all", "--to", "jsonl", "--json")
    assert ran.json["records"]["read"] == 45
    ran = workspace.run("map", "f:g", "data/out/_rejects/*.jsonl", "--output", "odd", "--to", "jsonl", "--json")
    assert ran.json["records"]["read"] == 15


@pytest.mark.slow
def test_shards_of_routes_and_rejects_that_nobody_owns_are_replaced(refusing: Workspace) -> None:
    assert refuse(refusing, "--on-error", "reject").status == 0
    for path in (refusing.root / "out").rglob("*"):
        if path.is_file() and "_rejects" not in path.parts:
            path.unlink()
    refuse(refusing, "--on-error", "reject", ledger="L2", status=2, err="_rejects/")
    refuse(refusing, "--on-error", "reject", "--existing", "replace", ledger="L2", status=0)


@pytest.mark.slow
def test_a_source_that_changed_takes_its_rejects_away(refusing: Workspace) -> None:
    assert refuse(refusing, "--on-error", "reject:100").status == 0
    refusing.jsonl("in/a.jsonl", 3)
    ran = refuse(refusing, "--on-error", "reject:40", status=0)
    assert ran.json["records"]["rejected"] == {"no title": 40}
    names = [path.name for path in (refusing.root / "out/_rejects").iterdir()]
    assert names == ["b.jsonl-0000000000.jsonl"]


@pytest.mark.slow
@pytest.mark.parametrize("form", ["webdataset", "energon", "lit"])
def test_each_route_is_a_dataset_with_metadata_of_its_own(workspace: Workspace, form: str) -> None:
    workspace.jsonl("in/a.jsonl", 30)
    (workspace.root / "f.py").write_text(
        "from ledgerbeam import Reject, Route\n"
        "def f(record):\n"
        "    number = record['id']\n"
        "    if number == 4:\n"
        "        return Reject('four')\n"
        "    sample = {'txt': record['text'], 'json': b'{}'}\n"
        "    return Route('odd', sample) if number % 2 else Route('even', sample)\n"
    )
    command = ("map", "f:f", "in/*.jsonl", "--output", "out", "--to", form, "--ledger", "L", "--on-error", "reject")
    ran = workspace.succeed(*command, "--json")
    root = workspace.root / "out"
    assert {Path(url).relative_to(root).parts[0] for url in ran.json["published"]} == {"odd", "even"}
    if form == "webdataset":
        wids = json.loads((root / "odd/wids.json").read_text())
        assert [(shard["url"], shard["nsamples"]) for shard in wids["shardlist"]] == [("a.jsonl-0000000000.tar", 15)]
    again = workspace.run(*command, "--json")
    assert again.json["published"] == ran.json["published"]
    assert workspace.run("publish", "L", "--as", "webdataset").status == 2
    ran = workspace.run("publish", "L", "--as", "webdataset", "--route", "even", "--json")
    assert (ran.status, ran.json["records"]) == (0, 14)
    for route, message in (("none", "--route NAME takes: 'even', 'odd'"), ("_rejects", "read rejected records")):
        ran = workspace.run("publish", "L", "--as", "webdataset", "--route", route, status=2, err=message)


@pytest.mark.slow
def test_a_route_that_is_a_folder_of_sources_ends_the_job(workspace: Workspace) -> None:
    workspace.jsonl("in/a.jsonl", 3)
    workspace.jsonl("in/en/b.jsonl", 3)
    (workspace.root / "f.py").write_text("from ledgerbeam import Route\ndef f(r):\n    return Route('en', r)\n")
    workspace.run("map", "f:f", "in/**/*.jsonl", "--output", "out", "--to", "jsonl", status=2, err="route 'en'")
    assert not list((workspace.root / "out").glob("**/*.jsonl"))


@pytest.mark.slow
def test_rejects_on_an_object_store_with_a_remote_ledger(workspace: Workspace, s3: S3Server) -> None:
    """And healed there."""
    bucket = s3.bucket()
    workspace.jsonl("in/a.jsonl", 600)
    write_function(workspace)
    options = json.dumps(s3.options)

    def run(*more: str, **how: Any) -> Ran:
        command = ("map", "cleaning:refuse", "in/*.jsonl", "--output", f"s3://{bucket}/out", "--to", "jsonl")
        ledger = ("--ledger", f"s3://{bucket}/L", "--storage-options", options)
        return workspace.run(*command, *ledger, "--json", *more, **how)

    run("--on-error", "reject:59", status=1, err="found 60 of 600 read")
    run("--on-error", "reject:60", status=0)
    shown = workspace.run("ledger", "rejects", f"s3://{bucket}/L", "--storage-options", options, "--json")
    assert shown.json["rejected"] == {"no title": 60}
    (workspace.root / "cleaning.py").write_text("def refuse(record):\n    return record\n")
    ran = run("--only-rejected", "no title", "--on-job-change", "accept", status=0)
    assert ran.json["records"]["rejected"] == {}
    shown = workspace.run("ledger", "outputs", f"s3://{bucket}/L", "--storage-options", options, "--json")
    assert {output["route"] for output in shown.json["outputs"]} == {""}


@each(
    ("text", "limit"),
    [
        ("fail", None),
        ("reject", RejectLimit("reject")),
        ("reject:0", RejectLimit("reject:0", most=0)),
        ("reject:48", RejectLimit("reject:48", most=48)),
        ("reject:0.1%", RejectLimit("reject:0.1%", percent=0.1)),
        ("reject:.5%", RejectLimit("reject:.5%", percent=0.5)),
        ("reject:100%", RejectLimit("reject:100%", percent=100.0)),
    ],
)
def test_what_may_be_rejected_is_read(text: str, limit: RejectLimit | None) -> None:
    assert parse_on_error(text) == limit


@each(
    "text",
    [
        *("", "skip", "reject:", "reject:-1", "reject:1.5", "reject:%", "reject:1e2%", "reject:nan%", "reject:x"),
        *("fail:3", "reject:1.2.3%", "reject:٣", "reject:٣%", "REJECT", "reject:1 %"),
    ],
)
def test_anything_else_is_refused_by_name(text: str) -> None:
    with pytest.raises(UsageError, match="expected fail, reject, reject:N"):
        parse_on_error(text)


def test_a_share_is_at_most_all() -> None:
    with pytest.raises(UsageError, match=r"expected at most 100 %, found 100\.1 %"):
        parse_on_error("reject:100.1%")


def record(store: LedgerStore, read: int, **rejected: int) -> None:
    source = Source(f"/data/{store.source_count()}.jsonl", 1, "1")
    store.register([source])
    kept = read - sum(rejected.values())
    counts = RecordCounts(read, kept, {}, rejected, {"": kept} if kept else {})
    store.commit([Leaf(source.id, ((0, 1),), records=kept, counts=counts)])


def limit(text: str) -> RejectLimit:
    found = parse_on_error(text)
    assert found is not None
    return found


def test_a_number_is_exceeded_by_one_more(store: LedgerStore) -> None:
    limit("reject:0").check(store, ended=True)
    record(store, 100, KeyError=3)
    limit("reject:3").check(store, ended=False)
    record(store, 100, KeyError=1)
    for ended in (False, True):
        with pytest.raises(RejectLimitError, match=r"expected at most 3 records rejected, found 4 of 200 read"):
            limit("reject:3").check(store, ended=ended)
    limit("reject:4").check(store, ended=True)
    limit("reject").check(store, ended=True)


def test_a_share_is_looked_at_once_enough_is_read_and_at_the_end(store: LedgerStore) -> None:
    record(store, SHARE_RECORDS - 1, KeyError=200)
    limit("reject:1%").check(store, ended=False)
    with pytest.raises(RejectLimitError, match=r"at most 1 % of the records rejected, found 200 of 9,999 read"):
        limit("reject:1%").check(store, ended=True)
    record(store, 1)
    with pytest.raises(RejectLimitError):
        limit("reject:1%").check(store, ended=False)
    limit("reject:2%").check(store, ended=False)


def test_the_message_names_the_most_frequent_reasons_and_the_remedy(store: LedgerStore) -> None:
    record(store, 100, a=1, b=5, c=2, d=1)
    with pytest.raises(RejectLimitError) as error:
        limit("reject:5").check(store, ended=True)
    assert "--on-error reject:5: expected at most 5 records rejected, found 9 of 100 read" in str(error.value)
    assert "(b 5, c 2, a 1 and 1 more reason)" in str(error.value)
    assert f"ledgerbeam ledger rejects {store.url}" in str(error.value)
    assert "higher limit" in str(error.value)
    assert error.value.exit_status == 1
