"""Versions of sources of formats that bring their index: of any such format, also one of another package."""

from __future__ import annotations

import os
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from examples.own_format import TextLines
from ledgerbeam._base.lazy import np
from ledgerbeam.errors import ChangedSourceError
from ledgerbeam.io import register, write_index
from ledgerbeam.io.formats import registry
from ledgerbeam.io.listing.pages import Page
from ledgerbeam.io.storage.objects import ObjectFolder
from ledgerbeam.io.storage.stat import stat
from ledgerbeam.ledger import Source
from ledgerbeam.sources import FileSources
from ledgerbeam.sources.kind import listed_file
from ledgerbeam.sources.listing import SourceListing, index_of, own_version, stat_source, with_index_versions


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
    kind = FileSources().kind_of(now)
    assert [info.url for info in kind.files(without)] == [url]
    assert kind.files(now) == [listed_file(now), index_of(url, now.version)]
    with pytest.raises(ChangedSourceError):
        FileSources().load_index(before)


def test_a_source_whose_index_can_be_built_has_a_version_alone(folder: ObjectFolder) -> None:
    """Also a name that no format reads: the reader of the file reports it."""
    urls = [f"{folder.url}/{name}" for name in ("b.jsonl", "c.bin.gz", "d.of-no-format")]
    for url in urls:
        ObjectFolder(folder.url).create(url.rpartition("/")[2], b'{"id": 1}\n')
        write_index(f"{url}.idx", np.array([0, 10], np.uint64))
        assert stat_source(url) == stat(url)
        assert index_of(url, "1 .idx 8 2") is None
    page = Page(urls, [10] * 3, [stat(url).version for url in urls])
    assert with_index_versions(page) is page
    both = Page([*urls, f"{folder.url}/a.cut"], [10] * 3 + [13], [*page.versions, "1"])
    assert with_index_versions(both).versions == [*page.versions, "1"]
    write_index(f"{folder.url}/a.cut.idx", np.array([0, 13], np.uint64))
    found = with_index_versions(both)
    assert (found.urls, found.sizes, found.versions[:3]) == (both.urls, both.sizes, page.versions)
    assert own_version(found.versions[3]) == "1" != found.versions[3]
    assert both.versions[3] == "1"


def test_an_index_that_is_written_over_while_it_is_read_is_told(
    folder: ObjectFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, index = f"{tmp_path}/a.cut", tmp_path / "a.cut.idx"
    (tmp_path / "a.cut").write_bytes(b"to be\nor not\n")
    write_index(str(index), np.array([0, 6, 13], np.uint64))
    found = stat_source(url)
    source = Source(url, found.size, found.version)

    def write_over(*_: Any) -> None:
        with index.open("r+b") as file:
            file.write(bytes(8))
        os.utime(index, ns=(1, 1))

    assert FileSources().load_index(source).tolist() == [0, 6, 13]
    monkeypatch.setattr(CutLines, "check_index", write_over)
    with pytest.raises(ChangedSourceError, match=str(index)):
        FileSources().load_index(source)
