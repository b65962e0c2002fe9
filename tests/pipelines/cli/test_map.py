"""`ledgerbeam map` from end to end, as a user runs it, and `--sample N`, which writes nothing."""

from __future__ import annotations

import gzip
import json
import sys
import tarfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ledgerbeam.io import JsonlReader, Sample, TarReader
from ledgerbeam.io.lines.formats import JsonlFormat
from ledgerbeam.io.storage import client
from ledgerbeam.io.tar.writer import encode_tar
from ledgerbeam.io.warc import record_bytes
from ledgerbeam.pipelines.jobs.map import MapJob, MappedFunction
from ledgerbeam.pipelines.jobs.sources import ListedFiles
from ledgerbeam.pipelines.preview.sample import _some_of, sample_places, sampled_records
from ledgerbeam.sources.forms import RecordForm
from tests.cases import each
from tests.io.warc.content import records
from tests.pipelines.conftest import Workspace
from tests.pipelines.jobs.test_costs import tree
from tests.servers.s3_proxy import S3Proxy


def test_records_of_many_sources_are_mapped_in_order_with_an_index(workspace: Workspace) -> None:
    workspace.jsonl("in/a.jsonl", 100)
    workspace.jsonl("in/sub/b.jsonl", 50, first=100)
    ran = workspace.run("map", "functions:upper", "in/**/*.jsonl", "--output", "out", "--to", "jsonl", status=0)
    assert ran.out.startswith("ledger: .ledgerbeam/map-")
    assert sorted(workspace.files("out")) == [
        "a.jsonl-0000000000.jsonl",
        "a.jsonl-0000000000.jsonl.idx",
        "sub/b.jsonl-0000000000.jsonl",
        "sub/b.jsonl-0000000000.jsonl.idx",
    ]
    assert [r["id"] for r in workspace.records("out")] == list(range(150))
    assert all(r["text"].startswith("TEXT") for r in workspace.records("out"))
    with JsonlReader(str(workspace.root / "out/sub/b.jsonl-0000000000.jsonl")) as reader:
        assert reader[49]["id"] == 149


def test_a_finished_job_is_told_without_what_takes_long_to_import(workspace: Workspace) -> None:
    workspace.jsonl("in/a.jsonl", 10)
    words = ["map", "functions:upper", "in/a.jsonl", "--output", "out", "--to", "jsonl"]
    workspace.succeed(*words)
    code = (
        f"import sys; from ledgerbeam.pipelines.cli.cli import main; sys.argv[1:] = {words}; main(); "
        "sys.exit(str({'apache_beam', 'asyncio', 'numpy', 'pyarrow'} & sys.modules.keys()))"
    )
    ran = workspace.call(sys.executable, "-c", code, status=1, err="set()")
    assert "1 source complete (1 skipped" in ran.out


@pytest.mark.parametrize("workers", ["1", "2"])
def test_tasks_cut_a_source_and_the_output_does_not_depend_on_workers(workspace: Workspace, workers: str) -> None:
    workspace.jsonl("in/a.jsonl", 1000)
    command = ("map", "functions:keep", "in/a.jsonl", "--output", "out", "--to", "jsonl")
    ran = workspace.run(*command, "--task-bytes", "10000", "--workers", workers, "--json", status=0)
    names = [name for name in workspace.files("out") if name.endswith(".jsonl")]
    assert len(names) == ran.json["tasks"]["done"] > 3
    assert [r["id"] for r in workspace.records("out")] == list(range(1000))


@pytest.mark.slow
def test_a_rerun_of_a_finished_job_does_nothing_but_what_is_new(workspace: Workspace) -> None:
    workspace.jsonl("in/a.jsonl", 10)
    command = ("map", "functions:keep", "in/*.jsonl", "--output", "out", "--to", "jsonl", "--json")
    first = workspace.run(*command)
    assert json.loads(first.out)["complete"] is True, "one object is printed, and nothing else"
    assert first.json["skipped"] == 0
    before = {p: p.stat().st_mtime_ns for p in (workspace.root / "out").glob("*.jsonl*")}
    again = workspace.run(*command)
    assert again.json["skipped"] == 1
    assert {p: p.stat().st_mtime_ns for p in (workspace.root / "out").glob("*.jsonl*")} == before
    workspace.jsonl("in/b.jsonl", 5)
    more = workspace.run(*command)
    assert (more.json["skipped"], more.json["sources"]["complete"]) == (1, 2)


