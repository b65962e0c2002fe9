"""What a job publishes of its outputs, in one process: metadata beside shards, merged parts, notes, and messages."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ledgerbeam
from ledgerbeam.errors import PublicationError, StorageError, UsageError
from ledgerbeam.io import Options, Sample
from ledgerbeam.io.datasets.megatron import MegatronReader, encode_part
from ledgerbeam.io.listing.pages import Page
from ledgerbeam.io.storage.stat import FileInfo, stat
from ledgerbeam.io.tar.writer import encode_tar
from ledgerbeam.ledger import LedgerStore, Output, OutputShard, Source
from ledgerbeam.ledger.model.accounts import RecordCounts
from ledgerbeam.ledger.model.identity import content_checksum
from ledgerbeam.ledger.model.rows import Leaf
from ledgerbeam.ledger.opening import open_local_store
from ledgerbeam.pipelines.datasets import megatron
from ledgerbeam.pipelines.datasets.megatron import MergedParts
from ledgerbeam.pipelines.jobs.map import MapJob, MappedFunction
from ledgerbeam.pipelines.jobs.one_stage import ConvertJob
from ledgerbeam.pipelines.jobs.sources import ListedFiles
from ledgerbeam.pipelines.outputs import published as published_module
from ledgerbeam.pipelines.outputs.published import (
    OutputStamp,
    PublishedFile,
    PublishedMetadata,
    checksum_at,
    content_problem,
    forget_published,
    published_files,
    size_problem,
)

FORMS = ("webdataset", "energon", "lit")
TEMPORARY = ".wids.json.1-2.lbtmp"


class Written:
    """A ledger whose job has written outputs, and is complete once its listing is."""

    def __init__(self, root: Path, kind: type[MapJob | ConvertJob], **fields: Any) -> None:
        self.root = root
        files = ListedFiles(patterns=(f"{root}/in/**",), base=f"{root}/in/")
        self.job = kind(files=files, **fields).resolve_ledger(str(root / "L"))
        self.store: LedgerStore = open_local_store(self.job.ledger, create=True)
        self.store.open_job(self.job.identity())
        self.run = self.store.begin_run({"pid": 1})
        self.said: list[str] = []

    def record(
        self, source: str, *outputs: Output, records: int, counts: RecordCounts | None = None, finished: bool = True
    ) -> None:
        of = Source(f"{self.root}/in/{source}", 10, "1")
        self.store.register([of])
        self.store.commit([Leaf(of.id, (), "published", outputs, records, 10, counts=counts)])
        self.store.note_listing(self.run, listed=1, finished=finished)


class Made(Written):
    """Shards to have metadata beside them."""

    def __init__(self, root: Path) -> None:
        self.out = root / "out"
        functions = (MappedFunction("f", "m:f", {"module": {"m": "ab"}}),)
        super().__init__(root, MapJob, output=str(self.out), to="tar", functions=functions)

    def shard(self, source: str, numbers: range, *, route: str = "") -> Path:
        """Write a shard and record it."""
        folder = f"{route}/" if route else ""
        name = f"{folder}{source}-0000000000.tar"
        data, _ = encode_tar([Sample(f"{number}", {"txt": b"%d" % number}) for number in numbers], group="key")
        path = self.out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        records = len(numbers)
        output = Output(name, len(data), content_checksum([data]), records, 0, route=route)
        self.record(source, output, records=records, counts=RecordCounts(records, records, {}, {}, {route: records}))
        return path

    def nothing(self, source: str) -> None:
        """Record a source of which nothing is left."""
        of = Source(f"{self.root}/in/{source}", 10, "1")
        self.store.register([of])
        self.store.commit([Leaf(of.id, (), "filtered")])

    def make(self, form: str) -> list[str]:
        """Publish, and return the URLs."""
        self.said.clear()
        return PublishedMetadata(form).make(self.job, self.store, rewrite=lambda _: False, say=self.said.append)

    def goes(self, *names: str) -> None:
        """Have sources that were recorded be gone, and what came of them too."""
        gone = [Source(f"{self.root}/in/{name}", 10, "1").id for name in names]
        self.store.note_listing(self.run, listed=1, finished=True, gone=[*self.store.gone_ids(), *gone])
        self.store.forget_sources(gone)

    def make_anew(self, form: str) -> list[str]:
        """Publish, and see that it was not up to date."""
        urls = self.make(form)
        assert re.search(rf"record\w* published as {form}: {urls[-1]}$", self.said[-1])
        return urls

    def require_made(self, form: str) -> None:
        """See that all is up to date."""
        urls = self.make(form)
        assert self.said == [f"up to date: {urls[-1]}"]

    def noted(self) -> list[PublishedFile]:
        return published_files(self.store, {})

    def contents(self, urls: list[str]) -> Mapping[str, bytes]:
        return {url: Path(url).read_bytes() for url in urls}


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Made]:
    found = Made(tmp_path)
    yield found
    found.store.close()


@pytest.mark.parametrize("form", FORMS)
def test_it_is_written_once_and_noted_with_sizes_and_checksums(made: Made, form: str) -> None:
    made.shard("a", range(3))
    made.shard("b", range(3, 5))
    urls = made.make_anew(form)
    assert made.said == [f"2 shards with 5 records published as {form}: {urls[-1]}"]
    before = {url: os.stat(url).st_mtime_ns for url in urls}
    made.require_made(form)
    assert made.make(form) == urls
    assert {url: os.stat(url).st_mtime_ns for url in urls} == before
    contents = made.contents(urls)
    assert made.noted() == [
        PublishedFile(url, form, len(data), content_checksum([data])) for url, data in contents.items()
    ]


@pytest.mark.parametrize("form", FORMS)
def test_a_file_that_was_changed_or_removed_is_told_and_written_again(made: Made, form: str) -> None:
    made.shard("a", range(3))
    urls = made.make(form)
    before = made.contents(urls)
    for url in urls:
        path = Path(url)
        other = re.sub(rb"\w(\W*)\Z", lambda found: bytes([found[0][0] ^ 1]) + found[1], before[url])
        path.write_bytes(other)
        made.make_anew(form)
        assert re.fullmatch(
            rf"{url}: expected the checksum \S+, found \S+; the file has changed .* again", made.said[0]
        )
        path.write_bytes(before[url] + b"\n")
        made.make_anew(form)
        size = len(before[url])
        assert made.said[0].startswith(f"{url}: expected {size} bytes, found {size + 1}; the file has changed")
        path.unlink()
        made.make_anew(form)
        assert made.said[0].startswith(f"{url}: expected {size} bytes, found no such file or object; the file")
        assert len(made.said) == 2
        assert made.contents(urls) == before
        made.require_made(form)


@pytest.mark.parametrize("form", FORMS)
def test_a_shard_that_is_younger_than_the_metadata_counts_for_lit_alone(made: Made, form: str) -> None:
    shards = [made.shard("a", range(3)), made.shard("b", range(3, 5))]
    urls = made.make(form)
    then = time.time() - 1000
    for path in (*map(str, shards), *urls):
        os.utime(path, (then, then))
    made.require_made(form)
    for path in (str(shards[1]), *urls[1:]):
        os.utime(path, (then + 10, then + 10))
    if form == "lit":
        assert len(urls) > 1
        made.make_anew(form)
        assert len(made.said) == 1
    made.require_made(form)


def test_a_shard_that_is_gone_is_told_where_ages_are_compared(made: Made) -> None:
    made.shard("a", range(3))
    lost = made.shard("b", range(3, 5))
    made.make("lit")
    lost.unlink()
    with pytest.raises(PublicationError, match=r"b-0000000000\.tar"):
        made.make("lit")


def test_shards_that_were_replaced_have_metadata_no_more(made: Made) -> None:
    made.shard("a", range(3))
    made.make("webdataset")
    made.shard("b", range(3, 5))
    assert made.noted() == []
    made.make_anew("webdataset")
    assert len(made.noted()) == 1


def test_only_what_a_killed_publishing_has_left_is_removed(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    made.shard("a", range(3))
    left = made.out / TEMPORARY
    points: list[tuple[str, bool, int]] = []
    wids = made.out / "wids.json"

    def reach(point: str) -> None:
        points.append((point, wids.exists(), len(made.noted())))
        if len(points) in (1, 3):
            raise KeyboardInterrupt

    monkeypatch.setattr(published_module, "fault_point", reach)
    left.touch()
    with pytest.raises(KeyboardInterrupt):
        made.make("webdataset")
    with pytest.raises(KeyboardInterrupt):
        made.make("webdataset")
    assert points == [("published.before", False, 0), ("published.before", False, 0), ("published.after", True, 0)]
    assert left.exists()  # nothing was begun before
    made.make_anew("webdataset")
    assert not left.exists()
    left.touch()
    wids.unlink()
    made.make_anew("webdataset")
    assert left.exists()


@pytest.mark.parametrize("form", FORMS)
def test_an_error_says_that_outputs_are_written_and_what_to_do(made: Made, form: str) -> None:
    shard = made.shard("a", range(3))
    shard.write_bytes(b"")
    with pytest.raises(PublicationError) as found:
        made.make(form)
    said = str(found.value)
    assert said.startswith(f"{made.out}: all outputs are written and recorded, but not the metadata of {form}: ")
    other = "" if form == "webdataset" else ", and --to webdataset writes metadata of wids"
    assert said.endswith(f"\nRun the same command to write only the metadata again. --to tar needs no metadata{other}")
    assert made.noted() == []


def test_each_route_is_a_dataset_and_the_main_one_too_if_it_has_records(made: Made) -> None:
    made.shard("a", range(3), route="odd")
    made.shard("b", range(3, 4), route="even")
    roots = [str(made.out / route) for route in ("even", "odd")]
    assert made.make("webdataset") == [f"{root}/wids.json" for root in roots]
    assert [file.url for file in made.noted()] == [f"{root}/wids.json" for root in roots]
    made.shard("c", range(5, 9))
    roots.insert(0, str(made.out))
    assert made.make("webdataset") == [f"{root}/wids.json" for root in roots]
    assert [said.partition(" published")[0] for said in made.said] == [
        "1 shard with 4 records",
        f"up to date: {roots[1]}/wids.json",
        f"up to date: {roots[2]}/wids.json",
    ]
    assert sorted(file.url for file in made.noted()) == sorted(f"{root}/wids.json" for root in roots)
    made.make("webdataset")
    assert made.said == [f"up to date: {root}/wids.json" for root in roots]


def test_notes_count_that_are_of_this_job_and_whole(made: Made) -> None:
    made.shard("a", range(3))
    made.make("webdataset")
    (found,) = made.noted()
    work = Path(made.job.work_folder)
    assert [path.name for path in work.iterdir()] == ["published-webdataset.json"]
    whole = (work / "published-webdataset.json").read_bytes()
    others = ("published-webdataset", "published-webdataset.txt", "webdataset.json", "published-webdataset-%x.json")
    for other in others:  # the last one would be of a route that cannot be
        (work / other).write_bytes(whole)
    assert made.noted() == [found]
    note = json.loads(whole)
    checksums = note["checksums"]
    changes: list[dict[str, Any]] = [
        {},
        {"checksums": [found.url]},
        {"checksums": {**checksums, found.url: 3}},
        {"checksums": {}},
    ]
    for changed in changes:
        kept = {name: value for name, value in note.items() if name != "checksums"}
        (work / "published-webdataset.json").write_text(json.dumps({**kept, **changed}))
        assert made.noted() == []
    made.make_anew("webdataset")
    assert len(made.said) == 1
    assert made.noted() == [found]


def test_a_note_without_the_checksum_of_one_file_is_none(made: Made) -> None:
    made.shard("a", range(3))
    made.make("energon")
    path = Path(made.job.work_folder) / "published-energon.json"
    note = json.loads(path.read_bytes())
    assert len(note["checksums"]) > 1
    note["checksums"].popitem()
    path.write_text(json.dumps(note))
    assert made.noted() == []


@pytest.mark.parametrize("form", FORMS)
def test_metadata_of_shards_that_are_gone_goes_too(made: Made, form: str) -> None:
    """Sources that keep no record any more: what reads the metadata would look for shards that are gone."""
    made.shard("a", range(3))
    made.shard("b", range(3), route="odd")
    urls = made.make(form)
    assert PublishedMetadata(form).is_made(made.job, made.store)
    made.goes("b")
    made.nothing("c")
    left = made.make(form)
    assert {url for url in urls if "/odd/" in url} == {*urls} - {*left}
    assert {url for url in urls if Path(url).exists()} == {*left}
    made.goes("a")
    assert not PublishedMetadata(form).is_made(made.job, made.store)
    assert made.make(form) == []
    assert not any(map(os.path.exists, urls))
    assert PublishedMetadata(form).is_made(made.job, made.store)
    assert made.make(form) == []


def test_metadata_of_gone_shards_that_somebody_has_changed_stays(made: Made) -> None:
    made.shard("a", range(3))
    (url,) = made.make("webdataset")
    Path(url).write_bytes(b"mine")
    made.nothing("c")
    made.goes("a")
    assert made.make("webdataset") == []
    assert Path(url).read_bytes() == b"mine"


def test_while_a_job_is_not_complete_nothing_counts(made: Made) -> None:
    made.shard("a", range(3))
    made.make("webdataset")
    assert len(made.noted()) == 1
    made.store.register([Source(f"{made.root}/in/z", 10, "1")])
    assert made.noted() == []


def test_what_was_forgotten_is_noted_no_more(made: Made) -> None:
    made.shard("a", range(3), route="odd")
    made.shard("b", range(3))
    for form in ("webdataset", "energon"):
        made.make(form)
    assert len(made.noted()) > 2
    forget_published(made.job.ledger, "energon", "", {})
    forget_published(made.job.ledger, "energon", "odd", {})
    forget_published(made.job.ledger, "webdataset", "odd", {})
    assert [file.url for file in made.noted()] == [f"{made.out}/wids.json"]
    forget_published(made.job.ledger, "webdataset", "", {})
    assert made.noted() == []


def test_sources_whose_shards_lit_cannot_tell_apart_are_refused_at_first(made: Made) -> None:
    lit = PublishedMetadata("lit")
    lit.check(Page(["/a/x", "/b/x", "/b/y", "/b/y"], [3, 0, 4, 4], ["1"] * 4), made.job)
    page = Page(["/a/x", "/c/z", "/b/x"], [3, 1, 1], ["1"] * 3)
    with pytest.raises(UsageError, match=r"^/a/x and /b/x: LIT needs unique base names of shards"):
        lit.check(page, made.job)
    PublishedMetadata("webdataset").check(page, made.job)
    files = ListedFiles(patterns=("/a/**",), base="/a/", pack_bytes=100)
    lit.check(
        page,
        MapJob(files=files, functions=(MappedFunction("f", "m:f", {"module": {"m": "ab"}}),), output="out", to="tar"),
    )


SHARDS = (OutputShard("a-0.tar", 3, "sum:a", 1, "/in/a", 0), OutputShard("b\udcff-0.tar", 4, "sum:b", 2, "/in/b", 0))


OF = "0452a44018078c56b7c7123c85a33993"
"""What names them, also in notes of earlier versions."""


class Place:
    """A work folder, and a folder with files to note."""

    def __init__(self, root: Path) -> None:
        self.work, self.files = root / "work", [f"{root}/{name}" for name in "xy"]
        for url in self.files:
            Path(url).write_bytes(b"abc")

    def stamp(self, *shards: OutputShard, fingerprint: str = "f") -> OutputStamp:
        return OutputStamp(str(self.work), "note", fingerprint, shards or SHARDS, {})

    @property
    def note(self) -> Path:
        return self.work / "note.json"


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_what_is_noted_is_read_until_it_is_made_anew(place: Place) -> None:
    stamp = place.stamp()
    assert (stamp.noted(), stamp.read()) == (None, None)
    assert not stamp.begin()
    assert (stamp.noted(), stamp.read()) == (None, None)
    assert stamp.begin()
    stamp.end(iter(place.files), what="ever")
    found = place.stamp().read()
    assert found == place.stamp().noted() == json.loads(place.note.read_bytes())
    assert found is not None
    assert (found["files"], found["what"]) == (dict.fromkeys(place.files, 3), "ever")
    assert not stamp.begin()
    assert stamp.read() is None


def test_a_note_of_an_earlier_version_counts(place: Place) -> None:
    place.work.mkdir()
    place.note.write_text(f'{{"of": "{OF}", "files": {{}}}}')
    assert place.stamp().read() == {"of": OF, "files": {}}


def test_files_that_are_gone_or_have_another_size_are_noted_and_not_read(place: Place) -> None:
    stamp = place.stamp()
    stamp.end(place.files)
    noted = stamp.noted()
    for url in place.files:
        Path(url).write_bytes(b"ab")
        assert (stamp.noted(), stamp.read()) == (noted, None)
        Path(url).unlink()
        assert (stamp.noted(), stamp.read()) == (noted, None)
        Path(url).write_bytes(b"xyz")
        assert (stamp.noted(), stamp.read()) == (noted, noted)


@pytest.mark.parametrize(
    "other",
    [
        SHARDS[::-1],
        SHARDS[:1],
        (SHARDS[0], replace(SHARDS[1], name="b-0.tar")),
        (SHARDS[0], replace(SHARDS[1], checksum="sum:c")),
    ],
)
def test_it_is_of_these_very_shards(place: Place, other: tuple[OutputShard, ...]) -> None:
    place.stamp().end(place.files)
    assert place.stamp(*other).noted() is None
    assert place.stamp(fingerprint="g").noted() is None
    same = [replace(shard, size=9, records=9, source="/x", first=9) for shard in SHARDS]
    assert place.stamp(*same).noted() is not None


@pytest.mark.parametrize("text", ["{", "[1]", "{}", '{"of": "OF"}', '{"of": "OF", "files": ["x"]}'])
def test_a_note_that_does_not_read_is_none(place: Place, text: str) -> None:
    place.work.mkdir()
    place.note.write_text(text.replace("OF", OF))
    assert (place.stamp().noted(), place.stamp().read()) == (None, None)
    assert not place.stamp().begin()
    place.stamp().end(place.files)
    assert place.stamp().read() is not None


def test_no_link_is_followed(place: Place, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    place.work.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StorageError, match="found a link"):
        place.stamp().noted()


CONTENT = b"to be or not\n"
SUM = content_checksum([CONTENT])


def test_a_file_as_it_was_noted_has_no_problem(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(CONTENT)
    url = f"{tmp_path}/file"
    assert checksum_at(url, {}) == SUM
    assert size_problem(url, len(CONTENT), {}) is None
    for noted in (SUM, blake2b(CONTENT, digest_size=16).hexdigest()):  # the latter by earlier versions
        assert content_problem(url, len(CONTENT), noted, {}) is None


def test_a_span_is_compared_alone_in_a_file_of_its_size(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(CONTENT)
    url, size = f"{tmp_path}/file", len(CONTENT)
    for start, stop in ((0, size), (3, 5), (size, size), (0, 0)):
        assert content_problem(url, size, content_checksum([CONTENT[start:stop]]), {}, (start, stop)) is None
    said = f"bytes 3 to 5: expected the checksum {SUM}, found {content_checksum([CONTENT[3:5]])}"
    assert content_problem(url, size, SUM, {}, (3, 5)) == said
    assert content_problem(url, size + 1, SUM, {}, (0, size)) == f"expected {size + 1} bytes, found {size}"


def test_what_cannot_be_read_is_told_in_the_words_of_the_error(tmp_path: Path) -> None:
    (tmp_path / "file").symlink_to("file")
    url = f"{tmp_path}/file"
    for said in (size_problem(url, 3, {}), content_problem(url, 3, SUM, {})):
        assert "symbolic links" in str(said)
        assert url in str(said)


SUFFIXES = ("_a", "_b")


class Parts(Written):
    """Parts of datasets to be merged."""

    def __init__(self, root: Path, suffixes: tuple[str, ...] = SUFFIXES) -> None:
        self.suffixes = suffixes
        self.parts, self.prefix = root / "all.parts", f"{root}/all"
        self.parts.mkdir()
        self.product = MergedParts(self.prefix, suffixes, "int32")
        super().__init__(root, ConvertJob, output=str(self.parts), to="megatron", dataset=self.product)

    def part(self, source: str, *tokens: list[int], finished: bool = True) -> None:
        """Write the parts of a source, of each dataset one, and record them."""
        outputs = []
        for suffix, some in zip(self.suffixes, tokens, strict=True):
            for ending, data in zip((".bin", ".idx"), encode_part([[some]], np.int32), strict=True):
                name = f"{source}-0000000000{suffix}{ending}"
                (self.parts / name).write_bytes(data)
                outputs.append(Output(name, len(data), content_checksum([data]), int(ending == ".bin"), 0))
        self.record(source, *outputs, records=1, finished=finished)

    def make(self) -> bool:
        """Return whether parts were merged."""
        self.said.clear()
        self.product.make(self.job, self.store, rewrite=lambda _: False, say=self.said.append)
        assert len(self.said) == len(self.suffixes)
        return not self.said[0].startswith("up to date")

    def documents(self, suffix: str) -> list[list[list[int]]]:
        with MegatronReader(self.prefix + suffix) as reader:
            return [[tokens.tolist() for tokens in reader.document(i)] for i in range(reader.document_count)]

    @property
    def note(self) -> Path:
        return self.root / "L" / "work" / "merged.json"


@pytest.fixture
def merged(tmp_path: Path) -> Iterator[Parts]:
    found = Parts(tmp_path)
    yield found
    found.store.close()


def test_what_was_merged_is_noted_with_the_span_of_each_part(merged: Parts) -> None:
    merged.part("a", [1, 2], [3], finished=False)
    merged.part("b", [4], [])
    assert MergedParts.noted(merged.store, {}) == []
    assert merged.make()
    assert [merged.documents(suffix) for suffix in SUFFIXES] == [[[[1, 2]], [[4]]], [[[3]], []]]
    noted = MergedParts.noted(merged.store, {})
    assert [dataset.prefix for dataset in noted] == [merged.prefix + suffix for suffix in SUFFIXES]
    for dataset, suffix, ends in zip(noted, SUFFIXES, ((0, 8, 12), (0, 4, 4)), strict=True):
        names = [f"{source}-0000000000{suffix}.bin" for source in "ab"]
        assert [(part.name, span) for part, span in dataset.spans()] == list(
            zip(names, [ends[:2], ends[1:]], strict=True)
        )
        assert dataset.size == ends[-1] == os.path.getsize(f"{dataset.prefix}.bin")
        index = Path(f"{dataset.prefix}.idx").read_bytes()
        assert (dataset.index_size, dataset.index_checksum) == (len(index), content_checksum([index]))
    assert not merged.make()


def test_of_other_parts_nothing_is_noted(merged: Parts) -> None:
    merged.part("a", [1], [2])
    merged.make()
    assert MergedParts.noted(merged.store, {})
    merged.part("b", [3], [4], finished=False)
    assert MergedParts.noted(merged.store, {}) == []
    merged.store.note_listing(merged.run, listed=1, finished=True)
    assert MergedParts.noted(merged.store, {}) == []
    merged.make()
    assert MergedParts.noted(merged.store, {})
    merged.store.register([Source(f"{merged.root}/in/c", 10, "1")])
    assert MergedParts.noted(merged.store, {}) == []


@pytest.mark.parametrize("broken", ["suffixes", "indexes", "files", "another prefix", "a list", "no JSON"])
def test_a_note_of_parts_that_does_not_read_is_none(merged: Parts, broken: str) -> None:
    merged.part("a", [1], [2])
    merged.make()
    note = json.loads(merged.note.read_bytes())
    other = {**note, "suffixes": {f"{merged.root}/other": "_a"}}
    contents: list[object] = [other] if broken == "another prefix" else []
    if broken in note:
        contents += [{**note, broken: wrong} for wrong in ("", 1, None)]
        contents.append({key: value for key, value in note.items() if key != broken})
    for content in contents or [[note]]:
        merged.note.write_text("{" if broken == "no JSON" else json.dumps(content))
        assert MergedParts.noted(merged.store, {}) == []


def test_a_part_that_was_written_again_since_is_merged_again_and_another_file_is_not(merged: Parts) -> None:
    merged.part("a", [1], [2])
    merged.make()
    part = merged.parts / "a-0000000000_b.bin"
    right = part.read_bytes()
    part.write_bytes(right[::-1])
    assert not merged.make()
    part.write_bytes(right)
    assert merged.make()
    assert not merged.make()
    part.unlink()
    assert not merged.make()


def test_what_was_merged_stays_while_one_of_the_parts_that_were_written_since_is_another_file(merged: Parts) -> None:
    merged.part("a", [1, 2], [3], finished=False)
    merged.part("b", [4, 5], [6])
    merged.make()
    right = {name: (merged.parts / f"{name}-0000000000_a.bin").read_bytes() for name in "ab"}
    for wrong in "ab":
        for name, data in right.items():
            (merged.parts / f"{name}-0000000000_a.bin").write_bytes(data[::-1] if name == wrong else data)
        assert not merged.make()
    assert merged.documents("_a") == [[[1, 2]], [[4, 5]]]


def test_the_name_of_a_dataset_may_end_with_that_of_another_or_look_like_one_of_a_part(tmp_path: Path) -> None:
    merged = Parts(tmp_path, ("_text", "_main_text", "_a-0000000000_b", "_text-2"))
    merged.part("a", [1], [2], [3], [4])
    merged.make()
    assert [merged.documents(suffix) for suffix in merged.suffixes] == [[[[1]]], [[[2]]], [[[3]]], [[[4]]]]
    merged.store.close()


def test_of_parts_that_are_written_again_those_are_noted_that_are_merged(merged: Parts) -> None:
    merged.part("a", [1], [2])
    (merged.parts / "a-0000000000_a.bin").unlink()

    def rewrite(lost: int) -> bool:
        merged.part("a", [3] * lost, [4])  # by another version, say
        return True

    merged.product.make(merged.job, merged.store, rewrite=rewrite, say=merged.said.append)
    assert merged.documents("_a") == [[[3]]]
    assert MergedParts.noted(merged.store, {})
    assert not merged.make()


def test_only_the_parts_are_dropped_once_they_are_merged(merged: Parts) -> None:
    merged.part("a", [1], [2])
    (merged.parts / "notes.txt").write_text("of somebody")
    product = dataclasses.replace(merged.product, drop=True)
    product.make(merged.job, merged.store, rewrite=lambda _: False, say=merged.said.append)
    assert os.listdir(merged.parts) == ["notes.txt"]


def test_of_parts_that_were_dropped_nothing_is_asked(merged: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    merged.part("a", [1], [2])
    merged.make()
    merged.product = dataclasses.replace(merged.product, drop=True)
    asked: list[str] = []

    def ask(url: str, options: Options) -> FileInfo:
        asked.append(url)
        return stat(url, options)

    monkeypatch.setattr(megatron, "stat", ask)
    assert not merged.make()
    assert len(asked) == len(SUFFIXES)
    asked.clear()
    assert not merged.make()
    assert asked == []


LINE = b'{"n": 1}\n'


def split_job(root: Path, *names: str) -> str:
    """Return the ledger of a job that has written some shards; those in a folder are of its route."""
    written = Written(root, ConvertJob, output=str(root / "out"), to="jsonl")
    for name in names:
        path, route = root / "out" / name, name.rpartition("/")[0]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(LINE)
        output = Output(name, len(LINE), content_checksum([LINE]), 1, 0, route=route)
        written.record(name, output, records=1, counts=RecordCounts(1, 1, {}, {}, {route: 1}))
    written.store.close()
    return written.job.ledger


def splits(root: Path) -> dict[str, list[str]]:
    """Return the patterns of each split of the card."""
    found: dict[str, list[str]] = {}
    for line in (root / "out" / "README.md").read_text(encoding="utf-8").splitlines():
        words = line.split()
        if words[:2] == ["-", "split:"]:
            found[words[2]] = []
        elif found and words[:1] == ["-"]:
            found[[*found][-1]].append(json.loads(words[1]))
    return found


def test_the_parts_of_a_split_are_the_splits_of_one_dataset(tmp_path: Path) -> None:
    ledger = split_job(tmp_path, "train/a.jsonl", "train/b.jsonl", "validation/a.jsonl", "test/b.jsonl")
    result = ledgerbeam.publish(ledger, as_="hf")
    assert result.sources == 4
    assert result.records.read == 4
    assert splits(tmp_path) == {
        "test": ["test/*.jsonl"],
        "train": ["train/*.jsonl"],
        "validation": ["validation/*.jsonl"],
    }
    assert [path.parent.name for path in (tmp_path / "out").rglob("README.md")] == ["out"]


def test_routes_can_be_given_other_names_or_be_datasets_of_their_own(tmp_path: Path) -> None:
    ledger = split_job(tmp_path, "part-0/a.jsonl", "part-1/a.jsonl")
    with pytest.raises(UsageError, match=r"part-0: expected letters.*--part"):
        ledgerbeam.publish(ledger, as_="hf")
    ledgerbeam.publish(ledger, as_="hf", part={"train": "part-0/*", "test": "*"})
    assert splits(tmp_path) == {"train": ["part-0/*.jsonl"], "test": ["part-1/*.jsonl"]}
    ledgerbeam.publish(ledger, as_="hf", route="part-1")
    assert (tmp_path / "out" / "part-1" / "README.md").exists()


def test_the_main_dataset_of_a_job_with_routes_is_published_without_them(tmp_path: Path) -> None:
    ledgerbeam.publish(split_job(tmp_path, "a.jsonl", "odd/a.jsonl"), as_="hf")
    assert splits(tmp_path) == {"train": ["*.jsonl"]}


def test_formats_that_have_no_splits_ask_for_a_route(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--route NAME takes: 'test', 'train'"):
        ledgerbeam.publish(split_job(tmp_path, "train/a.jsonl", "test/a.jsonl"), as_="idxpack")
