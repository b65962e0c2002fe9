"""How the local runner's launcher cuts a job into waves, and the indexes that are made ahead of them."""

from __future__ import annotations

import os
import resource
import threading
from collections.abc import Iterable
from itertools import chain
from pathlib import Path

import pytest

from ledgerbeam.errors import StorageError
from ledgerbeam.io.exchange.slices import SliceTables
from ledgerbeam.io.storage.stat import stat
from ledgerbeam.ledger import Source
from ledgerbeam.pipelines.dedup.exact import FilesWithLists
from ledgerbeam.pipelines.jobs.map import MapJob, MappedFunction
from ledgerbeam.pipelines.jobs.one_stage import IndexJob
from ledgerbeam.pipelines.jobs.sources import GraphPasses, JobSources, ListedFiles
from ledgerbeam.pipelines.runners import wave, waves
from ledgerbeam.pipelines.runners.job_files import dump_rows, load_rows
from ledgerbeam.pipelines.runners.waves import (
    gathered_waves,
    indexed_bytes,
    require_descriptors,
)
from ledgerbeam.sources.listed import RemainingSources
from tests.cases import each
from tests.disk import no_larger_than


def sizes_of_waves(of: JobSources, pages: list[list[int]], workers: int = 1) -> list[list[int]]:
    sources = ([Source(f"/in/{size}.jsonl", size, "1") for size in page] for page in pages)
    return [[source.size for source in wave] for wave in waves_of(sources, of, workers)]


def waves_of(pages: Iterable[list[Source]], of: JobSources, workers: int = 1) -> list[list[Source]]:
    return list(gathered_waves(pages, of, workers))


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waves, "WAVE_SOURCES", 3)
    monkeypatch.setattr(waves, "WAVE_TASKS", 10)
    monkeypatch.setattr(waves, "WAVE_MEMBERS", 5)


def test_a_wave_has_so_many_sources_and_tasks_at_most_unless_it_is_one_source() -> None:
    assert sizes_of_waves(ListedFiles(), [[1, 2], [], [3, 4, 5, 6], [7]]) == [[1, 2, 3], [4, 5, 6], [7]]
    files = ListedFiles(task_bytes=100)
    assert sizes_of_waves(files, [[400, 500, 300, 5000, 100]]) == [[400, 500], [300], [5000], [100]]


@each(
    ("sizes", "workers", "expected"),
    [
        ([60, 40, 1, 398, 1, 2000, 1, 1], 1, [[60, 40], [1, 398, 1], [2000], [1, 1]]),
        ([60, 40, 1, 398, 1, 1900, 100], 1, [[60, 40], [1, 398, 1], [1900, 100]]),
        ([101, 404, 1, 5000], 1, [[101], [404], [1], [5000]]),
        ([3000, 12_000, 1, 60_004, 1], 1, [[3000], [12_000], [1], [60_004], [1]]),
        ([900, 800, 700, 600], 2, [[900, 800], [700, 600]]),
        ([20, 900, 1, 900, 8000], 2, [[20, 900], [1, 900], [8000]]),
    ],
)
def test_the_first_wave_is_small_and_each_has_at_most_so_many_bytes_for_each_of_those_before_it(
    monkeypatch: pytest.MonkeyPatch, sizes: list[int], workers: int, expected: list[list[int]]
) -> None:
    """But there is a source for each worker."""
    monkeypatch.setattr(waves, "FIRST_BYTES", 100)
    assert sizes_of_waves(ListedFiles(task_bytes=100_000), [sizes], workers) == expected


def test_what_is_cut_without_being_read_makes_no_wave_larger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waves, "FIRST_BYTES", 100)
    pack = Source.pack([Source(f"/in/{number}.jsonl", 1000, "1") for number in range(2)])
    large = Source("/in/large.jsonl", 90, "1")
    (wave,) = waves_of([[pack, large, pack]], ListedFiles())
    assert wave == [pack, large, pack]
    graph = GraphPasses(reference="m:f", made_of={"module": {}})
    shards = ListedFiles(read_as="shar")
    assert [waves.indexed_bytes(of, pack) for of in (ListedFiles(), graph, shards)] == [0, 0, 2000]


def test_a_file_with_its_list_is_no_pack() -> None:
    files = FilesWithLists(
        task_bytes=100, tables=SliceTables("/work", "runs"), url="/work/lists", kind=RemainingSources
    )
    one, *more = (Source(f"/in/{number}.jsonl", 200, "1") for number in range(4))
    alone, listed, packed = one, Source.pack([one, more[0]]), Source.pack([one, *more])
    assert [files.indexed_bytes(source) for source in (alone, listed, packed)] == [200, 400, 0]
    assert [files.expected_tasks(source) for source in (alone, listed, packed)] == [2, 4, 1]


