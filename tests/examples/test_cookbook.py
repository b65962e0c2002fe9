"""Functions of the cookbook. `tests.test_pages` runs the recipes as their pages show them."""

from __future__ import annotations

import importlib
import io
import struct
import zlib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from ledgerbeam import Drop, Reject
from ledgerbeam.io import Sample
from tests.cases import each
from tests.pages import ROOT, missing_packages


def recipe(folder: str, module: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Import a module of a recipe; skip the test if a package is missing."""
    path = ROOT / "examples" / "cookbook" / folder
    if missing := missing_packages(path):
        pytest.skip(f"{', '.join(missing)} not installed; `make cookbook` installs the packages of the cookbook")
    monkeypatch.syspath_prepend(str(path))
    return importlib.import_module(module)


@pytest.fixture
def masking(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return recipe("pii", "masking", monkeypatch)


@each(
    "text, masked",
    [
        ("Write to ada.lovelace+1@mail.example.org.", "Write to <EMAIL>."),
        ("card 4111 1111 1111 1111, thanks", "card <CARD>, thanks"),
        ("5500-0055-5555-5559", "<CARD>"),
        ("4111 1111 1111 1111 12/28", "<CARD> 12/28"),
        ("4111 1111 1111 1112", "4111 1111 1111 1112"),
        ("0000 0000 0000 0000", "0000 0000 0000 0000"),
        ("from 192.0.2.17:8080", "from <IP>:8080"),
        ("from 2001:db8::17 and ::1", "from <IP> and <IP>"),
        ("at 10:30:15, version 1.2.3, 999.1.1.1", "at 10:30:15, version 1.2.3, 999.1.1.1"),
        ("call +49 30 901820 or (030) 901820 today", "call <PHONE> or <PHONE> today"),
        ("in room 4711, on 2026-11-30", "in room 4711, on 2026-11-30"),
    ],
)
def test_personal_data_is_masked_and_other_numbers_are_kept(masking: ModuleType, text: str, masked: str) -> None:
    assert masking.mask({"id": 1, "text": text}, region="DE") == {"id": 1, "text": masked}


@pytest.fixture
def resize(monkeypatch: pytest.MonkeyPatch) -> Any:
    return recipe("images", "resizing", monkeypatch).resize


def image(width: int, height: int, kind: str = "PNG", **options: Any) -> bytes:
    from PIL import Image

    file = io.BytesIO()
    Image.new("RGB", (width, height), "teal").save(file, kind, **options)
    return file.getvalue()


def png_header(width: int, height: int) -> bytes:
    """Return a PNG of a few bytes that claims a size."""
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = [
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in ((b"IHDR", head), (b"IDAT", b""))
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def size(result: Any) -> tuple[int, int]:
    from PIL import Image

    return Image.open(io.BytesIO(result["jpg"])).size


def test_images_are_resized_and_others_are_dropped_or_rejected(resize: Any) -> None:
    def call(**members: bytes) -> Any:
        return resize(Sample("a", {**members, "txt": b"caption"}))

    assert size(call(png=image(1000, 500))) == (256, 128)
    rotated = struct.pack(">6s2sHIHHHIHHI", b"Exif\0\0", b"MM", 42, 8, 1, 0x0112, 3, 1, 6, 0, 0)
    assert size(call(jpg=image(1000, 500, "JPEG", exif=rotated))) == (128, 256)
    assert call(jpg=image(100, 300, "JPEG")) == Drop("too small")
    assert call(jpg=image(1000, 200, "JPEG")) == Drop("too long")
    assert call(json=b"{}") == Drop("no image")
    assert call(png=png_header(9_000, 6_000)) == Reject("too many pixels", "9000 x 6000")
    with pytest.raises(OSError, match="truncated"):
        call(jpg=image(1000, 500, "JPEG")[:-500])


def test_the_text_of_a_pdf_is_that_of_its_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    text_of = recipe("pdf", "pdf_text", monkeypatch).text_of
    pdf = recipe("pdf", "make_pdfs", monkeypatch).pdf
    pages = pdf([["one", "two"], ["three"]])
    assert text_of(Sample("a", {"pdf": pages})) == {"name": "a", "pages": 2, "text": "one\ntwo\n\nthree"}
    assert text_of(Sample("a", {"pdf": pdf([[]])})) == Drop("no text")
    with pytest.raises(Exception, match="Stream has ended"):
        text_of(Sample("a", {"pdf": b"<html></html>"}))


def test_the_packages_of_the_cookbook_are_named_with_their_licences(tmp_path: Path) -> None:
    import tomllib

    extra = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["cookbook"]
    index = (ROOT / "docs" / "cookbook" / "index.md").read_text()
    names = [requirement.partition(">")[0] for requirement in extra if not requirement.startswith("ledgerbeam[")]
    assert [name for name in names if f"{name} (" not in index] == []
