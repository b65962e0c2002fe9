"""Indexes of large sources that a process beside the waves makes ahead of them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ledgerbeam.io.index.file import IndexFile
from ledgerbeam.io.lines.formats import JsonlFormat
from ledgerbeam.io.storage.stat import stat
from ledgerbeam.ledger import Source
from ledgerbeam.ledger.selection import PendingSource
from ledgerbeam.pipelines.jobs.one_stage import IndexJob, MapJob
from ledgerbeam.pipelines.jobs.sources import ListedFiles
from ledgerbeam.pipelines.runners import waves
from ledgerbeam.pipelines.runners.job_files import STORAGE_OPTIONS, dump_job, dump_sources
from ledgerbeam.pipelines.runners.waves import IndexesAhead, Waves, indexed_bytes, make_indexes
from tests.servers.process import wait_until

LINES = b'{"a": 1}\n{"a": 2}\n'


def job_of(folder: Path, **more: object) -> MapJob:
    files = ListedFiles(patterns=(f"{folder}/in/*",), **more)  # type: ignore[arg-type]
    return MapJob(files=files, function="m:f", made_of={}, output=str(folder / "out"), to="jsonl").resolve_ledger("L")


def source_of(path: Path) -> Source:
    found = stat(str(path))
    return Source(str(path), found.size, found.version)


@pytest.fixture
def sources(tmp_path: Path) -> list[Source]:
    (tmp_path / "in").mkdir()
    paths = [tmp_path / "in" / f"{name}.jsonl" for name in "abc"]
    for path in paths:
        path.write_bytes(LINES)
    return list(map(source_of, paths))


def made(folder: Path) -> list[str]:
    return sorted(name.partition(".")[0] for name in os.listdir(folder / "in") if name.endswith(".idx"))


def listed(folder: Path, sources: list[Source], job: MapJob, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """Write what the process is given."""
    monkeypatch.setenv(STORAGE_OPTIONS, json.dumps(job.storage_options))
    (folder / "run").mkdir()
    (folder / "run" / "job").write_bytes(dump_job(job))
    dump_sources(str(folder / "run" / "list"), [PendingSource(source) for source in sources])
    return str(folder / "run" / "job"), str(folder / "run" / "list")


def test_those_that_are_not_there_are_made_whatever_is_wrong_with_a_source(
    tmp_path: Path, sources: list[Source], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path(sources[0].url).unlink()
    there = tmp_path / "in" / "b.jsonl.idx"
    there.write_bytes(b"another's")
    unknown = Source(f"{tmp_path}/in/d.what", 1, "1")
    changed = Source(sources[2].url, 5, "1")
    make_indexes(*listed(tmp_path, [*sources, unknown, changed], job_of(tmp_path), monkeypatch))
    assert there.read_bytes() == b"another's"
    assert made(tmp_path) == ["b", "c"]
    assert sorted(os.listdir(tmp_path / "run")) == ["job", "list"], "no mark is left"


def test_of_a_source_that_has_changed_since_it_was_listed_none_is_made(
    tmp_path: Path, sources: list[Source], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path(sources[1].url).write_bytes(LINES + LINES)
    make_indexes(*listed(tmp_path, sources, job_of(tmp_path), monkeypatch))
    assert made(tmp_path) == ["a", "c"]


def test_no_more_are_made_once_the_list_is_gone(
    tmp_path: Path, sources: list[Source], monkeypatch: pytest.MonkeyPatch
) -> None:
    job, path = listed(tmp_path, sources, job_of(tmp_path), monkeypatch)

    def build(*args: object, **more: object) -> object:
        os.unlink(path)
        return real(*args, **more)  # type: ignore[arg-type]

    real = JsonlFormat.build_index
    monkeypatch.setattr(JsonlFormat, "build_index", build)
    make_indexes(job, path)
    assert made(tmp_path) == ["a"]


@contextmanager
def ahead(job: MapJob, folder: Path) -> Iterator[IndexesAhead]:
    folder.mkdir()
    with Waves("warning") as waves:
        found = IndexesAhead(job, waves, str(folder))
        try:
            yield found
        finally:
            found.end()


@pytest.mark.parametrize("size", [len(LINES), len(LINES) + 1])
def test_only_large_sources_are_indexed_ahead(
    tmp_path: Path, sources: list[Source], size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waves, "LEAST_BYTES", size)
    with ahead(job_of(tmp_path), tmp_path / "run") as found:
        found.begin(sources)
        if size > len(LINES):
            assert found._process is None
        else:
            assert wait_until(lambda: made(tmp_path) == ["a", "b", "c"], seconds=60)


def test_a_wave_is_begun_once_and_another_when_that_is_done(
    tmp_path: Path, sources: list[Source], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waves, "LEAST_BYTES", 1)
    with ahead(job_of(tmp_path), tmp_path / "run") as found:
        first, second = sources[:1], sources[1:]
        found.begin(first)
        process = found._process
        found.begin(first)
        assert found._process is process
        found.begin(second)  # at once: the first has only been asked for
        assert found._process is process

        def is_begun() -> bool:
            found.begin(second)
            return found._process is not process

        assert wait_until(is_begun, seconds=60)
        found.leave(first)
        assert wait_until(lambda: made(tmp_path) == ["a", "b", "c"], seconds=60)


def test_a_job_that_makes_no_indexes_has_none_made_ahead(
    tmp_path: Path, sources: list[Source], monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[str] = []
    monkeypatch.setattr(IndexFile, "info", property(lambda index: looked.append(index.url)))
    make_indexes(*listed(tmp_path, sources, job_of(tmp_path, build_index=False), monkeypatch))
    assert (looked, made(tmp_path)) == ([], [])


def test_what_is_read_before_the_first_task(tmp_path: Path, sources: list[Source]) -> None:
    plain, without = job_of(tmp_path), job_of(tmp_path, build_index=False)
    index = IndexJob(files=plain.files, storage_options={})
    assert [indexed_bytes(job.sources(), sources[0]) for job in (plain, index)] == [len(LINES), 0]
    packed = Source(f"{tmp_path}/in/a.jsonl.gz", 99, "1")  # found in one pass, with indexes or without
    assert [indexed_bytes(job.sources(), packed) for job in (plain, without)] == [99, 99]


def test_a_list_that_is_gone_before_it_is_read_ends_the_process_without_a_word(
    tmp_path: Path, sources: list[Source], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    job, path = listed(tmp_path, sources, job_of(tmp_path), monkeypatch)
    os.unlink(path)
    with Waves("warning") as waves:
        process = waves.start_ahead("lean", [job, path], os.environ)
        assert process.wait(60)
        process.end()
    assert process.status == 0
    assert capfd.readouterr() == ("", "")
