"""Versions of sources of formats that bring their index: of any such format, also one of another package."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

import pytest

from examples.own_format import TextLines
from ledgerbeam.errors import ChangedSourceError
from ledgerbeam.io import register, write_index
from ledgerbeam.io.formats import registry
from ledgerbeam.io.index_versions import index_of, own_version, stat_source
from ledgerbeam.io.source_listing import SourceListing
from ledgerbeam.io.storage.objects import ObjectFolder
from ledgerbeam.late_numpy import np
from ledgerbeam.ledger import Source
from ledgerbeam.sources import FileSources


class CutLines(TextLines):
    """Lines that only their index cuts into records."""

    name = "cut"
    suffixes = (".cut",)
    is_indexable = False


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ObjectFolder:
    monkeypatch.setattr(registry, "_known", None)
    register(CutLines())
    found = ObjectFolder(f"memory://{tmp_path.name}")
    found.create("a.cut", b"to be\nor not\n")
    found.create("b.jsonl", b'{"id": 1}\n')
    return found


def listed(folder: ObjectFolder) -> Source:
    pages = SourceListing((f"{folder.url}/*.cut", f"{folder.url}/*.jsonl")).pages()
    rows = chain.from_iterable(zip(page.urls, page.sizes, page.versions, strict=True) for page in pages)
    found = {row[0]: Source(*row) for row in rows}
    plain = found[f"{folder.url}/b.jsonl"]
    assert own_version(plain.version) == plain.version
    assert index_of(plain.url, plain.version) is None
    return found[f"{folder.url}/a.cut"]


def test_another_index_is_another_version_of_its_source(folder: ObjectFolder) -> None:
    url = f"{folder.url}/a.cut"
    without = listed(folder)
    write_index(f"{url}.idx", np.array([0, 6, 13], np.uint64))
    before = listed(folder)
    write_index(f"{url}.idx", np.array([0, 13], np.uint64))
    now = listed(folder)
    assert len({without.id, before.id, now.id}) == 3
    assert own_version(now.version) == own_version(before.version) == without.version
    assert stat_source(url).version == now.version
    assert (index_of(url, before.version) or now) != index_of(url, now.version)
    assert FileSources().load_index(now).tolist() == [0, 13]
    with pytest.raises(ChangedSourceError):
        FileSources().load_index(before)
