"""Rejected records: found in their source again, and the file that they are kept in; routes in folders of their own."""

from __future__ import annotations

import base64
import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import pytest

from ledgerbeam._base.names import DROPPED, REJECTS, check_route
from ledgerbeam.errors import FunctionError, RejectLimitError, UnsupportedShapeError, UsageError
from ledgerbeam.io.formats.registry import format_named
from ledgerbeam.io.index.file import IndexFile
from ledgerbeam.io.index.reader import NO_BYTES, RawRecord
from ledgerbeam.io.listing.nested_folders import RouteFolders, note_nested
from ledgerbeam.ledger import FailedTask, NoneTask, Source, Task
from ledgerbeam.ledger.model.accounts import RecordCounts, Statistic
from ledgerbeam.ledger.model.job import Job
from ledgerbeam.ledger.opening import open_local_store
from ledgerbeam.sources import FileSources, TaskLimits
from ledgerbeam.sources.forms import RecordBlocks
from ledgerbeam.transforms.chain.base import LedgerHandle
from ledgerbeam.transforms.chain.commit import _Commit, _leaf
from ledgerbeam.transforms.chain.read import _Read
from ledgerbeam.transforms.chain.write import WrittenTask, _Write
from ledgerbeam.transforms.mapping.outcomes import (
    MOST_RAW,
    RejectedRecord,
    Rejection,
    TaskResults,
    encode_rejects,
    rejected_records,
)
from tests.cases import each
from tests.sources.data import put

BASE = "/data/in/"
SOURCE = Source(f"{BASE}a.jsonl", 10, "1")


def rejected(raw: bytes = b"x", **fields: Any) -> RejectedRecord:
    rejection = Rejection(
        0, fields.pop("reason", "KeyError"), fields.pop("error", "'text'"), fields.pop("at", "f.py:3")
    )
    return RejectedRecord(
        RawRecord(**{"url": SOURCE.url, "record": 7, "start": 30, "stop": 31, "data": raw, **fields}), rejection
    )


def rows(*records: RejectedRecord) -> list[dict[str, Any]]:
    file = encode_rejects(records)
    assert file.records == len(records)
    return [json.loads(line) for line in file.data.splitlines()]


def test_a_row_has_place_reason_and_bytes() -> None:
    (row,) = rows(rejected('{"a": "ä"'.encode()))
    assert row == {
        "source": SOURCE.url,
        "record": 7,
        "bytes": [30, 31],
        "reason": "KeyError",
        "error": "'text'",
        "at": "f.py:3",
        "raw": '{"a": "ä"',
    }
    assert list(row) == ["source", "record", "bytes", "reason", "error", "at", "raw"]


def test_the_first_record_of_a_file_has_its_bytes_and_a_row_of_columns_has_none() -> None:
    first, row = rows(rejected(b"1", record=0, start=0, stop=1), rejected(b"1", start=NO_BYTES, stop=NO_BYTES))
    assert (first["bytes"], row["bytes"]) == ([0, 1], None)


def test_bytes_that_are_no_text_are_kept_as_they_are() -> None:
    (row,) = rows(rejected(b"\xff\x00"))
    assert base64.b64decode(row["raw_base64"]) == b"\xff\x00"
    assert "raw" not in row
    assert "raw_truncated" not in row


def test_each_record_is_a_line() -> None:
    file = encode_rejects([rejected(), rejected(start=NO_BYTES, stop=NO_BYTES)])
    one, other = file.data.decode().splitlines(keepends=True)
    assert one.endswith("}\n")
    assert other.endswith("}\n")
    assert json.loads(one)["bytes"] == [30, 31]
    assert json.loads(other)["bytes"] is None, "it has no bytes of its own in its source"
    assert encode_rejects([]).data == b""


def test_more_bytes_than_a_character_may_lack_are_no_text() -> None:
    (row,) = rows(rejected(b"a" * (MOST_RAW - 4) + b"\xff" * 4 + b"more"))
    assert base64.b64decode(row["raw_base64"]) == b"a" * (MOST_RAW - 4) + b"\xff" * 4
    assert row["raw_truncated"] is True


@pytest.mark.parametrize("more", [0, 1, 100])
def test_long_records_are_cut(more: int) -> None:
    (row,) = rows(rejected(b"a" * (65_536 + more)))
    assert len(row["raw"]) == MOST_RAW == 65_536
    assert row.get("raw_truncated", False) is (more > 0)


@each("character", ["ä", "€", "😀"])
@each("before", [0, 1, 2, 3])
def test_a_text_is_not_cut_in_a_character(character: str, before: int) -> None:
    """And one that only looks so, since it ends in half of one, is no text."""
    text = "a" * before + character * MOST_RAW
    (row,) = rows(rejected(text.encode()))
    assert text.startswith(row["raw"])
    assert MOST_RAW - 4 < len(row["raw"].encode()) <= MOST_RAW
    (row,) = rows(rejected(character.encode()[:-1]))
    assert "raw_base64" in row


