"""The pipeline of Beam YAML does what `ledgerbeam map` does, and restarts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from ledgerbeam._base.extensions import install_command
from ledgerbeam.io.storage import client
from ledgerbeam.ledger.opening import open_local_store, open_store
from tests.conftest import S3Server
from tests.pages import ROOT

pytest.importorskip("docstring_parser", reason="Beam YAML is not installed: pip install 'ledgerbeam[yaml]'")

pytestmark = pytest.mark.slow

EXAMPLE = ROOT / "examples" / "pipeline.yaml"
LOCAL = {"function": "cleaning:squeeze", "sources": "texts/*.jsonl", "output": "out", "ledger": "ledger"}
CLEANING = """def squeeze(record):
    return {**record, "text": " ".join(record["text"].split())}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with three sources, of which each makes two tasks."""
    (tmp_path / "texts").mkdir()
    (tmp_path / "cleaning.py").write_text(CLEANING)
    for name in "abc":
        lines = (json.dumps({"id": f"{name}{i}", "text": f" much   space  {i} "}) + "\n" for i in range(30_000))
        (tmp_path / "texts" / f"{name}.jsonl").write_text("".join(lines))
    return tmp_path


def command(values: dict[str, str], file: Path = EXAMPLE) -> list[str]:
    start = [sys.executable, "-m", "ledgerbeam.yaml", f"--yaml_pipeline_file={file}"]
    return [*start, f"--jinja_variables={json.dumps(values)}"]


def environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "LEDGERBEAM_"))}
    return {**kept, **more}


def ran(folder: Path, values: dict[str, str], file: Path, **env: str) -> subprocess.CompletedProcess[str]:
    words = command(values, file)
    return subprocess.run(words, cwd=folder, env=environment(**env), capture_output=True, text=True, check=False)


def run(folder: Path, values: dict[str, str] = LOCAL, file: Path = EXAMPLE, **env: str) -> None:
    done = ran(folder, values, file, **env)
    assert done.returncode == 0, done.stderr[-3000:]


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file() and path.name[0] != "."}


def test_it_writes_what_map_writes(folder: Path) -> None:
    run(folder)
    options = ("--to", "jsonl", "--task-bytes", "1000000", "--ledger", "other")
    mapped = [sys.executable, "-m", "ledgerbeam", "map", "cleaning:squeeze", "texts/*.jsonl"]
    subprocess.run([*mapped, "--output", "mapped", *options], cwd=folder, env=environment(), check=True)
    assert files(folder / "out") == files(folder / "mapped")
    assert len(files(folder / "out")) == 12
    ledgers = [open_local_store(str(folder / name), create=False) for name in ("ledger", "other")]
    by_yaml, by_map = ([row.output for row in ledger.outputs()] for ledger in ledgers)
    assert by_yaml == by_map
    (recorded,) = open_local_store(str(folder / "ledger"), create=False).runs()
    assert (recorded["outcome"], recorded["listed"]) == ("done", 3)


def test_killed_it_goes_on_and_ends_with_the_same_bytes(folder: Path) -> None:
    run(folder, {**LOCAL, "output": "clean", "ledger": "clean-ledger"})
    with subprocess.Popen(command(LOCAL), cwd=folder, env=environment(), stderr=subprocess.DEVNULL) as process:
        while not list((folder / "out").glob("*.jsonl")):
            assert process.poll() is None
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
    assert len(list((folder / "out").glob("*.jsonl"))) < 6
    run(folder)
    assert files(folder / "out") == files(folder / "clean")
    assert open_local_store(str(folder / "ledger"), create=False).status()["sources"]["complete"] == 3


def test_a_rerun_does_nothing_and_another_job_is_refused(folder: Path) -> None:
    run(folder)
    before = {path: path.stat().st_mtime_ns for path in (folder / "out").glob("*.jsonl*")}
    run(folder)
    assert {path: path.stat().st_mtime_ns for path in (folder / "out").glob("*.jsonl*")} == before
    other = folder / "other.yaml"
    other.write_text(EXAMPLE.read_text().replace("task_bytes: 1000000", "task_bytes: 500000"))
    refused = ran(folder, LOCAL, other)
    assert refused.returncode != 0
    assert "task_bytes: was 1000000, is 500000" in refused.stderr


def test_a_wrong_shape_is_refused_before_anything_runs(folder: Path) -> None:
    spec: dict[str, Any] = yaml.safe_load(EXAMPLE.read_text())
    chain = spec["pipeline"]["transforms"]
    spec["pipeline"]["transforms"] = [step for step in chain if step["type"] != "SkipCompleted"]
    (folder / "short.yaml").write_text(yaml.safe_dump(spec))
    refused = ran(folder, LOCAL, folder / "short.yaml")
    assert refused.returncode != 0
    assert "the pipeline has no SkipCompleted; put it after MatchSources" in refused.stderr
    assert not (folder / "out").exists()
    assert not (folder / "ledger").exists()


def test_the_passes_of_a_graph_are_sources_here_too(folder: Path) -> None:
    (folder / "orders.py").write_text(
        "from ledgerbeam.iterators import IndexedManifest\n"
        "def build():\n    return IndexedManifest('texts/a.jsonl', shuffle=True)\n"
    )
    index = [sys.executable, "-m", "ledgerbeam", "index", "texts/a.jsonl", "--workers", "1"]
    subprocess.run(index, cwd=folder, env=environment(), check=True)
    spec: dict[str, Any] = yaml.safe_load(EXAMPLE.read_text())
    chain = spec["pipeline"]["transforms"]
    for step in chain:
        if step["type"] == "ReadListing":
            step["config"] = {"graph": "orders:build", "epochs": 2}
    (folder / "graph.yaml").write_text(yaml.safe_dump(spec))
    run(folder, file=folder / "graph.yaml")
    names = sorted(name for name in files(folder / "out") if name.endswith(".jsonl"))
    assert names[0] == "epoch-00000-0000000000.jsonl"
    assert names[-1].startswith("epoch-00001-")
    lines = b"".join(files(folder / "out")[name] for name in names).splitlines()
    assert len(lines) == 60_000


def test_without_the_packages_of_the_extra_the_extra_is_named(folder: Path) -> None:
    hidden = folder / "hidden"
    hidden.mkdir()
    hiding = "import sys; sys.modules['docstring_parser'] = sys.modules['pandas'] = None"
    (hidden / "sitecustomize.py").write_text(hiding)
    paths = os.pathsep.join(filter(None, [str(hidden), os.environ.get("PYTHONPATH")]))
    refused = ran(folder, LOCAL, EXAMPLE, PYTHONPATH=paths)
    assert refused.returncode == 1
    assert refused.stderr.splitlines()[-1].endswith(f"not installed: {install_command('yaml')}")


@pytest.mark.s3
def test_sources_outputs_and_ledger_may_be_on_an_object_store(folder: Path, s3: S3Server) -> None:
    bucket = s3.bucket()
    store = client.filesystem("s3://", s3.options)
    store.put(f"{folder}/texts/", f"{bucket}/texts/", recursive=True)
    remote = {**LOCAL, **{name: f"s3://{bucket}/{LOCAL[name]}" for name in ("sources", "output", "ledger")}}
    cache = str(folder / "cache")
    run(folder, remote, EXAMPLE, **s3.env, LEDGERBEAM_CACHE=cache)
    run(folder, {**LOCAL, "output": "out"})
    written = [name for name in store.find(f"{bucket}/out") if "/_ledgerbeam/" not in name]
    found = {name.rpartition("/")[2]: store.cat_file(name) for name in written}
    assert found == files(folder / "out")
    status = open_store(remote["ledger"], s3.options, create=False, read_only=True).status()
    assert status["sources"] == {"complete": 3, "open": 0, "failed": 0}
