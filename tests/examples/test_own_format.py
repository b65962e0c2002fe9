"""The example of a file format: as input and output of commands, compressed, and in iterators."""

from __future__ import annotations

import bz2
import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from examples import own_format
from ledgerbeam.io import recognize, register
from ledgerbeam.io.formats import registry
from tests.pages import ROOT

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
    done = subprocess.run(
        [sys.executable, "-m", "ledgerbeam", *arguments],
        cwd=package.parent,
        env={**os.environ, "PYTHONPATH": f"{package}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
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
