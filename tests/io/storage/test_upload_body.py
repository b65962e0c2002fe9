"""The body of an upload: a file for botocore, the bytes in memory for aiohttp."""

from __future__ import annotations

import asyncio
import io
from hashlib import sha256

import pytest

pytest.importorskip("aiohttp", reason="aiohttp comes with s3fs: pip install ledgerbeam[s3]")

from aiohttp.abc import AbstractStreamWriter
from aiohttp.payload import PAYLOAD_REGISTRY

from ledgerbeam.io.storage import uploads
from ledgerbeam.io.storage.uploads import UploadBody

DATA = bytes(range(200))


class Writer(AbstractStreamWriter):
    """A writer that keeps the sent pieces."""

    def __init__(self) -> None:
        self.pieces: list[bytes | bytearray | memoryview] = []

    async def write(self, chunk: bytes | bytearray | memoryview) -> None:
        self.pieces.append(chunk)

    async def write_eof(self, chunk: bytes = b"") -> None: ...

    async def drain(self) -> None: ...

    def enable_compression(self, *args: object, **kwargs: object) -> None: ...

    def enable_chunking(self) -> None: ...

    async def write_headers(self, *args: object, **kwargs: object) -> None: ...


@pytest.fixture
def body() -> UploadBody:
    return UploadBody(memoryview(DATA))


def test_it_is_hashed_as_a_file_is_without_a_copy(body: UploadBody) -> None:
    pieces = list(iter(lambda: body.read(64), b""))
    assert pieces == [DATA]
    assert all(piece.obj is DATA for piece in pieces)
    assert sha256(pieces[0]).digest() == sha256(DATA).digest()


def test_places_are_those_of_a_file(body: UploadBody) -> None:
    file = io.BytesIO(DATA)
    for offset, whence in ((-3, io.SEEK_END), (7, io.SEEK_SET), (5, io.SEEK_CUR), (0, io.SEEK_END)):
        assert body.seek(offset, whence) == file.seek(offset, whence) == body.tell()
    body.seek(150)
    assert bytes(body.read(4)) == DATA[150:]
    assert (body.tell(), bytes(body.read())) == (200, b"")


@pytest.fixture
def in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "_PIECE", 64)


@pytest.mark.usefixtures("in_pieces")
def test_all_of_it_is_sent_whatever_was_read_and_as_often_as_is_asked(body: UploadBody) -> None:
    body.read(20)
    sent = PAYLOAD_REGISTRY.get(body)
    assert sent.size == len(DATA)
    for _ in range(2):
        writer = Writer()
        asyncio.run(sent.write(writer))
        assert [bytes(piece) for piece in writer.pieces] == [DATA[at : at + 64] for at in range(0, 200, 64)]
        assert all(isinstance(piece, memoryview) and piece.obj is DATA for piece in writer.pieces)


@pytest.mark.usefixtures("in_pieces")
def test_no_more_is_sent_than_was_announced(body: UploadBody) -> None:
    writer = Writer()
    asyncio.run(PAYLOAD_REGISTRY.get(body).write_with_length(writer, 70))
    assert b"".join(writer.pieces) == DATA[:70]


def test_it_has_a_text_for_messages() -> None:
    assert PAYLOAD_REGISTRY.get(UploadBody(memoryview("é".encode()))).decode() == "é"
