"""What goes to all kinds of sources: what was listed of their files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ledgerbeam.errors import UnsupportedShapeError
from ledgerbeam.io import JsonlFormat
from ledgerbeam.ledger import Source
from ledgerbeam.sources import FileSources, PackedFiles
from ledgerbeam.sources.kind import listed_files, looked_at
from tests.sources.data import lines, put


def test_all_that_was_listed_of_a_file_goes_to_who_reads_it() -> None:
    one, other = (Source(f"/data/{name}", 3, "7", changed_ns=9) for name in "ab")
    assert [(file.url, file.size, file.version, file.changed_ns) for file in listed_files(one)] == [
        ("/data/a", 3, "7", 9)
    ]
    assert [file.url for file in listed_files(Source.pack([one, other]))] == ["/data/a", "/data/b"]


def test_a_source_on_a_store_has_no_time_of_the_last_change() -> None:
    remote = Source("s3://bucket/a", 3, "7")
    assert looked_at(remote, {}) == remote


def test_a_look_adds_the_times_of_the_files_and_keeps_the_source(tmp_path: Path) -> None:
    one, other = (put(tmp_path / name, lines(1)) for name in ("a.jsonl", "b.jsonl"))
    times = [os.stat(file.url).st_ctime_ns for file in (one, other)]
    found = looked_at(one, {})
    assert (found.changed_ns, found.id) == (times[0], one.id)
    pack = Source.pack([one, other])
    found = looked_at(pack, {})
    assert ([member.changed_ns for member in found.members], found.id) == (times, pack.id)


def test_what_is_read_by_position_has_no_stream(tmp_path: Path) -> None:
    source = Source("/data/a.jsonl", 3, "7")
    for kind in (FileSources().kind_of(source), PackedFiles(FileSources())):
        with pytest.raises(UnsupportedShapeError, match=rf"/data/a\.jsonl: {type(kind).__name__} .* no jsonl stream"):
            kind.open_stream(source, JsonlFormat())