@pytest.mark.slow
def test_a_changed_source_replaces_its_outputs_and_removes_those_it_no_longer_yields(workspace: Workspace) -> None:
    workspace.jsonl("in/a.jsonl", 1000)
    workspace.jsonl("in/b.jsonl", 10)
    command = ("map", "functions:keep", "in/*.jsonl", "--output", "out", "--to", "jsonl", "--task-bytes", "10000")
    workspace.run(*command)
    assert len(workspace.files("out")) > 6
    workspace.jsonl("in/a.jsonl", 20, first=500)
    workspace.run(*command, status=0, err="in/a.jsonl: changed since this job read it; indexing it again")
    assert len(workspace.files("out")) == 4
    assert [r["id"] for r in workspace.records("out")] == [*range(500, 520), *range(10)]


def test_dropped_records_and_empty_sources_leave_no_empty_shards(workspace: Workspace) -> None:
    workspace.jsonl("in/a.jsonl", 10)
    (workspace.root / "in/empty.jsonl").touch()
    ran = workspace.run("map", "functions:drop", "in/*.jsonl", "--output", "out", "--to", "jsonl", "--json", status=0)
    assert ran.json["sources"]["complete"] == 2
    assert workspace.files("out") == {}


@pytest.mark.slow
def test_jsonl_becomes_tar_and_tar_becomes_jsonl(workspace: Workspace) -> None:
    workspace.jsonl("in/a.jsonl", 30)
    workspace.run("map", "functions:sample", "in/a.jsonl", "--output", "tars", "--to", "tar", status=0)
    shard = workspace.root / "tars/a.jsonl-0000000000.tar"
    with TarReader(str(shard)) as reader:
        assert len(reader) == 30
        assert reader[3].key == "a-000000003"
    with tarfile.open(shard) as tar:
        assert tar.getnames()[:2] == ["a-000000000.txt", "a-000000000.json"]
    workspace.run("map", "functions:members", "tars/*.tar", "--output", "out", "--to", "jsonl", status=0)
    assert workspace.records("out")[3] == {"key": "a-000000003", "sizes": {"txt": 20, "json": 2}}


@pytest.mark.slow
def test_small_sources_are_packed_into_few_shards(workspace: Workspace) -> None:
    for i in range(60):
        workspace.jsonl(f"in/{i:03d}.jsonl", 5, first=5 * i)
    command = ("map", "functions:keep", "in/*.jsonl", "--output", "out", "--to", "jsonl", "--pack", "2000", "--json")
    ran = workspace.run(*command, status=0)
    assert 1 < ran.json["sources"]["complete"] < 30
    assert [r["id"] for r in workspace.records("out")] == list(range(300))
    assert not list((workspace.root / "in").glob("*.idx"))
    workspace.jsonl("in/030.jsonl", 6, first=1000)
    again = workspace.run(*command)
    changed = again.json["sources"]["complete"] - again.json["skipped"]
    assert 1 <= changed <= 3  # the pack of what changed, and its neighbours where its ends moved
    expected = [*range(150), *range(155, 300), *range(1000, 1006)]
    assert sorted(r["id"] for r in workspace.records("out")) == expected


def test_no_index_refuses_a_source_without_one(workspace: Workspace) -> None:
    workspace.jsonl("in/a.jsonl", 10)
    ran = workspace.run("map", "functions:keep", "in/a.jsonl", "--output", "out", "--to", "jsonl", "--no-index")
    assert ran.status == 3
    assert "ledgerbeam index" in ran.err
    assert not (workspace.root / "in/a.jsonl.idx").exists()


@pytest.mark.slow
def test_a_mirrored_index_root_leaves_the_sources_untouched(workspace: Workspace) -> None:
    path = workspace.jsonl("in/a.jsonl", 10)
    command = ("map", "functions:keep", "in/a.jsonl", "--output", "out", "--to", "jsonl")
    workspace.run(*command, "--index-root", "indexes", status=0)
    index = workspace.root / f"indexes/file{path}.idx"
    assert len(np.frombuffer(index.read_bytes(), "<u8")) == 11
    assert list((workspace.root / "in").iterdir()) == [path]


def test_a_list_of_sources_takes_the_place_of_patterns(workspace: Workspace) -> None:
    paths = [workspace.jsonl(f"in/{name}.jsonl", 3) for name in "abc"]
    (workspace.root / "list.txt").write_text(f"# two of three\n{paths[0]}\n\n{paths[2]}\n")
    workspace.run("map", "functions:keep", "--sources-from", "list.txt", "--output", "out", "--to", "jsonl", status=0)
    assert [name for name in workspace.files("out") if name.endswith("jsonl")] == [
        f"file{paths[0]}-0000000000.jsonl",
        f"file{paths[2]}-0000000000.jsonl",
    ]


