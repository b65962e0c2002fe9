"""The examples of a user's own pipeline, exchange and format; `pipelines.exchanges.test_own_exchange` kills one."""

from __future__ import annotations

import bz2
import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from examples import own_exchange, own_format, own_pipeline
from ledgerbeam.io import JsonlReader, recognize, register
from ledgerbeam.io.formats import registry
from ledgerbeam.ledger.worker.writer import close_shared_writers
from tests.pages import ROOT
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
    command = [sys.executable, own_pipeline.__file__, "--output", "out", "--ledger", "ledger", "texts/*.jsonl"]
    command.append("--runner=BundleBasedDirectRunner")
    done = subprocess.run(command, cwd=texts.parent, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "3 sources complete, 0 open, 0 failed"
    assert len(outputs(texts.parent)) == 4


PAGES = {
    "a": [("u1", " one "), ("u2", "two"), ("u3", "  ")],
    "b": [("u1", "one and more"), ("u2", "owt"), ("u4", "four")],
}


def run_exchange(folder: Path) -> int:
    arguments = [str(folder / "pages" / "*.jsonl"), "--size", "1K"]
    for name in ("output", "runs", "ledger"):
        arguments += [f"--{name}", str(folder / name)]
    try:
        return own_exchange.main(arguments)
    finally:
        close_shared_writers()


@pytest.mark.slow
def test_it_keeps_the_longest_page_of_each_url(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "pages").mkdir()
    for name, pages in PAGES.items():
        lines = (json.dumps({"url": url, "text": text}) + "\n" for url, text in pages)
        (tmp_path / "pages" / f"{name}.jsonl").write_text("".join(lines))
    assert run_exchange(tmp_path) == 0
    assert capsys.readouterr().out == "5 pages gathered, 3 written\n"
    written = [line for path in (tmp_path / "output").glob("*.jsonl") for line in path.read_text().splitlines()]
    found = {page["url"]: page["text"] for page in map(json.loads, written)}
    assert found == {"u1": "one and more", "u2": "two", "u4": "four"}
    assert run_exchange(tmp_path) == 0
    assert capsys.readouterr().out == "5 pages gathered, 3 written\n"


LINES = [f"line {number} ö" for number in range(300)]


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A folder with the example as an installed package has it: a module and an entry point."""
    folder = tmp_path / "site"
    info = folder / "own_format-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: own-format\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[ledgerbeam.formats]\nlines = own_format:TextLines\n")
    (folder / "own_format.py").write_text((ROOT / "examples" / "own_format.py").read_text())
    return folder


def ledgerbeam(package: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "ledgerbeam", *arguments]
    env, folder = {**os.environ, "PYTHONPATH": f"{package}{os.pathsep}{ROOT}"}, package.parent
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def written(folder: Path, suffix: str) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.glob(f"*{suffix}")))


@pytest.mark.slow
def test_commands_read_and_write_it(package: Path) -> None:
    folder = package.parent
    text = "".join(f"{line}\n" for line in LINES)
    (folder / "a.lines").write_text(text)
    (folder / "b.lines.bz2").write_bytes(bz2.compress(text.removesuffix("\n").encode()))
    ledgerbeam(
        package, "map", "own_format:shout", "*.lines", "b.lines.bz2", "--output", "out", "--to", "lines",
        "--task-bytes", "1K", "--workers", "1",
    )  # fmt: skip
    shouted = text.upper().encode()
    assert written(folder / "out", ".lines") == shouted * 2
    assert len(list((folder / "out").glob("b.lines-bz2-*.lines"))) > 2
    shown = json.loads(ledgerbeam(package, "show", "a.lines", "7", "-1", "--json"))
    assert [row["value"] for row in shown["records"]] == [LINES[7], LINES[-1]]
    assert '"format":"lines"' in ledgerbeam(package, "show", "a.lines", "--json").replace(" ", "")
    ledgerbeam(package, "convert", "a.lines", "--output", "jsonl", "--to", "jsonl", "--workers", "1")
    assert [json.loads(line) for line in written(folder / "jsonl", ".jsonl").splitlines()] == LINES
    ledgerbeam(package, "convert", "jsonl/*.jsonl", "--output", "back", "--to", "lines", "--workers", "1")
    assert written(folder / "back", ".lines").decode() == text
    assert "0 problems" in ledgerbeam(package, "verify", "--deep", "out/*.lines")


@pytest.mark.slow
def test_a_large_text_is_indexed_in_ranges_and_a_compressed_one_read_by_position(package: Path) -> None:
    folder = package.parent
    text = "".join(f"{line}\n" for line in LINES).encode()
    (folder / "a.lines").write_bytes(text)
    (folder / "b.lines.gz").write_bytes(gzip.compress(text))
    ledgerbeam(package, "index", "a.lines", "b.lines.gz", "--task-bytes", "1K", "--workers", "1")
    assert (folder / "a.lines.idx").read_bytes() == (folder / "b.lines.gz.idx").read_bytes()
    assert (folder / "a.lines.idx").stat().st_size == 8 * (len(LINES) + 1)
    assert ledgerbeam(package, "show", "b.lines.gz", "150") == f'"{LINES[150]}"\n'


def test_a_line_that_cannot_be_written_fails_its_task(package: Path) -> None:
    (package.parent / "a.jsonl").write_text('{"text": 1}\n')
    with pytest.raises(AssertionError, match=r"expected a string without line ends, found \{'text': 1\}"):
        ledgerbeam(package, "convert", "a.jsonl", "--output", "out", "--to", "lines", "--workers", "1")


def test_it_prints_all_lines_in_another_order(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "_known", None)
    path = tmp_path / "a.lines"
    path.write_text("\n".join(LINES))
    assert own_format.main([str(path), "--seed", "4"]) == 0
    found = capsys.readouterr().out.splitlines()
    assert sorted(found) == sorted(LINES)
    assert found != LINES
    register(own_format.TextLines())
    assert recognize(str(path)).format == own_format.TextLines()
