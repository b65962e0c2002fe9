"""What the table of whole jobs measures and compares: all that a program starts, and records in whatever order."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from benchmarks.functions import describe
from benchmarks.job_check import same_records
from benchmarks.job_programs import PROGRAMS
from benchmarks.measured import measure

SPIN = "import time\nwhile time.process_time() < 0.5: pass\n"
MEGABYTES = 60


def python(program: str) -> list[str]:
    return [sys.executable, "-S", "-c", program]


def test_what_children_and_orphans_use_is_counted(tmp_path: Path) -> None:
    orphan = "import subprocess, sys\nsubprocess.Popen([sys.executable, '-S', '-c', sys.argv[1]])\n"
    child = "subprocess.run([sys.executable, '-S', '-c', sys.argv[1]])\n"
    found = measure([*python(orphan + child), SPIN], tmp_path)
    assert 1.0 <= found.cpu < 3.0
    assert found.first == found.wall  # it has written nothing


def test_the_peak_of_memory_is_that_of_the_largest_process(tmp_path: Path) -> None:
    program = f"import time\nheld = bytearray({MEGABYTES} << 20)\ntime.sleep(0.4)\ndel held\ntime.sleep(0.4)\n"
    found = measure(python(program), tmp_path)
    assert MEGABYTES << 20 <= found.memory < 2 * MEGABYTES << 20


def test_the_first_output_is_noticed_and_no_temporary_file(tmp_path: Path) -> None:
    program = "import time\nopen('.a.lbtmp', 'w')\ntime.sleep(0.5)\nopen('a', 'w')\ntime.sleep(1)\n"
    found = measure(python(f"import os\nos.chdir({str(tmp_path)!r})\n{program}"), tmp_path)
    assert 0.5 <= found.first <= found.wall - 0.5


def test_a_program_that_fails_is_told_with_what_it_said(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"ended with 3:\n.*said"):
        measure(python("import sys\nsys.stderr.write('said')\nsys.exit(3)"), tmp_path)


def test_records_are_the_same_in_any_order_form_and_number_of_files(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    for folder in (one, other):
        folder.mkdir()
    (one / "a.jsonl").write_text('{"a": 1, "b": "é"}\n{"a": 2}\n')
    (other / "x.json").write_text('{"a":2}\n')
    (other / "y.jsonl").write_text('{"b":"\\u00e9","a":1}\n')
    (other / "y.jsonl.idx").write_bytes(bytes(16))
    assert same_records(str(one)) == same_records(str(other))
    (other / "y.jsonl").write_text('{"b":"e","a":1}\n')
    assert same_records(str(one)) != same_records(str(other))
    shutil.rmtree(other)


def test_the_bare_loop_maps_every_record(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for number in range(3):
        (tmp_path / "in" / f"{number}.jsonl").write_text(f'{{"text": "one three {number}"}}\n' * 5)
    PROGRAMS["bare"](str(tmp_path / "in"), str(tmp_path / "out"))
    written = (tmp_path / "out" / "2.jsonl").read_text()
    assert written == '{"text":"one three 2","words":3,"letters":9,"longest":5}\n' * 5
    assert describe({"text": ""}) == {"text": "", "words": 0, "letters": 0, "longest": 0}
    assert same_records(str(tmp_path / "out"))[0] == 15