@pytest.mark.slow
def test_a_sample_of_many_members_keeps_them(workspace: Workspace) -> None:
    extensions = ("jpg", "seg.png", "cls")
    samples = [Sample(key, {extension: f"{key}{extension}".encode() for extension in extensions}) for key in "xy"]
    (workspace.root / "s.tar").write_bytes(encode_tar(samples, group="key")[0])
    workspace.run("map", "functions:upper_members", "s.tar", "--output", "out", "--to", "tar", status=0)
    with TarReader(str(workspace.root / "out/s.tar-0000000000.tar"), group="key") as reader:
        assert dict(reader[1]) == {"jpg": b"YJPG", "seg.png": b"YSEG.PNG", "cls": b"YCLS"}


COMMAND = ("map", "functions:sampled", "in/**", "--output", "out", "--to", "jsonl")
FUNCTION = """
from ledgerbeam import stats

def sampled(record):
    stats.count("seen")
    if record["id"] % 5 == 0:
        raise ValueError(f"no {record['id']}")
    return record if record["id"] % 2 else None
"""


def sample(workspace: Workspace, *options: str) -> Any:
    """Return the output of a sample, after a check that nothing was written."""
    before = tree(workspace.root)
    ran = workspace.run(*COMMAND, *options, "--json", status=0)
    plain = workspace.run(*COMMAND, *options, status=0)
    assert "nothing was written" in plain.out
    assert tree(workspace.root) == before
    return {**ran.json, "text": plain.out}


def map_job(pattern: str, **more: Any) -> MapJob:
    files = ListedFiles(patterns=(pattern,))
    return MapJob(
        files=files, output="o", to="jsonl", functions=(MappedFunction("f", "json:dumps", {"module": {}}),), **more
    )


@pytest.fixture
def sources(workspace: Workspace) -> Workspace:
    (workspace.root / "functions.py").write_text(FUNCTION)
    for number, name in enumerate(("a", "sub/b", "c")):
        workspace.jsonl(f"in/{name}.jsonl", 1000, first=1000 * number)
    return workspace


