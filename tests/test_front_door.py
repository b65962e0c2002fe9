"""The public names: cheap to import, and each of them on a page."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import ledgerbeam
from tests.cases import each
from tests.pages import ROOT

OF_IO = ("io", "io.datasets.lit", "io.datasets.megatron", "io.datasets.shar", "io.datasets.webdataset", "io.idxpack")
OTHERS = ("iterators", "ledger", "sources", "stats", "transforms")
FRONTS = ("ledgerbeam", *(f"ledgerbeam.{name}" for name in (*OF_IO, *OTHERS)))
HEAVY = ("apache_beam", "datasketches", "fsspec", "lmdb", "numpy", "orjson", "pyarrow", "rich")


def written() -> str:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").iterdir()]
    return "\n".join(page.read_text(encoding="utf-8") for page in pages if page.is_file())


def test_every_name_is_there_and_listed() -> None:
    for name in ledgerbeam.__all__:
        assert getattr(ledgerbeam, name) is not None
        assert name in dir(ledgerbeam)


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = ledgerbeam.nothing  # type: ignore[attr-defined] # and a type checker finds it


def test_the_import_brings_nothing_heavy() -> None:
    program = f"import ledgerbeam, sys; print([name for name in {HEAVY} if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_names_of_pipelines_bring_beam_without_its_noise() -> None:
    program = (
        "import logging, ledgerbeam; ledgerbeam.Pipeline; import ledgerbeam.transforms; print(logging.root.handlers)"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert (found.stdout.strip(), found.stderr) == ("[]", "")


def test_any_source_is_opened_by_its_name(tmp_path: Path) -> None:
    source = tmp_path / "a.jsonl"
    source.write_text('{"n": 0}\n{"n": 1}\n')
    from ledgerbeam.io import build_index, write_index

    write_index(f"{source}.idx", build_index(str(source)))
    assert ledgerbeam.open(str(source))[1] == {"n": 1}


@each("front", FRONTS)
def test_every_exported_name_is_in_a_page_or_an_example(front: str) -> None:
    text = written()
    names = [name for name in importlib.import_module(front).__all__ if name != "__version__"]
    missing = [name for name in names if not re.search(rf"\b{re.escape(name)}\b", text)]
    assert not missing, f"{front} exports {missing}: show them in docs/, or import them from where they are"


def test_no_class_name_is_there_twice() -> None:
    found: dict[str, list[str]] = {}
    for path in sorted((ROOT / "ledgerbeam").rglob("*.py")):
        for name in re.findall(r"^class (\w+)", path.read_text(encoding="utf-8"), re.MULTILINE):
            found.setdefault(name, []).append(path.relative_to(ROOT).as_posix())
    twice = {name: paths for name, paths in found.items() if len(paths) > 1}
    assert not twice
