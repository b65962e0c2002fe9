"""Reads of the listed version: they return it or raise `ChangedSourceError`, without an extra request."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace as replaced
from pathlib import Path

import pytest

from ledgerbeam.errors import ChangedSourceError, DiskFullError, LedgerError, RecordError, StorageError, UsageError
from ledgerbeam.io import publish_bytes
from ledgerbeam.io.formats.streamed import scan_stream
from ledgerbeam.io.index.newlines import build_jsonl_index
from ledgerbeam.io.listing.pages import list_pages
from ledgerbeam.io.storage.fetch import OtherVersionError, _require
from ledgerbeam.io.storage.files import delete, read_bytes, read_many_files
from ledgerbeam.io.storage.ranges import RangeReader
from ledgerbeam.io.storage.stat import FileInfo, SourceWatch, open_local, require_listed, stat
from ledgerbeam.io.tar.reader import build_tar_index
from tests.cases import each
from tests.conftest import S3Requests
from tests.io.conftest import Place

DATA = b"0123456789" * 10

READS: dict[str, Callable[[str, Place, FileInfo], object]] = {
    "a range": lambda url, place, listed: RangeReader(url, place.options, listed=listed).read(10, 20),
    "ranges": lambda url, place, listed: RangeReader(url, place.options, listed=listed).read_many(
        [0, 50], [5, 55], gap=0
    ),
    "all": lambda url, place, listed: read_bytes(url, place.options, listed),
    "several": lambda url, place, listed: read_many_files([url, url], place.options, [listed, listed]),
    "lines": lambda url, place, listed: build_jsonl_index(url, place.options, listed=listed),
    "unpickled": lambda url, place, listed: pickle.loads(
        pickle.dumps(RangeReader(url, place.options, listed=listed))
    ).read(10, 20),
    "a look": lambda url, place, listed: require_listed(listed, place.options),
}


def put(place: Place, name: str, data: bytes) -> FileInfo:
    publish_bytes(place / name, data, place.options)
    (page,) = list_pages([place / f"{name[:3]}*"], place.options)
    listed = FileInfo(page.urls[0], page.sizes[0], page.versions[0])
    assert listed == stat(place / name, place.options)  # both name one version the same way
    return listed


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_a_source_is_what_was_listed_or_an_error(place: Place, read: Callable[[str, Place, FileInfo], object]) -> None:
    listed = put(place, "abc.jsonl", DATA)
    expected = read(listed.url, place, listed)
    if place.url.startswith("/"):
        os.utime(listed.url, ns=(1, 1))
    else:
        publish_bytes(listed.url, DATA[::-1], place.options)
    with pytest.raises(
        ChangedSourceError, match=r"abc\.jsonl: changed since it was listed: expected 100 bytes of version"
    ):
        read(listed.url, place, listed)
    now = stat(listed.url, place.options)
    assert type(read(now.url, place, now)) is type(expected)
    delete(listed.url, place.options)
    with pytest.raises((ChangedSourceError, FileNotFoundError)):
        read(now.url, place, now)


def test_of_several_files_each_is_of_its_own_listed_version(place: Place, tmp_path: Path) -> None:
    local, (one, other) = Place(str(tmp_path / "local")), (put(place, name, DATA) for name in ("abc", "xyz"))
    beside = put(local, "abc", DATA[::-1])
    files = [one, beside, other]
    urls = [file.url for file in files]
    assert read_many_files(urls, place.options, files) == [DATA, DATA[::-1], DATA]
    for number, name in enumerate(("abc", "local/abc", "xyz")):
        stale = [replaced(file, version="1") if at == number else file for at, file in enumerate(files)]
        with pytest.raises(ChangedSourceError, match=f"{name}: changed since it was listed"):
            read_many_files(urls, place.options, stale)


def test_an_object_that_is_gone_has_changed(place: Place) -> None:
    listed = put(place, "abc.jsonl", DATA)
    delete(listed.url, place.options)
    if not place.url.startswith("/"):
        with pytest.raises(ChangedSourceError, match=r"found (none: it was deleted|another version)"):
            RangeReader(listed.url, place.options, listed=listed).read(0, 5)


@pytest.mark.s3
def test_a_conditional_read_is_one_request(s3_place: Place, s3_requests: S3Requests) -> None:
    listed = put(s3_place, "abc.jsonl", DATA)
    s3_requests.take()
    with RangeReader(listed.url, s3_place.options, listed=listed) as reader:
        assert reader.read(10, 20) == DATA[:10]
        assert reader.size == 100
    assert s3_requests.take() == ["get_object"]
    assert read_many_files([listed.url] * 3, s3_place.options, [listed] * 3) == [DATA] * 3
    assert s3_requests.take() == ["get_object"] * 3


CHANGES: dict[str, Callable[[Path], object]] = {
    "overwritten": lambda path: path.write_bytes(DATA[::-1]),
    "overwritten, its time put back": lambda path: put_back(path, lambda: path.write_bytes(DATA[::-1])),
    "replaced": lambda path: replace(path, DATA[::-1]),
    "replaced, its time put back": lambda path: put_back(path, lambda: replace(path, DATA[::-1])),
    "appended": lambda path: path.write_bytes(DATA * 2),
    "truncated": lambda path: os.truncate(path, 50),
    "emptied": lambda path: os.truncate(path, 0),
    "touched": os.utime,
    "deleted": lambda path: path.unlink(),
    "a folder": lambda path: in_place(path, path.mkdir),
    "a pipe": lambda path: in_place(path, lambda: os.mkfifo(path)),
    "its folder is a file": lambda path: in_place(path, lambda: in_place_of_folder(path.parent)),
}


def in_place(path: Path, make: Callable[[], None]) -> None:
    path.unlink()
    make()


def in_place_of_folder(folder: Path) -> None:
    folder.rmdir()
    folder.write_bytes(b"")


def replace(path: Path, data: bytes) -> None:
    aside = path.with_name("aside")
    aside.write_bytes(data)
    aside.replace(path)


def put_back(path: Path, change: Callable[[], object]) -> None:
    before = path.stat()
    change()
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_watch_notices_what_happens_to_a_file(tmp_path: Path, change: Callable[[Path], object]) -> None:
    path = tmp_path / "in" / "abc.jsonl"
    path.parent.mkdir()
    path.write_bytes(DATA)
    os.utime(path, ns=(10**18, 10**18))
    listed = stat(str(path))
    with SourceWatch([listed]) as watch:
        watch.check()
    with pytest.raises(ChangedSourceError, match=r"abc\.jsonl: changed since it was listed"), SourceWatch([listed]):
        change(path)


def test_each_mark_of_a_file_is_compared(tmp_path: Path) -> None:
    path = tmp_path / "abc.jsonl"
    path.write_bytes(DATA)
    listed = stat(str(path))
    assert len(SourceWatch([listed]).marks) == 1
    for other in (replaced(listed, size=99), replaced(listed, version="1"), replaced(listed, changed_ns=1)):
        with pytest.raises(ChangedSourceError, match=r"abc\.jsonl"):
            SourceWatch([other])


def test_a_link_to_another_file_is_another_file(tmp_path: Path) -> None:
    """A file of the same size and times, written within one tick of the file system's clock."""
    first, second, link = tmp_path / "first", tmp_path / "second", tmp_path / "abc.jsonl"
    for _ in range(1000):
        for path in (first, second):
            path.write_bytes(DATA)
        for path in (first, second):
            os.utime(path, ns=(10**18, 10**18))
        if first.stat().st_ctime_ns == second.stat().st_ctime_ns:
            break
    else:
        pytest.skip("the clock of this file system is too fine")
    link.symlink_to(first)
    watch = SourceWatch([stat(str(link))])
    watch.check()
    link.unlink()
    link.symlink_to(second)
    with pytest.raises(ChangedSourceError, match="device, inode"):
        watch.check()


