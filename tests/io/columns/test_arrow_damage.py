"""Arrow files that cannot be read, and what looks like one."""

from __future__ import annotations

import io

import pyarrow as pa
import pytest
from pyarrow import feather, ipc

from ledgerbeam.errors import SourceError, UsageError
from ledgerbeam.io import ArrowFormat
from ledgerbeam.io.columns.reader import GroupedRows
from tests.cases import each
from tests.io.columns.tables import arrow_bytes, table

SOUND = arrow_bytes(table(20, "int64", "string"), 7)


def opened(data: bytes, *columns: str) -> GroupedRows:
    return ArrowFormat(columns).open_bytes(data, "a.arrow")


def stream_bytes() -> bytes:
    target = io.BytesIO()
    with ipc.new_stream(target, table(3, "int64").schema) as writer:
        writer.write_table(table(3, "int64"))
    return target.getvalue()


@each(
    ("data", "message"),
    [
        (b"", "at the end of an Arrow IPC file, found b''"),
        (SOUND[:-1], "expected b'ARROW1' at the end"),
        (stream_bytes(), "found an Arrow stream, which has no footer; write it as a file"),
        (b"FEA1" + bytes(40), "Feather version 1 is not read; write it again as version 2"),
        (SOUND[:-10] + b"\xff\xff\xff\x7f" + SOUND[-6:], "the footer has 2147483647 bytes"),
        (SOUND[:-10] + b"\xff\xff\xff\xff" + SOUND[-6:], "the footer has -1 bytes"),
        (SOUND[:-10] + b"\x08\x00\x00\x00" + SOUND[-6:], "the footer cannot be read"),
    ],
)
def test_what_is_no_whole_file_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(SourceError, match=rf"a\.arrow: .*{message}|a\.arrow: {message}"):
        opened(data)


def test_feather_files_and_dictionaries_of_several_batches_are_read() -> None:
    target = io.BytesIO()
    feather.write_feather(table(20), target, compression="zstd", chunksize=6)
    assert list(opened(target.getvalue())) == list(opened(arrow_bytes(table(20), 7)))
    words = opened(target.getvalue(), "words")
    assert words.read_batch(0, 20).schema.field("words").type == pa.dictionary(pa.int32(), pa.string())
    assert [row["words"] for row in words] == table(20, "words").column("words").to_pylist()


def test_an_unknown_column_is_refused_with_those_that_exist() -> None:
    with pytest.raises(UsageError, match=r"a\.arrow: has no column 'text'; expected one of 'int64', 'string'"):
        opened(SOUND, "text")