@pytest.mark.slow
def test_records_come_from_all_over_the_indexed_sources(sources: Workspace) -> None:
    assert sources.run("index", "in/**/*.jsonl", "--ledger", "I").status == 0
    found = sample(sources, "--sample", "30")
    assert [row["record"] // 100 for row in found["sample"]] == [*range(10)] * 3
    assert len({row["source"] for row in found["sample"]}) == 3
    for row in found["sample"]:
        number = row["record"] + 1000 * "abc".index(row["source"].removesuffix(".jsonl")[-1])
        if number % 5 == 0:
            assert row["outcome"] == "failed"
            assert f"no {number}" in row["error"]
        elif number % 2 == 0:
            assert (row["outcome"], row["reason"]) == ("dropped", "returned nothing")
        else:
            assert (row["outcome"], row["results"][""][0]["id"]) == ("kept", number)
    assert sum(found["records"].values()) == 30
    assert found["statistics"].get("seen", 0) <= 30
    assert found["seconds"]["longest"] >= found["seconds"]["median"] > 0
    assert "ValueError" in found["text"]


def test_sources_without_an_index_are_read_from_their_beginning(sources: Workspace) -> None:
    packed = sources.jsonl("z.jsonl", 1000, first=3000).read_bytes()
    (sources.root / "in/d.jsonl.gz").write_bytes(gzip.compress(packed))
    found = sample(sources, "--sample", "10")
    names = {row["source"].rpartition("/")[2] for row in found["sample"]}
    assert names == {"a.jsonl", "b.jsonl", "c.jsonl", "d.jsonl.gz"}
    assert max(row["record"] for row in found["sample"]) < 4
    assert not list((sources.root / "in").rglob("*.idx"))


@pytest.mark.parametrize("form", ["records", "arrow"])
@pytest.mark.parametrize(("number", "groups"), [(1, 1), (5, 4), (64, 4), (1000, 32), (4000, 40)])
def test_a_sample_of_columns_is_of_few_row_groups(tmp_path: Path, form: RecordForm, number: int, groups: int) -> None:
    table = pa.table({"id": np.arange(4_000)})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=100)
    job = map_job(f"{tmp_path}/*.parquet", form=form)
    sampled = list(sampled_records(job.sources().opened({}), job.pages(), number))
    assert len(sampled) == number
    rows = [one.records if form == "records" else one.records.to_pylist() for one in sampled]
    assert rows == [[{"id": one.number}] for one in sampled]
    assert len({one.number // 100 for one in sampled}) == groups


@pytest.mark.parametrize("indexed", [True, False])
def test_as_many_sources_are_sampled_as_may_be_and_a_large_one_takes_its_room_only(
    tmp_path: Path, indexed: bool
) -> None:
    for number in range(50):
        rows = [{"text": "x" * 100_000}] * 50 if number == 20 else [{"text": "short"}]
        data, index = JsonlFormat().encode(rows)
        (tmp_path / f"{number:02d}.jsonl").write_bytes(data.data)
        if indexed:
            (tmp_path / f"{number:02d}.jsonl.idx").write_bytes(index.data)
    job = map_job(f"{tmp_path}/*.jsonl")
    sampled = list(sampled_records(job.sources().opened({}), job.pages(), 1000, sources=32, most_bytes=32 * 2**20))
    assert [one.error for one in sampled] == [""] * len(sampled)
    taken = Counter(one.source.url for one in sampled)
    assert len(taken) == 32
    assert 8 <= taken.pop(f"{tmp_path}/20.jsonl") <= 12
    assert set(taken.values()) == {1}


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("sizes", "number", "chosen"),
    [
        ([], 3, []),
        ([0, 0], 1, []),
        ([0, 5, 0, 3], 4, [1, 3]),
        ([5, 3], 2, [0, 1]),
        ([100, 1, 1, 1], 2, [0, 2]),
        ([1, 1, 1, 100], 3, [0, 2, 3]),
        ([0, 5, *[0] * 62, 5], 2, [1, 64]),
        ([9] * 6, 3, [1, 3, 5]),
    ],
)
def test_as_many_sources_are_chosen_as_may_be_and_none_that_is_empty(
    sizes: list[int], number: int, chosen: list[int]
) -> None:
    found = _some_of(sizes, number)
    assert found == chosen
    assert len(found) == min(number, sum(map(bool, sizes)))


def test_a_large_source_leaves_each_small_one_a_share_and_keeps_its_own(tmp_path: Path) -> None:
    for name, count in (("a", 1), ("b", 1000), ("c", 1), ("d", 1)):
        data, index = JsonlFormat().encode([{"id": number} for number in range(count)])
        (tmp_path / f"{name}.jsonl").write_bytes(data.data)
        (tmp_path / f"{name}.jsonl.idx").write_bytes(index.data)
    job = map_job(f"{tmp_path}/*")
    taken = Counter(
        one.source.url[-7:-6] for one in sampled_records(job.sources().opened({}), job.pages(), 100, sources=4)
    )
    assert 50 <= taken.pop("b") <= 60  # four of seven equal shares
    assert taken == {"a": 1, "c": 1, "d": 1}


@pytest.mark.parametrize(
    ("number", "room", "found"), [(10, None, 10), (4, None, 4), (10, 30, 3), (2, 30, 2), (10, 29, 2), (10, 1, 1)]
)
def test_of_lines_without_an_index_as_many_come_as_have_room(
    tmp_path: Path, number: int, room: int | None, found: int
) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"".join(b'{"id": %d}\n' % number for number in range(10)))
    job = map_job(f"{tmp_path}/*")
    sampled = list(sampled_records(job.sources().opened({}), job.pages(), number, most_bytes=room))
    assert [one.records for one in sampled] == [[{"id": place}] for place in range(found)]
    (tmp_path / "a.jsonl").write_bytes(b'{"id": 1}\n{"id": 2}\n')
    assert len(list(sampled_records(job.sources().opened({}), job.pages(), number, most_bytes=20))) == 2


@pytest.mark.parametrize(
    ("number", "room", "found"), [(10, None, 10), (4, None, 4), (10, 10_240, 5), (4, 20_480, 4), (10, 1, 1)]
)
def test_of_a_tar_without_an_index_as_many_come_as_have_room(
    tmp_path: Path, number: int, room: int | None, found: int
) -> None:
    samples = [Sample(f"{place}", {"txt": b"%d" % place}) for place in range(10)]
    data, _ = encode_tar(samples, group="key")
    (tmp_path / "a.tar").write_bytes(data[:10_240] + bytes(10_240))
    job = map_job(f"{tmp_path}/*")
    sampled = list(sampled_records(job.sources().opened({}), job.pages(), number, most_bytes=room))
    assert [one.error for one in sampled] == [""] * found
    assert [one.records[0]["txt"] for one in sampled] == [b"%d" % place for place in range(found)]