@each(("found", "is_other"), [("b", True), ('"b"', True), ("a", False), ('"a"', False), (None, False)])
def test_an_answer_of_another_version_is_refused_by_whoever_gives_it(found: str | None, is_other: bool) -> None:
    with pytest.raises(OtherVersionError, match=r"^b$") if is_other else nullcontext():
        _require("a", found)


def test_damage_of_a_file_that_changed_is_its_change(tmp_path: Path) -> None:
    path = tmp_path / "abc.jsonl"
    path.write_bytes(DATA)
    listed = stat(str(path))

    def read_half() -> None:
        with SourceWatch([listed]):
            os.truncate(path, 50)
            raise RecordError("half a record")

    with pytest.raises(ChangedSourceError) as caught:
        read_half()
    assert isinstance(caught.value.__cause__, RecordError)
    with pytest.raises(RecordError), SourceWatch([stat(str(path))]):
        raise RecordError("a bad record")


@pytest.mark.parametrize(
    "error", [DiskFullError("no room"), LedgerError("damaged"), ValueError("of the caller"), StorageError("no")]
)
def test_which_errors_are_explained_by_a_change(tmp_path: Path, error: Exception) -> None:
    """Unrelated errors are not changed, such as a full disk."""
    path = tmp_path / "abc.jsonl"
    path.write_bytes(DATA)
    listed = stat(str(path))
    expected = ChangedSourceError if type(error) is StorageError else type(error)

    def read() -> None:
        with SourceWatch([listed]):
            path.write_bytes(DATA[::-1])
            raise error

    with pytest.raises(expected):
        read()


