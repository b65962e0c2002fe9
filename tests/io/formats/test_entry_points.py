"""Formats of other packages: found by entry points or registered, and refused if they are ambiguous."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from examples.own_format import TextLines
from ledgerbeam.errors import UsageError
from ledgerbeam.io import JsonlFormat, recognize, register
from ledgerbeam.io.formats import registry
from ledgerbeam.io.formats.registry import format_named


@pytest.fixture(autouse=True)
def _as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test loads the formats again. Afterwards the earlier formats are restored."""
    monkeypatch.setattr(registry, "_known", None)


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, points: str, code: str = "") -> None:
    """Write a package with entry points into the import path."""
    info = folder / "its_format-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: its-format\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[ledgerbeam.formats]\n{points}\n")
    (folder / "its_format.py").write_text(code)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "its_format", raising=False)


def test_an_entry_point_is_found_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, "lines = examples.own_format:TextLines")
    assert recognize("s3://b/a.LINES").format == format_named("lines") == TextLines()
    assert recognize("a.lines.gz").by_position() == TextLines()
    assert recognize("a.jsonl-0000000000.lines").format == TextLines()


def test_a_format_is_registered_and_configured() -> None:
    with pytest.raises(UsageError, match="no known format"):
        recognize("a.lines")
    latin = TextLines(encoding="latin-1")
    assert recognize("a.lines", [latin]).format is latin
    register(TextLines())
    register(TextLines())  # as when a module is loaded twice
    assert recognize("a.lines").format == TextLines()
    assert recognize("a.lines", [latin]).format is latin
    assert recognize("a.jsonl", [JsonlFormat(threads=3)]).format == JsonlFormat(threads=3)


class Other(TextLines):
    name = "other"


class Tarred(TextLines):
    name = "tarred"
    suffixes = (".tar",)


class Zipped(TextLines):
    name = "zipped"
    suffixes = (".gz",)


class Dotless(TextLines):
    name = "dotless"
    suffixes = ("txt",)


class Lines(TextLines):
    name = "jsonl"
    suffixes = (".lines",)


@pytest.mark.parametrize(
    ("kind", "found"),
    [
        (Tarred(), r"the suffix \.tar belongs to 'tar'"),
        (Zipped(), r"the suffix \.gz belongs to a compression"),
        (Dotless(), r"found 'txt'"),
        (Lines(), r"the name 'jsonl' is taken"),
    ],
)
def test_what_would_be_mistaken_is_refused(kind: TextLines, found: str) -> None:
    with pytest.raises(UsageError, match=found):
        register(kind)


def test_two_formats_of_one_suffix_are_refused() -> None:
    register(TextLines())
    with pytest.raises(UsageError, match=r"Other: the suffix \.lines belongs to 'lines'"):
        register(Other())


@pytest.mark.parametrize(
    ("point", "code", "found"),
    [
        ("lines = its_format:Missing", "", r"lines = its_format:Missing of ledgerbeam\.formats in its-format cannot"),
        ("lines = its_format:make", "def make():\n    1 / 0\n", "ZeroDivisionError"),
        ("word = examples.own_format:TextLines", "", "expected the format 'word', found 'lines'"),
    ],
)
def test_an_entry_point_that_cannot_be_loaded_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str, code: str, found: str
) -> None:
    install(tmp_path, monkeypatch, point, code)
    for _ in range(2):
        assert recognize("a.jsonl").format == format_named("jsonl")  # a broken entry point does not affect other names
        with pytest.raises(UsageError, match=found):
            recognize("a.lines")
        with pytest.raises(UsageError, match=found):
            format_named("lines")


def test_the_suffixes_of_built_in_formats_are_known_without_loading_them() -> None:
    """A format is looked up for each task, and entry points are loaded only for unknown names."""
    built_in = {name: kind for name, kind in registry.formats().items() if name in registry._BUILT_IN}
    found = {suffix: name for name, kind in built_in.items() for suffix in kind.suffixes}
    assert found == registry._SUFFIXES
    assert len(built_in) == len(registry._BUILT_IN)


def test_a_built_in_format_is_found_without_a_look_at_other_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, monkeypatch, "lines = its_format:make", "raise RuntimeError('it was loaded')\n")
    for name in ("a.jsonl", "S3://b/A.JSONL.GZ", "a.tar.zst", "a.parquet"):
        assert recognize(name).format.name in registry._BUILT_IN
    assert registry._known is None
    assert recognize("a.tar", [JsonlFormat(threads=3)]).format == format_named("tar")


def test_a_module_that_registers_its_format_may_have_an_entry_point_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = (
        "from examples.own_format import TextLines as T\nfrom ledgerbeam.io import register\nregister(T())\nmake = T\n"
    )
    install(tmp_path, monkeypatch, "lines = its_format:make", code)
    assert recognize("a.lines").format == TextLines()