def test_of_empty_sources_nothing_is_sampled(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").touch()
    job = map_job(f"{tmp_path}/*")
    assert list(sampled_records(job.sources().opened({}), job.pages(), 100, sources=4, most_bytes=10)) == []
    assert list(sampled_records(job.sources().opened({}), job.pages(), 100)) == []


@pytest.mark.slow
def test_tars_are_sampled_with_and_without_an_index(workspace: Workspace) -> None:
    workspace.jsonl("in/a.jsonl", 100)
    made = ("map", "functions:sample", "in/a.jsonl", "--output", "tars", "--to", "tar", "--ledger", "L")
    assert workspace.run(*made).status == 0
    command = ("map", "functions:upper_members", "tars/*.tar", "--output", "o", "--to", "tar")
    for _ in range(2):
        ran = workspace.run(*command, "--sample", "4", "--json", status=0)
        assert ran.json["records"] == {"kept": 4}
        for path in (workspace.root / "tars").glob("*.idx"):
            path.unlink()


def test_records_that_cannot_be_decoded_are_shown(workspace: Workspace) -> None:
    path = workspace.jsonl("in/a.jsonl", 3)
    path.write_bytes(path.read_bytes() + b"{broken\n" + b'{"id": 9, "text": "last"}')
    ran = workspace.run("map", "functions:keep", "in/*", "--output", "o", "--to", "jsonl", "--sample", "9", "--json")
    assert ran.status == 0, ran.err
    assert [row["outcome"] for row in ran.json["sample"]] == ["kept", "kept", "kept", "unreadable", "kept"]
    assert "record 3" in ran.json["sample"][3]["error"]


def test_the_records_before_a_damaged_one_are_shown_and_it_is_named(workspace: Workspace) -> None:
    parts = [record_bytes(record) for record in records(9)]
    parts[4] = parts[4].replace(b"Content-Length", b"Content-Lingth")
    (workspace.root / "a.warc").write_bytes(b"".join(parts))
    (workspace.root / "urls.py").write_text("def url(record):\n    return {'url': record['url']}\n")
    ran = workspace.run("map", "urls:url", "a.warc", "--output", "o", "--to", "jsonl", "--sample", "9", "--json")
    assert ran.status == 0, ran.err
    rows = ran.json["sample"]
    assert [(row["record"], row["outcome"]) for row in rows] == [*((n, "kept") for n in range(4)), (4, "unreadable")]
    assert f"record 4, which starts at byte {sum(map(len, parts[:4]))}: expected headers with" in rows[4]["error"]


@each("sizes", [[], [0, 0], [5], [1, 0, 3], [10**12, 1, 10**12]])
def test_places_are_even_and_within_their_sources(sizes: list[int]) -> None:
    places = list(sample_places(sizes, 7))
    assert sum(len(shares) for _, shares in places) == (7 if sum(sizes) else 0)
    for source, shares in places:
        assert sizes[source] > 0
        assert all(0 <= share <= 1 for share in shares)
        assert shares == sorted(shares)


@pytest.mark.s3
def test_a_sample_of_a_bucket_takes_few_requests(faulty_s3: S3Proxy) -> None:
    fs = client.filesystem("s3://", faulty_s3.options)
    if not fs.exists("sampled"):
        fs.mkdir("sampled")
    data, index = JsonlFormat().encode([{"id": number, "text": "x" * 5_000} for number in range(200)])
    for name in range(20):
        fs.pipe_file(f"sampled/{name:02d}.jsonl", data.data)
        if name < 15:
            fs.pipe_file(f"sampled/{name:02d}.jsonl.idx", index.data)
    faulty_s3.clear()
    job = map_job("s3://sampled/*.jsonl", storage_options=faulty_s3.options)
    found = list(sampled_records(job.sources().opened(job.storage_options), job.pages(), 40))
    assert [sampled.error for sampled in found] == [""] * 40
    assert len({sampled.source.url for sampled in found}) == 20
    # With an index: its size, its offsets, then the records. Without: that the index is missing, then a block.
    listing, indexed, plain = 3, 15, 5
    assert faulty_s3.count() <= listing + indexed * (2 + 2) + plain * 4
    assert faulty_s3.count("PUT") == 0


@pytest.mark.parametrize("choice", ["--only-failed", "--only-rejected"])
def test_a_choice_by_the_ledger_is_refused(sources: Workspace, choice: str) -> None:
    sources.run(*COMMAND, "--sample", "2", choice, "x", status=2, err=f"{choice} reads the ledger")