def test_of_several_files_the_one_that_changed_is_named(tmp_path: Path) -> None:
    paths = [tmp_path / f"{name}.jsonl" for name in "abc"]
    for path in paths:
        path.write_bytes(DATA)
    listed = [stat(str(path)) for path in paths]
    remote = replaced(listed[0], url="s3://bucket/a")
    watch = SourceWatch([remote, *listed])
    assert len(watch.marks) == 3
    watch.check()
    for path in paths[1:]:
        put_back(path, lambda path=path: path.write_bytes(DATA[::-1]))  # type: ignore[misc]
    with pytest.raises(ChangedSourceError, match=r"b\.jsonl: changed since"):
        watch.check()


def test_a_time_of_the_last_change_is_compared_where_it_is_known(tmp_path: Path) -> None:
    path = tmp_path / "abc.jsonl"
    path.write_bytes(DATA)
    now = path.stat()
    known = replaced(stat(str(path)), changed_ns=now.st_ctime_ns)
    assert SourceWatch([known]).marks == ((now.st_dev, now.st_ino, now.st_ctime_ns),)
    put_back(path, lambda: path.write_bytes(DATA[::-1]))
    with pytest.raises(ChangedSourceError, match="of that size and time which was written, replaced or renamed since"):
        SourceWatch([known])
    assert SourceWatch([replaced(known, changed_ns=0)]).marks


def test_a_file_that_may_not_be_looked_at_is_no_changed_one(tmp_path: Path) -> None:
    path = tmp_path / "abc.jsonl"
    path.write_bytes(DATA)
    listed = stat(str(path))
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    with pytest.raises(StorageError) as refused:
        SourceWatch([replaced(listed, url=str(loop / "abc.jsonl"))])
    assert not isinstance(refused.value, ChangedSourceError)
    with pytest.raises(ChangedSourceError, match="found none"):
        SourceWatch([replaced(listed, url=f"{path}/below")])


SPECIAL = {"a pipe": os.mkfifo, "a device": lambda path: os.symlink("/dev/zero", path)}


@pytest.mark.timeout(20)
@pytest.mark.parametrize("make", SPECIAL.values(), ids=SPECIAL)
def test_what_is_no_file_is_refused_and_nothing_waits(tmp_path: Path, make: Callable[[str], None]) -> None:
    url = str(tmp_path / "x.jsonl")
    make(url)
    for read in (
        stat,
        read_bytes,
        lambda url: RangeReader(url).read(0, 1),
        lambda url: RangeReader(url, size=10).read_many([0, 5], [1, 6]),
        lambda url: open_local(url).__enter__(),
        build_jsonl_index,
        lambda url: list(list_pages([url])),
    ):
        with pytest.raises(UsageError, match=r"x.jsonl: expected a file .*, found a (pipe|device)"):
            read(url)
    for name, scan in (("x.tar", build_tar_index), ("x.jsonl.gz", scan_stream)):
        make(str(tmp_path / name))
        with pytest.raises(UsageError, match="write its content"):
            scan(str(tmp_path / name))