def test_secrets_and_names_that_are_no_text_do_no_harm() -> None:
    (row,) = rows(rejected(url="/data/\udcff.jsonl", error="\ud800", reason="a\nb"))
    assert (row["source"], row["error"], row["reason"]) == ("/data/\\udcff.jsonl", "\\ud800", "a\nb")
    (row,) = rows(rejected(url="https://user:hunter2@host/a.jsonl"))
    assert "hunter2" not in str(row)


def read_task(path: Path, data: bytes, **task: int) -> Task:
    source = put(path, data)
    cut = FileSources().kind_of(source).cut(source, TaskLimits(None, 100))
    start, stop = cut.spans[0]
    (found,) = _Read(FileSources(), None, "reject").process(
        Task(cut.source, task.get("start", start), task.get("stop", stop))
    )
    assert isinstance(found, Task)
    return found


def test_places_are_exact_also_behind_blank_lines(tmp_path: Path) -> None:
    task = read_task(tmp_path / "a.jsonl", b'{"id": 0}\n\n{"id": 1}\n{"id"\n')
    rejections = [Rejection(2, "not decoded"), Rejection(1, "too short")]
    found = rejected_records(task, rejections)
    assert [(*one.raw[1:], one.rejection) for one in found] == [
        (3, 21, 26, b'{"id"', rejections[0]),
        (2, 11, 20, b'{"id": 1}', rejections[1]),
    ]
    assert rejected_records(task, []) == []


def test_records_that_are_decoded_in_blocks_have_the_same_places(tmp_path: Path) -> None:
    task = read_task(tmp_path / "a.jsonl", b'{"id": 0}\n\n{"id": 1}\n{"id": 2}\n')
    (blocks,) = _Read(FileSources(), None, in_blocks=True).process(task)
    assert isinstance(blocks, Task)
    assert isinstance(blocks.records, RecordBlocks)
    rejections = [Rejection(1, "x")]
    assert rejected_records(blocks, rejections) == rejected_records(task, rejections)


def test_records_that_are_not_those_that_were_read_have_no_place(tmp_path: Path) -> None:
    task = read_task(tmp_path / "a.jsonl", b"1\n2\n")
    with pytest.raises(UnsupportedShapeError, match="expected the 2 records that were read, found 1"):
        rejected_records(task.replace(records=[1]), [Rejection(0, "x")])
    (child,) = task.fan_out([[1, 2]])
    with pytest.raises(UnsupportedShapeError, match="reject records in the first function after ReadTasks"):
        rejected_records(child, [Rejection(0, "x")])


def write(tmp_path: Path, results: Any, to: str = "jsonl", base: str | None = BASE, **task: Any) -> Any:
    element = Task(task.pop("source", SOURCE), 3, 5, ((1, 4),), results)
    (found,) = _Write(str(tmp_path / "out"), format_named(to), base, {}, None).process(element)
    return found


def results(datasets: dict[str, Any], *rejects: RejectedRecord, **counts: Any) -> TaskResults:
    written = {route: len(records) for route, records in datasets.items()}
    kept = sum(written.values())
    counted = RecordCounts(kept + len(rejects), kept, {}, {"KeyError": len(rejects)} if rejects else {}, written)
    return TaskResults(datasets, counted, rejects, {"words": Statistic("count", b"1")})


def test_routes_and_rejects_are_outputs_of_one_task(tmp_path: Path) -> None:
    given = results({"": [{"a": 1}], "en": [{"a": 2}, {"a": 3}], "de": [{"a": 4}]}, rejected(), rejected())
    found = write(tmp_path, given)
    assert isinstance(found, WrittenTask)
    stem = "a.jsonl-0000000003"
    assert [(output.name, output.route, output.records) for output in found.outputs] == [
        (f"{stem}.jsonl", "", 1),
        (f"{stem}.jsonl.idx", "", 0),
        (f"de/{stem}.jsonl", "de", 1),
        (f"de/{stem}.jsonl.idx", "de", 0),
        (f"en/{stem}.jsonl", "en", 2),
        (f"en/{stem}.jsonl.idx", "en", 0),
        (f"_rejects/{stem}.jsonl", REJECTS, 2),
    ]
    for output in found.outputs:
        assert os.path.getsize(tmp_path / "out" / output.name) == output.size
    assert IndexFile(str(tmp_path / "out" / f"en/{stem}.jsonl.idx")).count == 2
    data = sum(output.size for output in found.outputs if output.name.endswith(".jsonl") and output.route != REJECTS)
    assert (found.records, found.size) == (4, data)
    leaf = _leaf(found)
    assert (leaf.counts, leaf.statistics) == (given.counts, given.statistics)
    assert (leaf.records, leaf.kind) == (4, "published")


