"""Joining sources by the kernel, between file systems, inside S3, and as a stream; never partially."""

from __future__ import annotations

import errno
import os
import random
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledgerbeam.errors import ChangedSourceError, SourceNotFoundError, StorageError
from ledgerbeam.io.storage.client import filesystem
from ledgerbeam.io.storage.concatenate import LEAST_PART, concatenated, plan_parts
from ledgerbeam.io.storage.files import read_bytes
from ledgerbeam.io.storage.publish import publish_bytes
from ledgerbeam.io.storage.stat import FileInfo, stat
from tests.conftest import S3Requests
from tests.disk import no_larger_than
from tests.io.conftest import Place

SIZES = [0, 70_000, 1, 0, 3_000_000]


def store(place: Place, sizes: list[int], seed: int = 1) -> tuple[list[FileInfo], bytes]:
    """Write sources; return them and their joined content."""
    chance = random.Random(seed)
    contents = [chance.randbytes(size) for size in sizes]
    for number, content in enumerate(contents):
        publish_bytes(place / f"source-{number}", content, place.options)
    return [stat(place / f"source-{n}", place.options) for n in range(len(sizes))], b"".join(contents)


def test_sources_are_joined_in_order_when_the_body_ends(place: Place) -> None:
    sources, joined = store(place, SIZES)
    target = place / "joined"
    with pytest.raises(ZeroDivisionError), concatenated(sources, target, place.options):
        raise ZeroDivisionError
    with concatenated(sources, target, place.options):
        assert not filesystem(place.url, place.options).exists(target)
    assert read_bytes(target, place.options) == joined


def test_a_copy_that_the_disk_refuses_names_both_files_and_a_remedy(tmp_path: Path) -> None:
    sources, _ = store(Place(str(tmp_path)), SIZES)
    message = rf"^{tmp_path}/joined: cannot copy {tmp_path}/source-1 to it .*File too large.*ulimit -f"
    with (
        no_larger_than(4096),
        pytest.raises(StorageError, match=message),
        concatenated(sources, str(tmp_path / "joined")),
    ):
        pytest.fail("the body ran")
    assert not os.path.exists(tmp_path / "joined")


@pytest.mark.parametrize("change", [-1, 1])
def test_a_local_source_that_changed_is_an_error(tmp_path: Path, change: int) -> None:
    sources, _ = store(Place(str(tmp_path)), SIZES)
    os.truncate(sources[4].url, sources[4].size + change)
    with (
        pytest.raises(ChangedSourceError, match=f"expected 3000000 bytes, found {3_000_000 + change}"),
        concatenated(sources, str(tmp_path / "joined")),
    ):
        pytest.fail("the body ran")
    assert not os.path.exists(tmp_path / "joined")


def test_between_file_systems_the_kernel_sends(tmp_path: Path) -> None:
    if not os.path.isdir("/dev/shm") or os.stat("/dev/shm").st_dev == os.stat(tmp_path).st_dev:
        pytest.skip("needs a second file system: mount a tmpfs at /dev/shm")
    with TemporaryDirectory(dir="/dev/shm") as other:
        sources, joined = store(Place(other), SIZES)
        with concatenated(sources, str(tmp_path / "joined")):
            pass
        assert (tmp_path / "joined").read_bytes() == joined


def test_where_the_kernel_copies_no_further_it_sends_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sources, joined = store(Place(str(tmp_path)), SIZES)
    copy = os.copy_file_range
    copied: list[int] = []

    def copy_once(source: int, target: int, count: int, offset: int) -> int:
        if copied:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        copied.append(offset)
        return copy(source, target, 1000, offset)

    monkeypatch.setattr(os, "copy_file_range", copy_once)
    with concatenated(sources, str(tmp_path / "joined")):
        pass
    assert copied == [0]
    assert (tmp_path / "joined").read_bytes() == joined


def test_sources_of_a_store_and_of_the_disk_are_joined_in_order(tmp_path: Path) -> None:
    store_url = f"memory://{tmp_path.name}"
    urls = [f"{store_url}/a", str(tmp_path / "b"), f"{store_url}/c"]
    for url in urls:
        publish_bytes(url, url.encode())
    with concatenated([stat(url) for url in urls], str(tmp_path / "joined")):
        pass
    assert (tmp_path / "joined").read_text() == "".join(urls)


@pytest.mark.s3
def test_a_join_that_fails_leaves_no_upload_behind_in_s3(s3_place: Place, s3_requests: S3Requests) -> None:
    sources, _ = store(s3_place, [LEAST_PART, LEAST_PART])
    target, options = s3_place / "joined", s3_place.options
    with pytest.raises(ZeroDivisionError), concatenated(sources, target, options):
        raise ZeroDivisionError
    assert s3_requests.take()[-1] == "abort_multipart_upload"
    filesystem(s3_place.url, options).rm_file(sources[1].url)
    with pytest.raises(SourceNotFoundError, match="source-1"), concatenated(sources, target, options):
        pytest.fail("the body ran")
    assert s3_requests.take()[-1] == "abort_multipart_upload"


@pytest.mark.s3
@pytest.mark.minio("copies a part whatever version is asked for")
def test_a_source_that_was_replaced_in_s3_is_an_error(s3_place: Place) -> None:
    sources, _ = store(s3_place, [LEAST_PART, LEAST_PART])
    publish_bytes(sources[1].url, bytes(LEAST_PART), s3_place.options)
    with (
        pytest.raises(ChangedSourceError, match="source-1: changed since it was listed"),
        concatenated(sources, s3_place / "joined", s3_place.options),
    ):
        pytest.fail("the body ran")
    assert not filesystem(s3_place.url, s3_place.options).exists(s3_place / "joined")


@given(st.lists(st.integers(0, 50), max_size=30), st.integers(1, 12), st.integers(2, 5))
def test_parts_cover_all_bytes_and_have_sizes_that_s3_takes(sizes: list[int], least: int, factor: int) -> None:
    most = least * factor
    parts = plan_parts(sizes, least, most)
    covered = [(source, byte) for part in parts for source, start, stop in part for byte in range(start, stop)]
    assert covered == [(source, byte) for source, size in enumerate(sizes) for byte in range(size)]
    lengths = [sum(piece.stop - piece.start for piece in part) for part in parts]
    assert all(least <= length <= most for length in lengths[:-1])
    assert all(length <= least for part, length in zip(parts, lengths, strict=True) if len(part) > 1)
