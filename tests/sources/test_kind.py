"""Listed properties of files, for all kinds of sources."""

from __future__ import annotations

import dataclasses
import os
from hashlib import blake2b
from pathlib import Path

import pytest

from ledgerbeam.errors import ChangedSourceError, RecordError, UnsupportedShapeError
from ledgerbeam.io import JsonlFormat, Options
from ledgerbeam.io.storage.objects import ObjectFolder
from ledgerbeam.io.storage.stat import FileInfo
from ledgerbeam.ledger import Source
from ledgerbeam.ledger.model.identity import content_checksum, content_version
from ledgerbeam.sources import FileSources, PackedFiles, Unreadable, kind
from ledgerbeam.sources.kind import (
    current_file,
    lacks_store_version,
    listed_files,
    require_content,
    unreadable,
    with_file_marks,
)
from tests.sources.data import lines, listed, put


def test_all_that_was_listed_of_a_file_goes_to_who_reads_it() -> None:
    one, other = (Source(f"/data/{name}", 3, "7", changed_ns=9) for name in "ab")
    assert [(file.url, file.size, file.version, file.changed_ns) for file in listed_files(one)] == [
        ("/data/a", 3, "7", 9)
    ]
    assert [file.url for file in listed_files(Source.pack([one, other]))] == ["/data/a", "/data/b"]


def test_a_source_on_a_store_has_no_time_of_the_last_change() -> None:
    remote = Source("s3://bucket/a", 3, "7")
    assert with_file_marks(remote, {}) == remote


def test_a_look_adds_the_times_of_the_files_and_keeps_the_source(tmp_path: Path) -> None:
    one, other = (put(tmp_path / name, lines(1)) for name in ("a.jsonl", "b.jsonl"))
    times = [os.stat(file.url).st_ctime_ns for file in (one, other)]
    found = with_file_marks(one, {})
    assert (found.changed_ns, found.id) == (times[0], one.id)
    pack = Source.pack([one, other])
    found = with_file_marks(pack, {})
    assert ([member.changed_ns for member in found.members], found.id) == (times, pack.id)


def test_what_is_read_by_position_has_no_stream() -> None:
    source = Source("/data/a.jsonl", 3, "7")
    with pytest.raises(UnsupportedShapeError, match=r"/data/a\.jsonl: PackedFiles .* no jsonl stream"):
        PackedFiles(FileSources()).open_stream(source, JsonlFormat())


def with_content(source: Source, data: bytes) -> Source:
    """Return a source that is identified by its content."""
    return dataclasses.replace(source, version=content_version(content_checksum([data])))


def test_what_is_known_by_its_content_is_read_to_learn_what_its_store_calls_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kind, "_BLOCK", 5)
    data = lines(3)
    folder = ObjectFolder(f"memory://{tmp_path.name}")
    folder.create("a.jsonl", data)
    local, remote = put(tmp_path / "a.jsonl", data), listed(f"{folder.url}/a.jsonl")
    for source, changed_ns in ((local, os.stat(local.url).st_ctime_ns), (remote, 0)):
        known = with_content(source, data)
        assert lacks_store_version(known)
        found = with_file_marks(known, {})
        assert (found.stored, found.changed_ns, found.id) == (source.version, changed_ns, known.id)
        assert not lacks_store_version(found)
        assert [file.version for file in listed_files(found)] == [source.version]
        with pytest.raises(ChangedSourceError, match="it was edited or damaged"):
            with_file_marks(with_content(source, lines(3, "b")), {})


def test_content_is_compared_in_the_version_that_its_store_has_called_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = ObjectFolder(f"memory://{tmp_path.name}")
    folder.create("a.jsonl", lines(3))
    known = with_content(listed(f"{folder.url}/a.jsonl"), lines(3))

    def replacing(file: Source, options: Options) -> FileInfo:
        found = current_file(file, options)
        folder.delete(["a.jsonl"])
        folder.create("a.jsonl", lines(3))
        return found

    monkeypatch.setattr(kind, "current_file", replacing)
    with pytest.raises(ChangedSourceError):
        with_file_marks(known, {})


def test_of_a_pack_those_files_may_not_change_that_are_known_by_their_store(tmp_path: Path) -> None:
    plain, known = put(tmp_path / "a.jsonl", lines(1)), put(tmp_path / "b.jsonl", lines(1))
    pack = Source.pack([plain, with_content(known, lines(1))])
    assert [file.url for file in listed_files(pack)] == [plain.url]
    found = with_file_marks(pack, {})
    assert [file.url for file in listed_files(found)] == [plain.url, known.url]
    assert [member.stored for member in found.members] == ["", known.version]


def test_what_was_looked_at_once_is_not_looked_at_again() -> None:
    known = dataclasses.replace(with_content(Source("/none/a.jsonl", 3, "1"), b"abc"), stored="5")
    assert current_file(known, {}).version == "5"
    assert current_file(Source("/none/a.jsonl", 3, "1"), {}).version == "1"


def test_content_is_compared_where_that_is_what_a_file_is_known_by() -> None:
    file = Source("/data/a", 3, "1")
    require_content(file, [b"anything"])
    require_content(with_content(file, b"abc"), [b"a", b"", b"bc"])
    former = content_version(blake2b(b"abc", digest_size=16).hexdigest())  # as earlier versions have recorded it
    require_content(dataclasses.replace(file, version=former), [b"abc"])
    for blocks in ([], [b"abd"], [b"abc", b"d"]):
        with pytest.raises(ChangedSourceError, match=r"^/data/a: expected the content recorded"):
            require_content(with_content(file, b"abc"), blocks)


def test_an_error_in_the_place_of_a_record_is_a_mark() -> None:
    assert unreadable([1, RecordError("of record 7"), None]) == [1, Unreadable("of record 7"), None]
    assert unreadable(iter(())) == []