def test_a_task_of_rejects_alone_is_published_without_records(tmp_path: Path) -> None:
    found = write(tmp_path, results({}, rejected()), to="tar")
    assert [(output.name, output.records) for output in found.outputs] == [("_rejects/a.jsonl-0000000003.jsonl", 1)]
    assert (found.records, found.size, _leaf(found).kind) == (0, 0, "published")


def test_a_plain_list_is_one_dataset_that_nobody_counted(tmp_path: Path) -> None:
    found = write(tmp_path, [{"a": 1}])
    assert [(output.name, output.route) for output in found.outputs] == [
        ("a.jsonl-0000000003.jsonl", ""),
        ("a.jsonl-0000000003.jsonl.idx", ""),
    ]
    assert (found.counts, dict(found.statistics), _leaf(found).counts) == (None, {}, None)


def test_a_filtered_task_keeps_its_counts() -> None:
    counts = RecordCounts(2, 0, {"too short": 2})
    leaf = _leaf(NoneTask(Task(SOURCE, 0, 2, ((0, 1),)), "", counts, {"words": Statistic("count", b"1")}))
    assert (leaf.kind, leaf.counts, dict(leaf.statistics)) == ("filtered", counts, {"words": Statistic("count", b"1")})


def test_a_record_that_cannot_be_written_fails_the_task(tmp_path: Path) -> None:
    found = write(tmp_path, results({"": [{"a": 1}], "en": [{"a": {1}}]}))
    assert isinstance(found, FailedTask)
    assert not (tmp_path / "out").exists()


def test_the_long_name_of_a_source_leaves_room_for_a_route(tmp_path: Path) -> None:
    route = "r" * 63
    source = Source(BASE + "/".join("d" * 200 for _ in range(17)) + "/" + "a" * 200 + ".jsonl", 1, "1")
    found = write(tmp_path, results({"": [1], route: [1]}, rejected()), source=source)
    stems = {output.name.removeprefix(f"{output.route}/").partition("-0000000003")[0] for output in found.outputs}
    assert len(stems) == 1
    assert all(os.path.exists(tmp_path / "out" / output.name) for output in found.outputs)


def test_a_name_that_no_folder_of_a_route_has_is_refused(tmp_path: Path) -> None:
    folders = RouteFolders(str(tmp_path), None, {})
    for route in ("", "_rejects", "en", "zh-Hant", "été", "a b", "r" * 63, "a.b", "a_"):
        folders.require_free(route)
    for route in ("_a", ".a", "..", "a/b", "a\0", "a\n", "%s3", "~", "r" * 64, "\\", "\ud800"):
        with pytest.raises(FunctionError, match="expected the name of a route"):
            folders.require_free(route)


def test_a_route_with_the_name_of_a_folder_of_sources_is_refused(tmp_path: Path) -> None:
    base = f"{tmp_path}/in/"
    put(tmp_path / "in" / "en" / "b.jsonl", b"1\n")
    folders = RouteFolders(f"{tmp_path}/out", base, {})
    with pytest.raises(UsageError, match=r"route 'en'.*in/en/b.jsonl; rename the route"):
        folders.require_free("en")
    folders.require_free("de")
    put(tmp_path / "in" / "de" / "b.jsonl", b"1\n")
    folders.require_free("de")  # a process asks once
    put(tmp_path / "in" / "fr" / "b.jsonl-0000000000.jsonl", b"1\n")
    with pytest.raises(UsageError, match=r"route 'fr'.*in/fr/b.jsonl-0000000000.jsonl"):
        folders.require_free("fr")


def test_outputs_of_a_route_and_of_sources_with_the_name_of_its_folder_are_told_apart(tmp_path: Path) -> None:
    folders = RouteFolders(f"{tmp_path}/out", f"{tmp_path}/in/", {})
    folders.require_free("en", "a.jsonl-0000000000.jsonl")
    folders.require_free("en", "_rejects/a.jsonl-0000000000.jsonl")
    with pytest.raises(UsageError, match=r"route 'en': .* see .*out/en/a\.jsonl-0000000000\.jsonl"):
        folders.require_free("en", "en/a.jsonl-0000000000.jsonl")
    with pytest.raises(UsageError, match="the folder _rejects is reserved"):
        folders.require_free("", "_rejects/a.jsonl-0000000000.jsonl")


