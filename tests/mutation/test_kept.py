"""A judgement is taken from an earlier run if nothing has changed that decided it, and only then."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.disk import no_larger_than
from tests.mutation.kept import Texts
from tests.mutation.loading import ROOT, _Tracer

FILES = {
    "ledgerbeam/__init__.py": "",
    "ledgerbeam/above.py": "def half(x):\n    from ledgerbeam.parts import below\n",
    "ledgerbeam/parts/__init__.py": "",
    "ledgerbeam/parts/below.py": "",
    "ledgerbeam/apart.py": "",
    "tests/conftest.py": "",
    "tests/data/records.jsonl": "{}",
    "tests/test_above.py": "import ledgerbeam.above\n",
    "tests/mutation/judge.py": "",
    "tests/mutation/named.py": "",
    "pyproject.toml": "",
}


def written(root: Path) -> Texts:
    for name, text in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return Texts(os.fspath(root))


@pytest.mark.parametrize(
    "name",
    [
        "ledgerbeam/__init__.py",
        "ledgerbeam/above.py",
        "ledgerbeam/parts/__init__.py",
        "ledgerbeam/parts/below.py",
        "tests/data/records.jsonl",
        "tests/test_above.py",
        "tests/mutation/judge.py",
        "pyproject.toml",
    ],
)
def test_what_a_test_reaches_decides_it(tmp_path: Path, name: str) -> None:
    before = written(tmp_path).stamp(["tests/test_above.py"])
    (tmp_path / name).write_text(FILES[name] + "\n")
    assert Texts(os.fspath(tmp_path)).stamp(["tests/test_above.py"]) != before


@pytest.mark.parametrize("name", ["ledgerbeam/apart.py", "tests/conftest.py", "tests/mutation/named.py"])
def test_what_a_test_does_not_reach_does_not_decide_it(tmp_path: Path, name: str) -> None:
    before = written(tmp_path).stamp(["tests/test_above.py"])
    (tmp_path / name).write_text(FILES[name] + "\n")
    assert Texts(os.fspath(tmp_path)).stamp(["tests/test_above.py"]) == before


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_judgement_is_made_once_for_the_tests_that_make_it(tmp_path: Path) -> None:
    def judge(name: str) -> list[str]:
        command = [sys.executable, "-m", "tests.mutation", "--cache", os.fspath(tmp_path), "--sample", "4"]
        command += ["--module", "ledger/model/counting.py", f"tests/ledger/model/test_{name}.py"]
        found = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
        assert found.returncode in (0, 1), found.stderr  # 1: some survived
        return found.stdout.splitlines()

    assert judge("counting")[1] == "0 of 4 were judged before, and nothing of it has changed"
    first, *_, last = judge("counting")
    assert first == "4 of 4 were judged before, and nothing of it has changed"
    assert last.startswith("mutants 4, killed ")
    assert judge("identity")[1] == "0 of 4 were judged before, and nothing of it has changed"


def test_lines_are_noted_of_a_test_that_lets_no_file_grow(tmp_path: Path) -> None:
    tracer = _Tracer(str(tmp_path / "lines"))
    with no_larger_than(0):
        tracer.note("test", "path", 7)
        with pytest.raises(OSError, match="File too large"):
            (tmp_path / "other").write_bytes(b"x")
    assert (tmp_path / "lines").read_text() == "test\tpath\t7\n"
    os.close(tracer._file)
