"""`map --sample N`: records from all sources, in few requests, and nothing is written."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ledgerbeam.io import Sample
from ledgerbeam.io.lines.formats import JsonlFormat
from ledgerbeam.io.tar.writer import encode_tar
from ledgerbeam.io.warc import record_bytes
from ledgerbeam.pipelines.jobs.one_stage import MapJob
from ledgerbeam.pipelines.jobs.sources import ListedFiles
from ledgerbeam.pipelines.preview.sample import _some_of, sample_places, sampled_records
from ledgerbeam.sources.forms import RecordForm
from tests.cases import each
from tests.io.warc.content import records
from tests.pipelines.conftest import Workspace
from tests.pipelines.jobs.test_dry_run import tree
from tests.servers.s3_proxy import S3Proxy

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
    assert {row["source"].rpartition("/")[2] for row in found["sample"]} == {
        "a.jsonl",
        "b.jsonl",
        "c.jsonl",
        "d.jsonl.gz",
    }
    assert max(row["record"] for row in found["sample"]) < 4
    assert not list((sources.root / "in").rglob("*.idx"))


@pytest.mark.parametrize("form", ["records", "arrow"])
@pytest.mark.parametrize(("number", "groups"), [(1, 1), (5, 4), (64, 4), (1000, 32), (4000, 40)])
def test_a_sample_of_columns_is_of_few_row_groups(tmp_path: Path, form: RecordForm, number: int, groups: int) -> None:
    table = pa.table({"id": np.arange(4_000)})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=100)
    job = MapJob(
        files=ListedFiles(patterns=(f"{tmp_path}/*.parquet",)),
        output="o",
        to="jsonl",
        function="json:dumps",
        made_of={"module": {}},
        form=form,
    )
    sampled = list(sampled_records(job, job.pages(), number))
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
    job = MapJob(
        files=ListedFiles(patterns=(f"{tmp_path}/*.jsonl",)),
        output="o",
        to="jsonl",
        function="json:dumps",
        made_of={"module": {}},
    )
    sampled = list(sampled_records(job, job.pages(), 1000, sources=32, most_bytes=32 * 2**20))
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


def map_job(folder: Path) -> MapJob:
    files = ListedFiles(patterns=(f"{folder}/*",))
    return MapJob(files=files, output="o", to="jsonl", function="json:dumps", made_of={"module": {}})


def test_a_large_source_leaves_each_small_one_a_share_and_keeps_its_own(tmp_path: Path) -> None:
    for name, count in (("a", 1), ("b", 1000), ("c", 1), ("d", 1)):
        data, index = JsonlFormat().encode([{"id": number} for number in range(count)])
        (tmp_path / f"{name}.jsonl").write_bytes(data.data)
        (tmp_path / f"{name}.jsonl.idx").write_bytes(index.data)
    job = map_job(tmp_path)
    taken = Counter(one.source.url[-7:-6] for one in sampled_records(job, job.pages(), 100, sources=4))
    assert 50 <= taken.pop("b") <= 60  # four of seven equal shares
    assert taken == {"a": 1, "c": 1, "d": 1}


@pytest.mark.parametrize(
    ("number", "room", "found"), [(10, None, 10), (4, None, 4), (10, 30, 3), (2, 30, 2), (10, 29, 2), (10, 1, 1)]
)
def test_of_lines_without_an_index_as_many_come_as_have_room(
    tmp_path: Path, number: int, room: int | None, found: int
) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"".join(b'{"id": %d}\n' % number for number in range(10)))
    job = map_job(tmp_path)
    sampled = list(sampled_records(job, job.pages(), number, most_bytes=room))
    assert [one.records for one in sampled] == [[{"id": place}] for place in range(found)]
    (tmp_path / "a.jsonl").write_bytes(b'{"id": 1}\n{"id": 2}\n')
    assert len(list(sampled_records(job, job.pages(), number, most_bytes=20))) == 2


@pytest.mark.parametrize(
    ("number", "room", "found"), [(10, None, 10), (4, None, 4), (10, 10_240, 5), (4, 20_480, 4), (10, 1, 1)]
)
def test_of_a_tar_without_an_index_as_many_come_as_have_room(
    tmp_path: Path, number: int, room: int | None, found: int
) -> None:
    samples = [Sample(f"{place}", {"txt": b"%d" % place}) for place in range(10)]
    data, _ = encode_tar(samples, group="key")
    (tmp_path / "a.tar").write_bytes(data[:10_240] + bytes(10_240))
    job = map_job(tmp_path)
    sampled = list(sampled_records(job, job.pages(), number, most_bytes=room))
    assert [one.error for one in sampled] == [""] * found
    assert [one.records[0]["txt"] for one in sampled] == [b"%d" % place for place in range(found)]


def test_of_empty_sources_nothing_is_sampled(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").touch()
    job = map_job(tmp_path)
    assert list(sampled_records(job, job.pages(), 100, sources=4, most_bytes=10)) == []
    assert list(sampled_records(job, job.pages(), 100)) == []


@pytest.mark.slow
def test_tars_are_sampled_with_and_without_an_index(workspace: Workspace) -> None:
    workspace.jsonl("in/a.jsonl", 100)
    made = ("map", "functions:sample", "in/a.jsonl", "--output", "tars", "--to", "tar", "--ledger", "L")
    assert workspace.run(*made).status == 0
    command = (
        "map",
        "functions:upper_members",
        "tars/*.tar",
        "--output",
        "o",
        "--to",
        "tar",
        "--sample",
        "4",
        "--json",
    )
    for _ in range(2):
        ran = workspace.run(*command, status=0)
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
    assert [(row["record"], row["outcome"]) for row in rows] == [
        *((number, "kept") for number in range(4)),
        (4, "unreadable"),
    ]
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
    from ledgerbeam.io.storage import client

    fs = client.filesystem("s3://", faulty_s3.options)
    if not fs.exists("sampled"):
        fs.mkdir("sampled")
    for name in range(20):
        lines = [json.dumps({"id": number, "text": "x" * 5_000}).encode() + b"\n" for number in range(200)]
        (data, index) = JsonlFormat().encode([json.loads(line) for line in lines])
        fs.pipe_file(f"sampled/{name:02d}.jsonl", data.data)
        if name < 15:
            fs.pipe_file(f"sampled/{name:02d}.jsonl.idx", index.data)
    faulty_s3.clear()
    files = ListedFiles(patterns=("s3://sampled/*.jsonl",))
    job = MapJob(
        files=files,
        function="m:f",
        made_of={"module": {}},
        output="s3://out/o",
        to="jsonl",
        storage_options=faulty_s3.options,
    )
    found = list(sampled_records(job, job.pages(), 40))
    assert [sampled.error for sampled in found] == [""] * 40
    assert len({sampled.source.url for sampled in found}) == 20
    # With an index: its size, its offsets, then the records. Without: that the index is missing, then a block.
    listing, indexed, plain = 3, 15, 5
    assert faulty_s3.count() <= listing + indexed * (2 + 2) + plain * 4
    assert faulty_s3.count("PUT") == 0


@pytest.mark.parametrize("choice", ["--only-failed", "--only-rejected"])
def test_a_choice_by_the_ledger_is_refused(sources: Workspace, choice: str) -> None:
    sources.run(*COMMAND, "--sample", "2", choice, "x", status=2, err=f"leave {choice} out")
