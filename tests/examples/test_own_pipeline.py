"""The example of a pipeline of one's own does what it says, and restarts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from examples import own_pipeline
from ledgerbeam.io import JsonlReader
from ledgerbeam.ledger.worker.writer import close_shared_writers
from tests.pipelines.base_install import without_extras

LONG = "x" * own_pipeline.LONG


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """A folder with a mixed source, one of doubles, and one of which nothing is left."""
    folder = tmp_path / "texts"
    folder.mkdir()
    write(folder / "mixed.jsonl", ["short", LONG, "also short"])
    write(folder / "doubles.jsonl", ["one", "two", "one"])
    write(folder / "blank.jsonl", ["", "  "])
    return folder


def write(path: Path, texts: list[str]) -> None:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")


def run(folder: Path, *beam_args: str) -> int:
    arguments = [str(folder / "texts" / "*.jsonl"), "--output", str(folder / "out"), "--ledger", str(folder / "ledger")]
    try:
        return own_pipeline.main([*arguments, *beam_args])
    finally:
        close_shared_writers()


def outputs(folder: Path) -> dict[str, list[str]]:
    """Return the texts of every shard that was written, by its name."""
    paths = sorted((folder / "out").rglob("*.jsonl"))
    return {path.name: [record["text"] for record in JsonlReader(str(path))] for path in paths}


def test_it_splits_and_filters(texts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(texts.parent) == 0
    assert capsys.readouterr().out == "3 sources complete, 0 open, 0 failed\n"
    assert outputs(texts.parent) == {
        "mixed.jsonl-0000000000-000000.jsonl": ["short", "also short"],
        "mixed.jsonl-0000000000-000001.jsonl": [LONG],
        "doubles.jsonl-0000000000-000000.jsonl": ["one", "two"],
        "doubles.jsonl-0000000000-000001.jsonl": [],
    }


@pytest.mark.slow
def test_a_rerun_does_what_is_missing_and_nothing_else(texts: Path) -> None:
    write(texts / "broken.jsonl", ["fine"])
    with (texts / "broken.jsonl").open("a") as file:
        file.write("{no json\n")
    assert run(texts.parent) == 3
    written = {path: path.stat().st_mtime_ns for path in (texts.parent / "out").glob("*.jsonl*")}

    (texts / "broken.jsonl.idx").unlink()
    write(texts / "broken.jsonl", ["mended"])
    assert run(texts.parent) == 0
    assert outputs(texts.parent)["broken.jsonl-0000000000-000000.jsonl"] == ["mended"]
    assert {path: path.stat().st_mtime_ns for path in written} == written


@pytest.mark.slow
def test_an_edited_function_is_refused_and_restarted_if_asked_for(texts: Path) -> None:
    folder = texts.parent
    program = folder / "pipeline.py"
    code = Path(own_pipeline.__file__).read_text(encoding="utf-8")
    program.write_text(code)

    def run_program(*options: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(program), "texts/*.jsonl", "--output", "out", "--ledger", "ledger", *options]
        env = without_extras(os.environ)
        return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=240)

    done = run_program()
    assert done.returncode == 0, done.stderr
    before = outputs(folder)
    program.write_text(
        code.replace("LONG = 1000", "LONG = 4").replace('if record["text"].strip()', "if len(record['text']) > 3")
    )
    done = run_program()
    assert done.returncode == 1
    assert "short_and_long: changed" in done.stderr
    assert "captured value 'LONG' of short_and_long: was '1000', is '4'" in done.stderr
    assert "Traceback" not in done.stderr
    assert outputs(folder) == before
    done = run_program("--on-job-change", "restart")
    assert done.returncode == 0, done.stderr
    assert outputs(folder) == {
        "mixed.jsonl-0000000000-000000.jsonl": [],
        "mixed.jsonl-0000000000-000001.jsonl": ["short", LONG, "also short"],
    }
    assert run_program().returncode == 0


@pytest.mark.slow
def test_it_runs_as_a_program_with_options_for_beam(texts: Path) -> None:
    program = Path(own_pipeline.__file__)
    command = [sys.executable, str(program), "--output", "out", "--ledger", "ledger", "texts/*.jsonl"]
    options = ["--runner=BundleBasedDirectRunner"]
    done = subprocess.run(
        [*command, *options], cwd=texts.parent, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "3 sources complete, 0 open, 0 failed"
    assert len(outputs(texts.parent)) == 4
