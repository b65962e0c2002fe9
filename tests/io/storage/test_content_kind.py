"""Files whose content does not fit their names: the message names the kind of content."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import re
import struct
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import zstandard

import ledgerbeam as lb
from ledgerbeam.errors import LedgerbeamError
from tests.io.columns.tables import arrow_bytes, parquet_bytes

LINES = b"".join(b'{"id": %d, "text": "some text"}\n' % number for number in range(300))
VALUES = [{"id": 1, "text": "a"}, {"id": 2, "text": "b"}]


def archive() -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as tar:
        member = tarfile.TarInfo("a.txt")
        member.size = 1
        tar.addfile(member, io.BytesIO(b"a"))
    return target.getvalue()


def zipped() -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as file:
        file.writestr("a.jsonl", LINES)
    return target.getvalue()


def with_dictionary() -> bytes:
    trained = zstandard.train_dictionary(2048, [*LINES.splitlines(keepends=True)] * 10)
    data = trained.as_bytes()
    head = struct.pack("<II", 0x184D2A5D, len(data)) + data
    return head + zstandard.ZstdCompressor(dict_data=trained).compress(LINES)


ROWS = pa.table({"id": [1, 2]})
CASES: dict[str, tuple[str, bytes, str]] = {
    "gzip": ("a.jsonl", gzip.compress(LINES), "found gzip data; give it a name that ends with .gz"),
    "zstd": ("a.jsonl", zstandard.compress(LINES), "found Zstandard data; give it a name that ends with .zst"),
    "bzip2": ("a.jsonl", bz2.compress(LINES), "found bzip2 data; .*.bz2"),
    "xz": ("a.jsonl", lzma.compress(LINES), "found xz data; .*.xz"),
    "zip": ("a.jsonl", zipped(), "found a ZIP archive; extract"),
    "parquet": ("a.jsonl", parquet_bytes(ROWS), "found a Parquet file; give it a name that ends with .parquet"),
    "arrow": ("a.jsonl", arrow_bytes(ROWS), "found an Arrow file; .*.arrow"),
    "tar": ("a.jsonl", archive(), "found a tar archive; .*.tar"),
    "warc": ("a.jsonl", b"WARC/1.1\r\nWARC-Type: warcinfo\r\n", "found a WARC archive"),
    "UTF-16": ("a.jsonl", LINES.decode().encode("utf-16"), "found text in UTF-16; convert it to UTF-8"),
    "UTF-32": ("a.jsonl", LINES.decode().encode("utf-32"), "found text in UTF-32; convert it to UTF-8"),
    "HTML": ("a.jsonl", b"<!DOCTYPE html>\n<html>404</html>\n", "found a page of HTML or XML, as a server"),
    "XML": ("a.jsonl", b'<?xml version="1.0"?><Error><Code>NoSuchKey</Code></Error>', "found a page of HTML or XML"),
    "CSV": ("a.jsonl", b"id,text\n1,some\n2,more\n", "found a table of CSV"),
    "TSV": ("a.jsonl", b"id\ttext\n1\tsome\n2\tmore\n", "found a table of CSV"),
    "array": ("a.jsonl", json.dumps(VALUES, indent=2).encode(), "found JSON values over several lines; .*jq"),
    "array of lines": ("a.jsonl", b'[\n{"id": 1},\n{"id": 2}\n]\n', "found JSON values over several lines; .*jq"),
    "object": ("a.json", json.dumps(VALUES[0], indent=1).encode(), "found JSON values over several lines; .*jq"),
    "array in one line": ("a.json", json.dumps(VALUES).encode(), "found one JSON array; .*jq"),
    "array in gzip": ("a.json.gz", gzip.compress(json.dumps(VALUES).encode()), "found one JSON array; .*jq"),
    "gzip of gzip": ("a.jsonl.gz", gzip.compress(gzip.compress(LINES)), "found gzip data"),
    "tar in gzip": ("a.jsonl.gz", gzip.compress(archive()), "found a tar archive"),
    "text": ("a.jsonl.gz", LINES, "expected gzip data, .*found text that is not compressed; give it a name without"),
    "text as bzip2": ("a.jsonl.bz2", LINES, "expected bzip2 data, .*found text that is not compressed"),
    "text as xz": ("a.jsonl.xz", LINES, "expected xz data, .*found text that is not compressed"),
    "text as zstd": ("a.jsonl.zst", LINES, "expected zstd data, .*found text that is not compressed"),
    "page as gzip": ("a.jsonl.gz", b"<html>403</html>", "expected gzip data, .*found a page of HTML or XML"),
    "zstd as gzip": ("a.jsonl.gz", zstandard.compress(LINES), "expected gzip data, .*Zstandard data; .*.zst"),
    "gzip as zstd": ("a.jsonl.zst", gzip.compress(LINES), "expected zstd data, .*found gzip data; .*.gz"),
    "empty": ("a.jsonl.gz", b"", "expected gzip data, .*found an empty file"),
    "dictionary": ("a.jsonl.zst", with_dictionary(), "compressed with a Zstandard dictionary cannot be read"),
    "gzip as text": ("a.txt", gzip.compress(LINES), "expected lines of text in UTF-8, .*found gzip data"),
    "UTF-16 as text": ("a.txt", "text\n".encode("utf-16"), "found text in UTF-16"),
    "gzip as tar": ("a.tar", gzip.compress(archive()), "expected a tar archive, .*found gzip data; .*.gz"),
    "zip as tar": ("a.tar", zipped(), "expected a tar archive, .*found a ZIP archive"),
    "gzip as WARC": ("a.warc", gzip.compress(b"WARC/1.1\r\n"), "expected a WARC archive, .*found gzip data"),
    "lines as Parquet": ("a.parquet", LINES, "expected a file of columns, .*found text; .*.jsonl"),
    "gzip as Parquet": ("a.parquet", gzip.compress(LINES), "expected a file of columns, .*found gzip data"),
    "page as Parquet": ("a.parquet", b"<html><body>403 Forbidden</body></html>", "found a page of HTML or XML"),
    "Arrow as Parquet": ("a.parquet", arrow_bytes(ROWS), "found an Arrow file; .*.arrow"),
    "Parquet as Arrow": ("a.arrow", parquet_bytes(ROWS), "found a Parquet file; .*.parquet"),
}


def read(path: str) -> list[Any]:
    return list(lb.open(path))


@pytest.mark.parametrize("name", CASES)
def test_the_message_says_what_it_is(tmp_path: Path, name: str) -> None:
    file, content, message = CASES[name]
    path = tmp_path / file
    path.write_bytes(content)
    with pytest.raises(LedgerbeamError, match=f"{file}: (?s:.)*{message}"):
        read(str(path))
    if file.endswith((".jsonl", ".json", ".txt", ".tar", ".warc", ".gz")):
        with pytest.raises(LedgerbeamError, match=f"{file}: (?s:.)*{message}"):
            lb.index_source(path)
        assert not list(tmp_path.glob("*.idx"))


def test_a_job_says_of_each_source_what_it_is(tmp_path: Path) -> None:
    names = {}
    for number, (name, (file, content, message)) in enumerate(CASES.items()):
        if name in ("gzip", "array", "array in one line", "text", "dictionary", "gzip as tar", "UTF-16"):
            names[f"{number}.{file}"] = message
            (tmp_path / f"{number}.{file}").write_bytes(content)
    done = lb.convert(
        f"{tmp_path}/*", output=f"{tmp_path}/out", to="jsonl", ledger=f"{tmp_path}/ledger", workers=1, progress=False
    )
    assert not done.complete
    failures = list(lb.open_ledger(f"{tmp_path}/ledger").failures())
    assert len(failures) == len(names)
    for name, message in names.items():
        assert [one for one in map(str, failures) if re.search(f"{name}: (?s:.)*{message}", one)]


@pytest.mark.parametrize(
    ("file", "content", "records"),
    [
        ("a.jsonl", b'[{"id": 1}, {"id": 2}]\n', 1),  # a record may be an array
        ("a.jsonl", b"[1, 2]\n[3, 4]\n", 2),
        ("a.json", b"[1, 2]\n[3, 4]\n", 2),
        ("a.json", b'{"id": 1}\n', 1),
        ("a.jsonl", b'1\n"a,b"\nnull\ntrue\n', 4),
        ("a.jsonl", b"", 0),
        ("a.jsonl.gz", gzip.compress(b"", mtime=0), 0),
        ("a.txt", b"PAR1 is a word, as WARC/1.0 is\nBZh9 is one, too\n", 2),
        ("a.txt", b"<html>\n", 1),
        ("a.txt", "über\n".encode() * 3000, 3000),
        ("a.txt", b"id,text\n1,a\n2,b\n", 3),
    ],
)
def test_what_is_as_its_name_says_is_read(tmp_path: Path, file: str, content: bytes, records: int) -> None:
    (tmp_path / file).write_bytes(content)
    assert len(read(f"{tmp_path}/{file}")) == records
    lb.index_source(f"{tmp_path}/{file}")
    assert len(read(f"{tmp_path}/{file}")) == records


@pytest.mark.parametrize("write", [parquet_bytes, arrow_bytes])
def test_an_unknown_time_zone_is_named(tmp_path: Path, write: Any) -> None:
    path = tmp_path / ("a.parquet" if write is parquet_bytes else "a.arrow")
    path.write_bytes(write(pa.table({"id": [1], "when": pa.array([0], pa.timestamp("us", "Mars/Phobos"))})))
    with pytest.raises(LedgerbeamError, match=r"record 0: column 'when': its time zone 'Mars/Phobos' is unknown"):
        read(str(path))


def test_a_first_line_that_is_no_json_is_shown_with_what_it_may_be(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"id": 1,\n"text": "a"}\n')
    with pytest.raises(
        LedgerbeamError, match=r"record 0, bytes \[0, 9\): .*'\{\"id\": 1,'.*several lines; correct it, or"
    ):
        read(str(path))
    path.write_bytes(b"id;text\n")
    with pytest.raises(LedgerbeamError, match=r"record 0.*'id;text'.*: a table of CSV or the like; convert it"):
        read(str(path))
