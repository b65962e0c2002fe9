"""An index that cannot be kept where it belongs: the error says how to keep it elsewhere."""

from __future__ import annotations

import tempfile
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from ledgerbeam.errors import StorageError, UsageError
from ledgerbeam.io import IndexLocation
from ledgerbeam.ledger import Source
from ledgerbeam.sources import FileSources


def test_it_lies_where_it_was_put(tmp_path: Path) -> None:
    IndexLocation().publish(f"{tmp_path}/a.jsonl.idx", b"12345678", not_before_ns=2**62)
    assert (tmp_path / "a.jsonl.idx").read_bytes() == b"12345678"
    assert (tmp_path / "a.jsonl.idx").stat().st_mtime_ns == 2**62


def test_a_read_only_folder_of_sources_says_where_else(nobody: AbstractContextManager[None]) -> None:
    with tempfile.TemporaryDirectory() as folder:  # that of a test is below one which nobody else may enter
        source = Path(folder, "a.jsonl")
        source.write_text('{"a": 1}\n', encoding="utf-8")
        listed = Source(str(source), 9, str(source.stat().st_mtime_ns))
        Path(folder).chmod(0o555)
        sources = FileSources()
        sources.type_of(listed.url)  # imports the formats, which nobody may not be able to
        said = r"permission denied .* beside their sources: .* as --index-root"
        with nobody, pytest.raises(StorageError, match=said):
            sources.load_index(listed)


def test_a_root_that_cannot_be_written_is_named(tmp_path: Path, nobody: AbstractContextManager[None]) -> None:
    tmp_path.chmod(0o555)
    location = IndexLocation(root=str(tmp_path / "root"))
    with nobody, pytest.raises(StorageError, match=rf"indexes are kept below {tmp_path}/root: give a writable folder"):
        location.publish(location.url_for("/b/x.jsonl"), b"")
    tmp_path.chmod(0o755)


def test_beside_a_source_on_a_web_server_nothing_can_be_written() -> None:
    with pytest.raises(UsageError, match=r"cannot publish an output in one step.*--index-root"):
        IndexLocation().publish("http://host/a.jsonl.idx", b"")
