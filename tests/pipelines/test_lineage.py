"""OpenLineage events: events of runs at a server on this machine, and runs with a server that does not answer."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import socket
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from ledgerbeam._base.extensions import install_command
from ledgerbeam.pipelines.report.lineage import WAIT_SECONDS, Dataset, dataset, is_configured, run_id_of
from tests.cases import each
from tests.pipelines.conftest import Workspace, run_failing
from tests.pipelines.jobs.test_restart import SLOW, tasks_done, wait_for, write_sources
from tests.servers.process import QuietHandler, serving

needs_client = pytest.mark.skipif(
    importlib.util.find_spec("openlineage") is None, reason="no lineage: pip install 'ledgerbeam[lineage]'"
)
SPEC = os.environ.get("OPENLINEAGE_SPEC")
KEEP = ("map", "functions:keep", "in/*.jsonl", "--output", "out", "--to", "jsonl", "--ledger", "L")


@dataclass
class Collector:
    """What a collector of OpenLineage events has received, in order."""

    url: str = ""
    status: int = 201  # HTTP status of the answers
    events: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()

    class Handler(QuietHandler):
        def do_POST(self) -> None:
            assert self.path == "/api/v1/lineage"
            made.events.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            made.headers.append(dict(self.headers.items()))
            self.send_response(made.status)
            self.send_header("Content-Length", "0")
            self.end_headers()

    with serving(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as made.url:
        yield made


@pytest.fixture
def told(workspace: Workspace, collector: Collector) -> Workspace:
    """A working folder with OpenLineage configured."""
    workspace.env.update(OPENLINEAGE_URL=collector.url, OPENLINEAGE_API_KEY="key-of-lineage")
    return workspace


def facets_of(event: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for found in (event["run"], event["job"], *event["inputs"], *event["outputs"]):
        yield from (*found["facets"].values(), *found.get("outputFacets", {}).values())


def check_form(event: dict[str, Any]) -> None:
    """Check an event against the rules of the specification, and against its schema if the schema is available."""
    assert event["schemaURL"].endswith("OpenLineage.json#/$defs/RunEvent")
    assert event["producer"].startswith("https://github.com/ledgerbeam/ledgerbeam/")
    assert str(uuid.UUID(event["run"]["runId"])) == event["run"]["runId"]
    assert event["job"]["namespace"]
    assert event["job"]["name"]
    assert all(set(found) >= {"namespace", "name"} for found in (*event["inputs"], *event["outputs"]))
    for facet in facets_of(event):
        assert facet["_producer"].startswith("https://")
        assert facet["_schemaURL"].startswith("https://openlineage.io/spec/facets/")


@needs_client
def test_a_run_tells_what_it_read_and_wrote(told: Workspace, collector: Collector) -> None:
    told.jsonl("in/a.jsonl", 30)
    ran = told.run(*KEEP, status=0)
    assert "OpenLineage" not in ran.out + ran.err
    assert [event["eventType"] for event in collector.events] == ["START", "COMPLETE"]
    assert all(headers["Authorization"] == "Bearer key-of-lineage" for headers in collector.headers)
    start, end = collector.events
    status = told.run("ledger", "status", "L", "--json").json
    ledger_id = json.loads(next((told.root / "out/_ledgerbeam").glob("*.json")).read_text())["ledger"]
    for event in (start, end):
        check_form(event)
        assert event["run"]["runId"] == run_id_of(ledger_id, "000001")
        assert event["job"]["namespace"] == "default"
        assert event["job"]["name"] == f"map {told.root}/out"
        assert [(d["namespace"], d["name"]) for d in event["inputs"]] == [("file", f"{told.root}/in")]
        assert [(d["namespace"], d["name"]) for d in event["outputs"]] == [("file", f"{told.root}/out")]
        engine = event["run"]["facets"]["processing_engine"]
        assert engine["name"] == "Apache Beam (local)"
        assert event["run"]["facets"]["parent"]["run"]["runId"] == run_id_of(ledger_id, "")
        assert event["run"]["facets"]["parent"]["job"]["name"] == f"ledger {told.root}/L"
    assert start["eventTime"] < end["eventTime"]
    written = end["outputs"][0]["outputFacets"]["outputStatistics"]
    assert (written["rowCount"], written["size"]) == (30, status["bytes"])
    assert "outputStatistics" not in start["outputs"][0]["outputFacets"]


@pytest.mark.slow
@needs_client
def test_a_run_that_fails_and_the_one_that_mends_it_are_of_one_job(told: Workspace, collector: Collector) -> None:
    told.env.update(
        OPENLINEAGE_NAMESPACE="corpus", OPENLINEAGE_PARENT_ID="flows/nightly/0192f0d0-0000-7000-8000-000000000001"
    )
    run_failing(told)
    (told.root / "service-is-up").touch()
    for path in (told.root / "in").glob("*.jsonl"):
        path.write_text("".join(line for line in path.read_text().splitlines(True) if '"id": 7,' not in line))
    again = told.run("map", "functions:needs_service", *("in/*.jsonl", "--output", "out", "--to", "jsonl"),
                     *("--task-bytes", "200", "--ledger", "L"))  # fmt: skip
    assert again.status == 0, again.err
    assert [event["eventType"] for event in collector.events] == ["START", "FAIL", "START", "COMPLETE"]
    failed, complete = collector.events[1], collector.events[3]
    assert failed["run"]["facets"]["errorMessage"]["message"].startswith("3 tasks failed")
    assert failed["run"]["facets"]["errorMessage"]["programmingLanguage"] == "PYTHON"
    assert failed["run"]["runId"] != complete["run"]["runId"]
    assert failed["job"] == complete["job"]
    assert complete["job"]["namespace"] == "corpus"
    assert "errorMessage" not in complete["run"]["facets"]
    parent = complete["run"]["facets"]["parent"]
    assert (parent["job"]["namespace"], parent["job"]["name"]) == ("flows", "nightly")
    assert parent["run"]["runId"] == "0192f0d0-0000-7000-8000-000000000001"


@pytest.mark.slow
@needs_client
def test_a_run_that_cannot_begin_its_work_tells_why(told: Workspace, collector: Collector) -> None:
    told.jsonl("in/a.jsonl", 5)
    assert told.run(*KEEP, "--", "--no_such_beam_option").status != 0
    assert collector.events == [], "no run has begun"
    told.jsonl("in/a.jsonl", 400)
    limited = ("map", "functions:unserialisable", "in/*.jsonl", "--output", "bad", "--to", "jsonl", "--ledger", "B")
    ran = told.run(*limited, "--on-error", "reject:1", status=1)
    assert [event["eventType"] for event in collector.events] == ["START", "FAIL"]
    message = collector.events[1]["run"]["facets"]["errorMessage"]["message"]
    assert message in ran.err


@needs_client
@pytest.mark.slow
def test_an_interrupted_run_is_aborted(told: Workspace, collector: Collector) -> None:
    write_sources(told)
    process = told.start(*SLOW)
    wait_for(lambda: tasks_done(told) > 3, process)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=60)[0]
    assert process.returncode == 130, said
    assert [event["eventType"] for event in collector.events] == ["START", "ABORT"]


@needs_client
def test_the_schema_of_columns_and_no_secret_is_told(told: Workspace, collector: Collector) -> None:
    told.jsonl("in/a.jsonl", 5)
    ran = told.run("convert", "in/*.jsonl", "--output", "out", "--to", "parquet", "--ledger", "L",
                   "--storage-options", '{"password": "hunter2"}')  # fmt: skip
    assert ran.status == 0, ran.err
    fields = collector.events[-1]["outputs"][0]["facets"]["schema"]["fields"]
    assert [(field["name"], field["type"]) for field in fields] == [("id", "int64"), ("text", "string")]
    assert "hunter2" not in json.dumps(collector.events)


@pytest.mark.slow
@needs_client
@pytest.mark.parametrize("state", ["refused", "silent", "broken"])
def test_a_dead_server_is_a_warning_and_costs_little(workspace: Workspace, collector: Collector, state: str) -> None:
    workspace.jsonl("in/a.jsonl", 5)
    silent = socket.create_server(("127.0.0.1", 0))  # accepts connections, and never answers
    port = silent.getsockname()[1]
    if state == "refused":
        silent.close()
    collector.status = 500
    workspace.env["OPENLINEAGE_URL"] = collector.url if state == "broken" else f"http://127.0.0.1:{port}"
    began = time.monotonic()
    ran = workspace.run(*KEEP, "--json")
    took = time.monotonic() - began
    assert ran.status == 0, ran.err
    assert ran.json["complete"]
    warned = [line for line in ran.err.splitlines() if "OpenLineage" in line]
    assert len(warned) == 1, ran.err
    assert "the run is not affected" in warned[0]
    assert "Retry" not in ran.err.replace(warned[0], "")
    assert took - ran.json["seconds"] < WAIT_SECONDS + 30, "starting and ending Python is in it, on a busy machine"
    assert ran.json["seconds"] < 60 + WAIT_SECONDS
    silent.close()


@pytest.mark.slow
@needs_client
def test_events_go_to_a_file_if_that_is_configured(workspace: Workspace, tmp_path: Path) -> None:
    workspace.jsonl("in/a.jsonl", 5)
    kept = tmp_path / "events.jsonl"
    (workspace.root / "openlineage.yml").write_text(
        f"transport:\n  type: file\n  log_file_path: {kept}\n  append: true\n"
    )
    assert workspace.run(*KEEP).status == 0
    assert [json.loads(line)["eventType"] for line in kept.read_text().splitlines()] == ["START", "COMPLETE"]
    kept.unlink()
    assert workspace.run(*KEEP, env={"OPENLINEAGE_DISABLED": "true"}).status == 0
    assert not kept.exists()


@needs_client
def test_a_configuration_that_does_not_read_is_a_warning(workspace: Workspace) -> None:
    workspace.jsonl("in/a.jsonl", 5)
    ran = workspace.run(*KEEP, env={"OPENLINEAGE__TRANSPORT__TYPE": "no-such-transport"}, status=0)
    assert "OpenLineage events cannot be sent; the run is not affected" in ran.err


def test_who_lacks_the_client_is_told_once_how_to_get_it(workspace: Workspace, tmp_path: Path) -> None:
    workspace.jsonl("in/a.jsonl", 5)
    hidden = tmp_path / "hidden" / "openlineage"
    hidden.mkdir(parents=True)
    (hidden / "__init__.py").write_text("raise ImportError('not installed')\n")
    env = {"PYTHONPATH": f"{hidden.parent}:{workspace.env['PYTHONPATH']}", "OPENLINEAGE_URL": "http://127.0.0.1:1"}
    ran = workspace.run(*KEEP, env=env, status=0)
    assert ran.err.count(install_command("lineage")) == 1
    assert "OpenLineage" not in workspace.run(*KEEP).err


@needs_client
@pytest.mark.skipif(SPEC is None, reason="no schemas: set OPENLINEAGE_SPEC to the folder spec of OpenLineage's sources")
def test_events_are_what_the_official_schema_demands(told: Workspace, collector: Collector) -> None:
    from jsonschema import Draft202012Validator  # type: ignore[import-untyped]
    from referencing import Registry, Resource

    found = [json.loads(path.read_text()) for path in Path(str(SPEC)).rglob("*.json")]
    known = [(each["$id"], Resource.from_contents(each)) for each in found if isinstance(each, dict) and "$id" in each]
    registry: Any = Registry().with_resources(known)
    run_failing(told)
    assert told.run("convert", "in/*.jsonl", *("--output", "o", "--to", "parquet", "--ledger", "P")).status == 0
    assert len(collector.events) == 4
    for event in collector.events:
        Draft202012Validator({"$ref": event["schemaURL"].split("#")[0]}, registry=registry).validate(event)
        for facet in facets_of(event):
            Draft202012Validator({"$ref": facet["_schemaURL"]}, registry=registry).validate(facet)


@each(
    ("url", "expected"),
    [
        ("/data/in/", Dataset("file", "/data/in")),
        ("file:///data/in", Dataset("file", "/data/in")),
        ("/", Dataset("file", "/")),
        ("s3://bucket/a/b/", Dataset("s3://bucket", "a/b")),
        ("s3://bucket", Dataset("s3://bucket", "/")),
        ("gs://bucket/a", Dataset("gs://bucket", "a")),
        ("gcs://bucket/a", Dataset("gs://bucket", "a")),
        ("abfs://box@account.dfs.core.windows.net/a", Dataset("abfss://box@account.dfs.core.windows.net", "a")),
        ("az://box/a", Dataset("abfss://box@account.dfs.core.windows.net", "a")),
        ("https://host:8080/a/b", Dataset("https://host:8080", "a/b")),
        ("ftp://user:secret@host/a", Dataset("ftp://user:***@host", "a")),
    ],
)
def test_datasets_have_the_names_of_the_specification(url: str, expected: Dataset) -> None:
    assert dataset(url, {"account_name": "account"}) == expected


def test_the_id_of_a_run_follows_from_its_ledger_and_number() -> None:
    one, other = "0123456789abcdef" * 2, "f" * 32
    assert run_id_of(one, "000001") == run_id_of(one, "000001") == "1656cb89-c6ef-5d96-ac0a-d505ce3fe173"
    ids = {run_id_of(ledger, run) for ledger in (one, other) for run in ("", "000001", "000002")}
    assert len(ids) == 6
    assert all(uuid.UUID(found).version == 5 for found in ids)


def test_it_is_configured_where_its_client_looks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in [name for name in os.environ if name.startswith("OPENLINEAGE")]:
        monkeypatch.delenv(name)
    assert not is_configured()
    for name in ("OPENLINEAGE_URL", "OPENLINEAGE_CONFIG", "OPENLINEAGE__TRANSPORT", "OPENLINEAGE__TRANSPORT__TYPE"):
        monkeypatch.setenv(name, "something")
        assert is_configured()
        monkeypatch.delenv(name)
    for place in (tmp_path / "openlineage.yml", tmp_path / "home/.openlineage/openlineage.yml"):
        place.parent.mkdir(parents=True, exist_ok=True)
        place.touch()
        assert is_configured()
        monkeypatch.setenv("OPENLINEAGE_DISABLED", " True")
        assert not is_configured()
        monkeypatch.delenv("OPENLINEAGE_DISABLED")
        place.unlink()
    assert not is_configured()
