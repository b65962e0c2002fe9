"""Jobs over WARC: by record with an index, as a stream without one, restarts inside of a file, and damage."""

from __future__ import annotations

import gzip
import json
import os
import signal
from pathlib import Path

import pytest

from ledgerbeam.io.warc import record_bytes
from tests.io.warc.content import by_record, records
from tests.pipelines.conftest import Workspace
from tests.pipelines.jobs.test_restart import tasks_done, wait_for

PAGES = """
import time
from ledgerbeam.io.warc import decoded_payload

def texts(record):
    time.sleep(PAUSE)
    if record["type"] == "response":
        return None
    return {"url": record["url"], "text": decoded_payload(record).decode()}
"""
RECORDS = records(600)
TEXTS = [
    {"url": record["url"], "text": record["payload"].decode()} for record in RECORDS if record["type"] == "conversion"
]
OPTIONS = ("--task-bytes", "16K", "--json")


@pytest.fixture
def crawl(workspace: Workspace) -> Workspace:
    (workspace.root / "in").mkdir()
    (workspace.root / "in/a.warc.gz").write_bytes(by_record(list(map(record_bytes, RECORDS))))
    (workspace.root / "pages.py").write_text(PAGES.replace("PAUSE", "0"))
    return workspace


@pytest.mark.slow
def test_pages_are_mapped_with_and_without_an_index(crawl: Workspace) -> None:
    command = ("map", "pages:texts", "in/*.warc.gz", "--to", "jsonl", *OPTIONS)
    ran = crawl.run(*command, "--output", "streamed", status=0)
    assert ran.json["tasks"]["done"] > 5
    assert crawl.records("streamed") == TEXTS
    ran = crawl.run("index", "in/*.warc.gz", "--json")
    assert (ran.status, ran.json["records"]["read"]) == (0, 600), ran.err
    assert sorted(path.name for path in (crawl.root / "in").iterdir()) == [
        *("a.warc.gz", "a.warc.gz.gzidx", "a.warc.gz.idx")
    ]
    crawl.run(*command, "--output", "indexed", "--workers", "2", status=0)
    assert crawl.files("indexed") == crawl.files("streamed")
    assert crawl.run("index", "verify", "--deep", "in/*.warc.gz").status == 0
    shown = crawl.run("show", "in/a.warc.gz", "1", "--json").json["records"][0]["value"]
    assert (shown["type"], shown["url"]) == ("conversion", "http://example.org/1")
    assert crawl.run("show", "in/a.warc.gz", "--json").json["format"] == "warc"


@pytest.mark.slow
def test_records_are_converted_without_loss(crawl: Workspace) -> None:
    plain = b"".join(map(record_bytes, RECORDS))
    for name, content in (("in/b.warc", plain), ("in/c.warc.gz", gzip.compress(plain))):
        (crawl.root / name).write_bytes(content)
    for name in ("a.warc.gz", "b.warc", "c.warc.gz"):
        crawl.run("convert", f"in/{name}", "--output", name, "--to", "jsonl", *OPTIONS, status=0)
        assert b"".join(crawl.files(name)[file] for file in sorted(crawl.files(name)) if file.endswith(".jsonl"))
        found = crawl.records(name)
        assert [row["headers"] for row in found] == [record["headers"] for record in RECORDS]
        assert found[2] == json.loads(json.dumps({**RECORDS[2], "payload": found[2]["payload"]}))
        assert "__base64__" in found[2]["payload"]


@pytest.mark.slow
def test_a_killed_job_goes_on_inside_of_an_archive(crawl: Workspace) -> None:
    (crawl.root / "pages.py").write_text(PAGES.replace("PAUSE", "0.02"))
    assert crawl.run("index", "in/*.warc.gz").status == 0
    command = ("map", "pages:texts", "in/*", "--output", "out", "--to", "jsonl", "--ledger", "L", *OPTIONS)
    process = crawl.start(*command, "--workers", "1", "--flush-interval", "0.05", "--audit=off")
    wait_for(lambda: tasks_done(crawl) > 1, process)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    before = tasks_done(crawl)
    ran = crawl.run(*command, "--audit=off", status=0)
    assert 1 < before < ran.json["tasks"]["done"] + before
    assert crawl.records("out") == TEXTS


@pytest.mark.slow
def test_damage_is_told_by_its_place(crawl: Workspace) -> None:
    parts = list(map(record_bytes, RECORDS))
    parts[100] = parts[100].replace(b"WARC-Type: ", b"WARC-Tape: ", 1)
    parts[200] = parts[200].replace(b"WARC/1.1", b"WARC/x.y", 1)
    path: Path = crawl.root / "in/a.warc.gz"
    path.write_bytes(by_record(parts))
    command = ("map", "pages:texts", "in/*", "--output", "out", "--to", "jsonl", "--ledger", "L", *OPTIONS)
    ran = crawl.run(*command, status=3, err="record 100, bytes [")
    assert "expected a header WARC-Type, found WARC-Tape, WARC-Target-URI" in ran.err
    ran = crawl.run(*command, "--on-error", "reject", status=0)
    assert ran.json["records"]["rejected"] == {"not decoded": 2}
    written = [row for row in crawl.records("out") if "raw" not in row]
    assert written == [row for row in TEXTS if not row["url"].endswith(("/100", "/200"))]
    data = bytearray(by_record(list(map(record_bytes, RECORDS))))
    path.write_bytes(data[: len(data) // 2])
    ran = crawl.run("map", "pages:texts", "in/*", "--output", "cut", "--to", "jsonl", *OPTIONS, status=3)
    assert "a.warc.gz: the gzip data is cut off" in ran.err
    assert crawl.files("cut") == {}


@pytest.mark.slow
def test_an_archive_that_is_not_compressed_by_record_is_told(crawl: Workspace) -> None:
    hint = "a.warc.gz: one worker reads it from its beginning, since its records are not compressed separately"
    command = ("map", "pages:texts", "in/*.warc.gz", "--to", "jsonl", *OPTIONS)
    ran = crawl.run(*command, "--output", "by-record")
    assert (ran.status, hint in ran.err) == (0, False), ran.err
    (crawl.root / "in/a.warc.gz").write_bytes(gzip.compress(b"".join(map(record_bytes, RECORDS))))
    ran = crawl.run(*command, "--output", "at-once")
    assert (ran.status, ran.err.count(hint)) == (0, 1), ran.err
    assert "fastwarc recompress " in ran.err
    assert crawl.records("at-once") == crawl.records("by-record")
