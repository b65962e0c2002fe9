"""An index that cannot be stored at its location: the error names another location."""

from __future__ import annotations

import gzip
import tempfile
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import pytest

import ledgerbeam
from ledgerbeam.errors import StorageError, UsageError
from ledgerbeam.io import publish_bytes
from ledgerbeam.io.index.file import IndexLocation, index_bytes
from ledgerbeam.io.index.newlines import build_jsonl_index
from ledgerbeam.io.storage.files import read_bytes
from ledgerbeam.ledger import Source
from ledgerbeam.sources import FileSources


def test_it_lies_where_it_was_put(tmp_path: Path) -> None:
    IndexLocation().publish(f"{tmp_path}/a.jsonl.idx", b"12345678", not_before_ns=2**62)
    assert (tmp_path / "a.jsonl.idx").read_bytes() == b"12345678"
    assert (tmp_path / "a.jsonl.idx").stat().st_mtime_ns == 2**62


def test_a_read_only_folder_of_sources_says_where_else(nobody: AbstractContextManager[None]) -> None:
    with (
        tempfile.TemporaryDirectory() as folder
    ):  # the folder of a test is below a folder that only its owner may enter
        source = Path(folder, "a.jsonl")
        source.write_text('{"a": 1}\n', encoding="utf-8")
        listed = Source(str(source), 9, str(source.stat().st_mtime_ns))
        Path(folder).chmod(0o555)
        sources = FileSources()
        sources.type_of(listed.url)  # import the formats first; the user `nobody` may not be able to
        said = r"permission denied .* beside their sources: .* as --index-root"
        with nobody, pytest.raises(StorageError, match=said):
            sources.load_index(listed)


def test_a_root_that_cannot_be_written_is_named(tmp_path: Path, nobody: AbstractContextManager[None]) -> None:
    tmp_path.chmod(0o555)
    location = IndexLocation(root=str(tmp_path / "root"))
    with (
        nobody,
        pytest.raises(StorageError, match=rf"indexes are stored below {tmp_path}/root: give a writable folder"),
    ):
        location.publish(location.url_for("/b/x.jsonl"), b"")
    tmp_path.chmod(0o755)


def test_beside_a_source_on_a_web_server_nothing_can_be_written() -> None:
    with pytest.raises(UsageError, match=r"cannot publish an output in one step.*--index-root"):
        IndexLocation().publish("http://host/a.jsonl.idx", b"")


FOREIGN = {
    "notes": b"notes",
    "numbers as text": b"0\n37\n74\n111\n148\n",
    "labels": np.array([0, 3, 1, 0, 2], "<i8").tobytes(),
    "half precision": np.linspace(0, 1, 64, dtype="<f2").tobytes(),
    "a byte": b"\0",
    "an archive": gzip.compress(b"mine" * 100),
    "zeros": bytes(64),
}


@pytest.fixture(params=["disk", "store"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path) if request.param == "disk" else f"memory://index-{tmp_path.name}"


@pytest.mark.parametrize("name", FOREIGN)
def test_a_file_of_others_is_named_and_stays(root: str, name: str) -> None:
    source = f"{root}/a.jsonl"
    publish_bytes(source, b'{"a": 1}\n' * 100)
    publish_bytes(f"{source}.idx", FOREIGN[name])
    with pytest.raises(UsageError, match=rf"{source}\.idx: expected no file, or an index.*ledgerbeam index --force"):
        ledgerbeam.index_source(source)
    assert read_bytes(f"{source}.idx") == FOREIGN[name]
    ledgerbeam.index_source(source, force=True)
    assert len(ledgerbeam.open(source, indexed=True)) == 100


@pytest.mark.parametrize("damage", ["none", "stale", "short", "cut", "empty"])
def test_an_index_of_ours_is_replaced_stale_or_cut_short(root: str, damage: str) -> None:
    source = f"{root}/{damage}.jsonl"
    publish_bytes(source, b'{"a": 1}\n' * 100)
    whole = index_bytes(build_jsonl_index(source))
    publish_bytes(source, b'{"a": 1, "b": 2}\n' * 90)
    found = {"none": None, "stale": whole, "short": whole[:-8], "cut": whole[:-3], "empty": b""}[damage]
    if found is not None:
        publish_bytes(f"{source}.idx", found)
    ledgerbeam.index_source(source)
    assert len(ledgerbeam.open(source, indexed=True)) == 90


def test_seek_points_are_told_from_others(root: str) -> None:
    source = f"{root}/a.jsonl.gz"
    publish_bytes(source, gzip.compress(b'{"a": 1}\n' * 100))
    publish_bytes(f"{source}.gzidx", b"mine")
    with pytest.raises(UsageError, match=rf"{source}\.gzidx: expected no file"):
        ledgerbeam.index_source(source)
    assert read_bytes(f"{source}.gzidx") == b"mine"
    ledgerbeam.index_source(source, force=True)
    publish_bytes(source, gzip.compress(b'{"a": 1}\n' * 101))
    ledgerbeam.index_source(source)
    assert len(ledgerbeam.open(source, indexed=True)) == 101
