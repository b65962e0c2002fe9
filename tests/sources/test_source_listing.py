"""A folder in place of sources: the error suggests patterns of the sources in it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ledgerbeam.errors import UsageError
from ledgerbeam.io.storage import client
from ledgerbeam.sources.listing import SourceListing
from tests.conftest import S3Server


def message_for(folder: str) -> str:
    with pytest.raises(UsageError) as raised:
        list(SourceListing((folder,)).pages())
    return str(raised.value)


def fill(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"")
    return folder


def matches(pattern: str) -> list[str]:
    return [url for page in SourceListing((pattern,)).pages() for url in page.urls]


def test_each_suggested_pattern_matches_the_files_that_it_promises(tmp_path: Path) -> None:
    names = ("a.jsonl", "b.jsonl", "a.jsonl.idx", "README.md", ".hidden.jsonl", "a/1.jsonl.gz", "a/b/2.v1.jsonl.gz")
    raw = fill(tmp_path / "raw", *names, "t.tar")
    message = message_for(str(raw))
    suggested = re.findall(r"'([^']+)' \(([\d,]+) files?\)", message)
    assert [(pattern.removeprefix(f"{raw}/"), int(count)) for pattern, count in suggested] == [
        ("*.jsonl", 2),
        ("**/*.jsonl.gz", 2),
        ("*.tar", 1),
    ]
    assert [len(matches(pattern)) for pattern, _ in suggested] == [2, 2, 1]


@pytest.mark.parametrize("given", ["raw/", "./raw", "raw/../raw"])
def test_a_folder_is_a_folder_however_it_is_written(
    given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path / "raw", "a.parquet")
    monkeypatch.chdir(tmp_path)
    assert f"such as '{tmp_path}/raw/*.parquet' (1 file)" in message_for(given)


def test_a_folder_without_sources_says_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "is a folder without files" in message_for(str(tmp_path / "empty"))
    assert "notes.md" in message_for(str(fill(tmp_path / "notes", "notes.md")))


def test_a_folder_with_wildcards_in_its_name_gets_no_pattern_that_means_others(tmp_path: Path) -> None:
    assert "*.jsonl" not in message_for(str(fill(tmp_path / "a[1]", "a.jsonl")))


def test_a_large_folder_is_not_listed_to_its_end(tmp_path: Path) -> None:
    assert "(1,000 files or more)" in message_for(str(fill(tmp_path / "raw", *(f"{n}.jsonl" for n in range(1001)))))


@pytest.mark.s3
def test_a_folder_of_a_bucket(s3: S3Server) -> None:
    fs = client.filesystem("s3://", s3.options)
    fs.mkdir("folder-given")
    for name in ("raw/a.jsonl", "raw/deep/b.jsonl", "raw/c.tar"):
        fs.pipe_file(f"folder-given/{name}", b"")
    with pytest.raises(UsageError, match=re.escape("'s3://folder-given/raw/**/*.jsonl' (2 files) or 's3://folder")):
        list(SourceListing(("s3://folder-given/raw",), storage_options=s3.options).pages())