def test_without_a_folder_of_sources_none_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path / "Noneen" / "a.jsonl", b"1\n")
    monkeypatch.chdir(tmp_path)
    RouteFolders(f"{tmp_path}/out", None, {}).require_free("en")


def test_where_outputs_lie_beside_the_sources_those_of_the_route_are_no_sources(tmp_path: Path) -> None:
    put(tmp_path / "in" / "en" / "b.jsonl-0000000000.jsonl", b"1\n")
    put(tmp_path / "in" / "en" / "b.jsonl-0000000000.jsonl.idx", b"1\n")
    RouteFolders(f"{tmp_path}/in", f"{tmp_path}/in/", {}).require_free("en")
    put(tmp_path / "in" / "en" / "c.jsonl", b"1\n")
    with pytest.raises(UsageError, match=r"in/en/c.jsonl"):
        RouteFolders(f"{tmp_path}/in", f"{tmp_path}/in/", {}).require_free("en")


def test_names_that_hold_whole_paths_leave_no_room_for_a_route_of_their_first_part(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="route 'file'"):
        write(tmp_path, results({"": [1], "file": [1]}), base=None)
    assert not (tmp_path / "out").exists()


def test_a_folder_of_another_job_is_no_route(tmp_path: Path) -> None:
    put(tmp_path / "out" / "en" / "_ledgerbeam" / "ab.json", b"{}")
    note_nested(f"{tmp_path}/out", "cd")
    with pytest.raises(UsageError, match=r"out/en is the output folder of another job"):
        write(tmp_path, results({"en": [1]}))
    with pytest.raises(UsageError, match=r"out/en is the output folder of another job"):
        write(tmp_path, [1], source=Source(f"{BASE}en/a.jsonl", 1, "1"))


def test_dropped_records_are_outputs_of_their_task(tmp_path: Path) -> None:
    kept = RejectedRecord(RawRecord(SOURCE.url, 7, 30, 31, b"x"), Rejection(0, "short", function="clean"))
    found = write(tmp_path, dataclasses.replace(results({"": [{"a": 1}]}, rejected()), dropped=[kept]))
    names = {output.route: output.name for output in found.outputs if output.records}
    assert names == {route: f"{route}/a.jsonl-0000000003.jsonl".lstrip("/") for route in ("", REJECTS, DROPPED)}
    row = json.loads((tmp_path / "out" / names[DROPPED]).read_bytes())
    assert row == {
        "source": SOURCE.url,
        "record": 7,
        "bytes": [30, 31],
        "function": "clean",
        "reason": "short",
        "raw": "x",
    }
    sizes = [output.size for output in found.outputs if output.records and output.route == ""]
    assert (found.records, found.size) == (1, sum(sizes))


@pytest.mark.parametrize("folder", [REJECTS, DROPPED])
def test_outputs_are_not_written_among_records_that_are_not_in_a_dataset(tmp_path: Path, folder: str) -> None:
    with pytest.raises(UsageError, match=f"the folder {folder} is reserved"):
        write(tmp_path, [1], source=Source(f"{BASE}{folder}/a.jsonl", 1, "1"))
    RouteFolders(str(tmp_path), None, {}).require_free(folder)
    with pytest.raises(ValueError, match="expected the name of a route"):
        check_route(folder)


def test_a_row_of_several_functions_names_the_function() -> None:
    named = Rejection(0, "KeyError", function="clean")
    rejects = [rejected()._replace(rejection=one) for one in (named, Rejection(0, "not decoded", function=None))]
    assert [row["function"] for row in rows(*rejects)] == ["clean", None]
    assert "function" not in rows(rejected())[0]


@pytest.mark.parametrize("sources", [1, 3])
def test_where_nobody_looks_a_worker_stops_at_its_own_share(tmp_path: Path, sources: int) -> None:
    """A task that is repeated counts once, and every task of a source; what was done is recorded."""
    store = open_local_store(str(tmp_path / "ledger"), create=True)
    store.open_job(Job("test", {}))
    found = [Source(f"/data/{number}.jsonl", 1, "1") for number in range(sources)]
    store.register(found)
    commit = _Commit(LedgerHandle(str(tmp_path / "ledger")), 4, has_downstream=False)
    done = []
    for number in range(3):
        tasks = 3 // sources
        task = Task(found[number // tasks], 2 * number, 2 * number + 2, ((number % tasks, tasks),))
        counts = RecordCounts(2, 0, {}, {"KeyError": 2})
        done.append(WrittenTask(task, (), 0, 0, 0.0, counts))
    for element in (done[0], done[0], done[1], done[0]):
        commit.process(element)
    with pytest.raises(RejectLimitError, match="expected at most 4 rejected records, found 6"):
        commit.process(done[2])
    assert store.status()["records"]["rejected"] == {"KeyError": 6}