def test_a_wave_has_so_many_members_of_packs_at_most_unless_it_is_one_pack() -> None:
    for counts in ([[2, 3], [1], [9], [1]], [[2, 3], [3, 2], [2]]):
        packs = [
            Source.pack([Source(f"/in/{pack}/{number}.jsonl", 1, "1") for number in range(count)])
            for pack, count in enumerate(chain.from_iterable(counts))
        ]
        waves = waves_of([packs], ListedFiles())
        assert [[len(source.members) for source in wave] for wave in waves] == counts


def test_a_pack_is_one_task_and_a_pass_as_many_as_its_places_make() -> None:
    pack = Source.pack([Source(f"/in/{number}.jsonl", 1000, "1") for number in range(5)])
    assert ListedFiles(task_bytes=100).expected_tasks(pack) == 1
    graph = GraphPasses(reference="m:f", made_of={"module": {}}, task_bytes=1, task_records=64)
    assert graph.expected_tasks(Source("graph://m/f/epoch-00000", 640, "v")) == 10


def test_a_wave_has_no_more_tasks_than_are_wanted_when_it_is_gathered() -> None:
    wanted = [3]
    waves = gathered_waves(
        [[Source(f"/in/{number}.jsonl", 5, "1")] for number in range(6)], ListedFiles(), 1, lambda: wanted[0]
    )
    assert len(next(waves)) == 3
    wanted[0] = 1
    assert len(next(waves)) == 1


def died_in_a_runner() -> threading.ExceptHookArgs:
    try:
        exec(compile("raise RuntimeError('gone')", "runner", "exec"), {"__name__": "apache_beam.runners.worker"})
    except RuntimeError as error:
        return threading.ExceptHookArgs((RuntimeError, error, error.__traceback__.tb_next, None))  # type: ignore[union-attr]
    raise AssertionError


def test_the_death_of_a_runners_thread_is_told_also_on_a_full_disk(tmp_path: Path) -> None:
    wave._report_thread(str(tmp_path), died_in_a_runner())
    assert "gone" in (tmp_path / "worker-died").read_text()
    full = tmp_path / "full"
    full.mkdir()
    with no_larger_than(0):
        wave._report_thread(str(full), died_in_a_runner())
    assert (full / "worker-died").read_bytes() == b""
    child = os.fork()
    if not child:
        wave._report_thread(str(tmp_path / "gone"), died_in_a_runner())
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1


def test_a_wave_file_of_another_user_or_through_a_link_is_not_read(tmp_path: Path) -> None:
    wave = tmp_path / "wave"
    dump_rows(str(wave), [])
    assert list(load_rows(str(wave))) == []
    with pytest.raises(FileExistsError):
        dump_rows(str(wave), [])
    (tmp_path / "link").symlink_to(wave)
    with pytest.raises(OSError, match="link"):
        list(load_rows(str(tmp_path / "link")))
    if os.geteuid() == 0:
        os.chown(wave, 12345, 12345)
        with pytest.raises(StorageError, match="found one of user 12345"):
            list(load_rows(str(wave)))


def test_where_files_have_no_hard_limit_the_soft_one_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (10, resource.RLIM_INFINITY))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: given.append(limits))
    require_descriptors(2)
    assert given == [(72, resource.RLIM_INFINITY)]


LINES = b'{"a": 1}\n{"a": 2}\n'


def job_of(folder: Path, **more: object) -> MapJob:
    files = ListedFiles(patterns=(f"{folder}/in/*",), **more)  # type: ignore[arg-type]
    return MapJob(
        files=files, functions=(MappedFunction("f", "m:f", {}),), output=str(folder / "out"), to="jsonl"
    ).resolve_ledger("L")


def written(folder: Path, name: str, content: bytes = LINES) -> Path:
    path = folder / "in" / f"{name}.jsonl"
    path.write_bytes(content)
    return path


def source_of(path: Path) -> Source:
    found = stat(str(path))
    return Source(str(path), found.size, found.version)


@pytest.fixture
def sources(tmp_path: Path) -> list[Source]:
    (tmp_path / "in").mkdir()
    return [source_of(written(tmp_path, name)) for name in "abc"]


def test_what_is_read_before_the_first_task(tmp_path: Path, sources: list[Source]) -> None:
    plain, without = job_of(tmp_path), job_of(tmp_path, build_index=False)
    index = IndexJob(files=plain.files, storage_options={})
    assert [indexed_bytes(job.sources(), sources[0]) for job in (plain, index)] == [len(LINES), 0]
    packed = Source(f"{tmp_path}/in/a.jsonl.gz", 99, "1")  # found in one pass, with indexes or without
    assert [indexed_bytes(job.sources(), packed) for job in (plain, without)] == [99, 99]
