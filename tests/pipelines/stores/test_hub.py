"""Jobs that read from the Hub and from web servers, and the command that sends their outputs to the Hub."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator

import pytest

from ledgerbeam.io.datasets.webdataset import open_wids
from tests.pipelines.conftest import Ran, Workspace
from tests.servers.hub import TOKEN, HubServer, Repository, hub_server
from tests.servers.web import web_server

pytest.importorskip("huggingface_hub")
pytestmark = pytest.mark.slow

TO = "hf://datasets/some/one"


def lines(count: int, text: str = "text") -> bytes:
    return b"".join(b'{"id": %d, "text": "%s"}\n' % (number, text.encode()) for number in range(count))


@pytest.fixture
def hub() -> Iterator[HubServer]:
    with hub_server() as server:
        server.dataset("some/one", {"data/a.jsonl": lines(30), "data/b.jsonl": lines(20)})
        yield server


@pytest.fixture
def dataset(hub: HubServer) -> Repository:
    return hub.repositories["datasets/some/one"]


def run(workspace: Workspace, hub: HubServer, *command: str, status: int = 0) -> Ran:
    ran = workspace.run(*command, env=hub.env, status=status)
    assert TOKEN not in ran.out + ran.err
    assert "Traceback" not in ran.err
    return ran


def work(workspace: Workspace, hub: HubServer, source: str, *options: str, status: int = 0) -> Ran:
    command = ("map", "functions:upper", source, "--output", "out", "--to", "jsonl", "--ledger", "L")
    return run(workspace, hub, *command, "--index-root", "indexes", *options, status=status)


def test_a_touched_but_equal_file_is_not_done_again(workspace: Workspace, hub: HubServer, dataset: Repository) -> None:
    source = f"{TO}/data/*.jsonl"
    assert "50 records in this run" in work(workspace, hub, source).out
    dataset.commit({**dataset.files(), "README.md": hub.blob("README.md", b"new")})
    assert "2 skipped as complete before" in work(workspace, hub, source).out
    changed = {**dataset.files(), "data/b.jsonl": hub.blob("data/b.jsonl", lines(25, "other"))}
    dataset.commit(changed)
    assert "25 records in this run" in work(workspace, hub, source).out
    texts = [record["text"] for record in workspace.records("out")]
    assert (texts.count("TEXT"), texts.count("OTHER")) == (30, 25)


def test_a_branch_that_moves_under_a_job_is_noticed(workspace: Workspace, hub: HubServer, dataset: Repository) -> None:
    """The second file of the job is replaced once the first one is read."""
    moved = {**dataset.files(), "data/b.jsonl": hub.blob("data/b.jsonl", lines(20, "late"))}

    class Asked(list[str]):
        def append(self, line: str) -> None:
            if "/resolve/" in line and dataset.files() is not dataset.commits.get("moved"):
                dataset.commits["moved"] = moved
                dataset.branches["main"] = "moved"
            super().append(line)

    hub.asked = Asked()
    ran = work(workspace, hub, f"{TO}/data/*.jsonl", status=3)
    assert "data/b.jsonl: changed since it was listed" in ran.out + ran.err
    assert "20 records in this run" in work(workspace, hub, f"{TO}/data/*.jsonl").out


def test_a_job_at_a_commit_reads_that_commit(workspace: Workspace, hub: HubServer, dataset: Repository) -> None:
    first = dataset.branches["main"]
    dataset.commit({"data/a.jsonl": hub.blob("data/a.jsonl", b"no json")})
    assert "50 records in this run" in work(workspace, hub, f"{TO}@{first}/data/*.jsonl").out


def test_without_a_place_for_indexes_the_remedy_is_said(workspace: Workspace, hub: HubServer) -> None:
    ran = run(workspace, hub, "index", f"{TO}/data/*.jsonl", "--ledger", "L", status=3)
    assert "send all files in one commit" in ran.out + ran.err
    assert "--index-root" in ran.out + ran.err


def test_other_commands_read_the_hub(workspace: Workspace, hub: HubServer) -> None:
    url = f"{TO}/data/a.jsonl"
    run(workspace, hub, "index", url, "--ledger", "I", "--index-root", "indexes")
    shown = run(workspace, hub, "show", url, "7", "--index-root", "indexes")
    assert json.loads(shown.out)["id"] == 7
    assert "1 source, 30 records" in run(workspace, hub, "verify", url, "--index-root", "indexes").out
    convert = ("convert", url, "--output", "again", "--to", "jsonl", "--ledger", "C", "--index-root", "indexes")
    run(workspace, hub, *convert)
    offline = workspace.run("show", url, "7", env={**hub.env, "HF_HUB_OFFLINE": "1"})
    said = f"ledgerbeam: error: {url}"
    assert offline.status == 1
    assert [line.startswith(said) and "HF_HUB_OFFLINE is set" in line for line in offline.err.splitlines() if line] == [
        True
    ]


def test_a_folder_of_a_web_server_is_a_source(workspace: Workspace, hub: HubServer) -> None:
    files = {"in/a b.jsonl": lines(30), "in/deep/c.jsonl": lines(20), "in/notes.txt": b"no"}
    with web_server(files=files, pages="apache") as web:
        source = f"{web.url}/in/**/*.jsonl"
        assert "50 records in this run" in work(workspace, hub, source).out
        web.modified += 60  # its ETag says that nothing has changed
        assert "2 skipped as complete before" in work(workspace, hub, source).out
        web.files["in/deep/c.jsonl"] = lines(10, "new")
        assert "10 records in this run" in work(workspace, hub, source).out
        web.has_ranges = False
        web.files["in/new.jsonl"] = lines(5)
        web.files["in/packed.jsonl.gz"] = gzip.compress(lines(6))
        assert "11 records in this run" in work(workspace, hub, f"{web.url}/in/**/*.jsonl*").out


def test_outputs_and_metadata_go_to_the_hub_and_are_read_from_there(
    workspace: Workspace, hub: HubServer, dataset: Repository
) -> None:
    workspace.jsonl("in/a.jsonl", 30)
    command = ("map", "functions:sample", "in/*.jsonl", "--output", "out", "--to", "tar", "--ledger", "L")
    run(workspace, hub, *command)
    done = run(workspace, hub, "publish", "L", "--as", "webdataset", "--to", f"{TO}/tars", "--json").json
    assert (done["format"], done["records"], done["shards"], done["same"]) == ("webdataset", 30, 1, 0)
    assert done["added"] == sorted(workspace.files("out"))
    found = {name: blob.data for name, blob in dataset.files().items() if name.startswith("tars/")}
    ours = {f"tars/{name}": data for name, data in workspace.files("out").items()}
    assert {name: data for name, data in found.items() if ".ledgerbeam" not in name} == ours
    assert len(open_wids(f"{TO}/tars/wids.json", hub.options)) == 30
    again = run(workspace, hub, "publish", "L", "--as", "webdataset", "--to", f"{TO}/tars")
    assert f"up to date: {TO}/tars, 3 files" in again.out
    workspace.jsonl("in/b.jsonl", 10)
    run(workspace, hub, *command)
    ran = run(workspace, hub, "publish", "L", "--as", "webdataset", "--to", f"{TO}/tars")
    assert f"published: {TO}/tars, 2 files added, 1 file replaced, 2 as before, commit " in ran.out
    assert len(open_wids(f"{TO}/tars/wids.json", hub.options)) == 40


USAGE = {
    "--as FORMAT to write metadata, --to": (),
    "--name and --part need --as": ("--to", TO, "--name", "x"),
    "leave --output out": ("--as", "webdataset", "--to", TO, "--output", "x"),
    "--as idxpack describes shards at this place only": ("--as", "idxpack", "--to", TO),
    "--overwrite needs --to": ("--as", "webdataset", "--overwrite"),
}


@pytest.mark.parametrize("said", USAGE)
def test_options_that_say_nothing_together_are_refused(workspace: Workspace, said: str) -> None:
    workspace.run("publish", "L", *USAGE[said], status=2, err=said)
