"""Archives of the wild: what our walk finds in packages of four registries is what tarfile finds."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path

import pytest

from ledgerbeam.io.tar.walk import walk_tar
from tests.conformance.conftest import SKIPPED

CORPUS = Path(__file__).resolve().parents[2] / ".cache" / "corpus"
ARCHIVES = sorted(CORPUS.glob("*.tar"))
LEAST = 10
"""Registries come and go; fewer archives than that would not be a corpus."""

pytestmark = pytest.mark.skipif("LEDGERBEAM_CONFORMANCE" not in os.environ, reason=SKIPPED)


def test_there_are_archives_of_several_formats() -> None:
    assert len(ARCHIVES) >= LEAST, f"{CORPUS} holds {len(ARCHIVES)} archives: run scripts/fetch_corpus.sh"
    kinds = {magic(path) for path in ARCHIVES}
    assert {b"ustar\x0000", b"ustar  \x00"} <= kinds


@pytest.mark.parametrize("path", ARCHIVES, ids=lambda path: path.name)
def test_our_walk_finds_what_tarfile_finds(path: Path) -> None:
    with tarfile.open(path, "r:", errorlevel=2) as archive:
        expected = archive.getmembers()
    found = walk_tar(str(path))
    assert found.names == [member.name for member in expected]
    assert found.header_offset.tolist() == [member.offset for member in expected]
    assert found.data_offset.tolist() == [member.offset_data for member in expected]
    assert found.size.tolist() == [member.size if member.isreg() else 0 for member in expected]
    assert [kind_of(kind) for kind in found.kind.tolist()] == [kind_of(member.type[0]) for member in expected]


def kind_of(flag: int) -> str:
    """Return a type flag; plain files have two."""
    return "0" if flag == 0 else chr(flag)


def magic(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(512)[257:265]
