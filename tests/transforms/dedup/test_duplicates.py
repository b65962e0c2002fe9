"""Exact duplicates by key, and signatures and n-grams of texts for near duplicates."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ledgerbeam import stats
from ledgerbeam.errors import FunctionError
from ledgerbeam.io.exchange.slices import Partition
from ledgerbeam.io.lines.rows import ByteRows
from ledgerbeam.io.tar.sample import Sample
from ledgerbeam.ledger import FailedTask, NoneTask, Source, Task
from ledgerbeam.ledger.model.accounts import RecordCounts
from ledgerbeam.sources.forms import PlacedPart, PlacedRecords
from ledgerbeam.sources.listed import RemainingRecords
from ledgerbeam.transforms import ProcessTask
from ledgerbeam.transforms.dedup import duplicates as near
from ledgerbeam.transforms.dedup.duplicates import BY_SOURCE, GROUP_SIZE, FindDuplicates, SignRecords
from ledgerbeam.transforms.dedup.minhash import MinHash
from ledgerbeam.transforms.dedup.verify import CollectGrams
from ledgerbeam.transforms.exchange.keys import WITHOUT_KEY, RecordKeys
from ledgerbeam.transforms.mapping.unchanged import KeepPlaced
from tests.pipelines.exchanges.stages import Stages, by_file, listed_marks, require_marks, spoil
from tests.test_statistics import value_of
from tests.transforms.dedup.test_verify import as_bytes

TASK = Task(Source("/in/a.jsonl", 10, "1"), 0, 3, ((0, 1),))


def remaining(values: list[Any], dropped: int = 0, lines: list[bytes] | None = None) -> Task:
    numbers = np.arange(len(values if lines is None else lines), dtype=np.uint64)
    part = PlacedPart("/in/a.jsonl", numbers, None if lines else values, ByteRows.of(lines) if lines else None)
    return TASK.replace(records=RemainingRecords(PlacedRecords([part]), dropped))


def exchange(folder: Path, files: dict[str, list[Any]], score: RecordKeys | None = None) -> Stages:
    keys = RecordKeys("digest", ("k",))
    stages = Stages(folder, keys, Partition(1).cuts(), 10**6, within_keys=False, score=score)
    stages.scatter(by_file(folder / "in", files))
    return stages


def test_without_duplicates_nothing_is_written(tmp_path: Path) -> None:
    stages = exchange(tmp_path, {"a": [{"k": 1}, {"k": 2}]})
    for mark in (True, False):
        (done,) = stages.gather(FindDuplicates(mark))
        assert isinstance(done, NoneTask)


SCORED = {"a": ((1, 3), (2, 2), (1, 3), (4, 0), (5, 1)), "b": ((2, 2), (1, 1), (3, 9), (1, 0), (1, 1), (2, 1), (5, 1))}
ROWS = {name: [{"k": k, "s": s} for k, s in some] for name, some in SCORED.items()}


@pytest.mark.parametrize("scored", [False, True])
def test_the_best_of_a_key_stays_or_else_the_first_and_what_goes_is_counted(tmp_path: Path, scored: bool) -> None:
    stages = exchange(tmp_path, ROWS, RecordKeys("key", ("s",)) if scored else None)
    (task,) = stages.tasks()
    work = FindDuplicates(mark=True)
    assert ProcessTask(work).takes_blocks
    with stats.collecting() as collected:
        done = work(task)
    groups: dict[int, list[tuple[int, str, int]]] = {}
    for name, rows in ROWS.items():
        for number, row in enumerate(rows):
            groups.setdefault(row["k"], []).append((row["s"] if scored else 0, f"{tmp_path}/in/{name}.jsonl", number))
    gone = {(url, n): min(group)[1:] for group in groups.values() for _, url, n in sorted(group)[1:]}
    assert isinstance(done, Task)
    marks = listed_marks(done.records, stages.urls)
    require_marks(marks, marks, gone)
    found = value_of(collected, GROUP_SIZE)
    assert (found["count"], found["min"], found["max"]) == (3, 2, 5)
    assert found["mean"] == pytest.approx(10 / 3)
    by_source = {one["value"]: one["estimate"] for one in value_of(collected, BY_SOURCE)}
    assert by_source == Counter(url for url, _ in gone)


@pytest.mark.parametrize("kind", ["damaged", "gone"])
def test_a_run_file_that_cannot_be_read_fails_the_task(tmp_path: Path, kind: str) -> None:
    stages = exchange(tmp_path, {"a": [{"k": 1}, {"k": 1}]})
    (task,) = stages.tasks()
    path = tmp_path / stages.runs[0].name
    spoil(path, kind)
    done = FindDuplicates(mark=True)(task)
    assert isinstance(done, FailedTask)
    assert (done.task, done.reason) == (task, {"damaged": "RunFileError", "gone": "SourceNotFoundError"}[kind])
    assert str(path) in done.error


@pytest.mark.parametrize("lines", [None, [b'{"a": 1}', b'{"a":2}']])
def test_what_is_left_is_written_and_counted(lines: list[bytes] | None) -> None:
    task = remaining([{"a": 1}, {"a": 2}], 3, lines)
    done = KeepPlaced("json", "jsonl")(task)
    assert isinstance(done, Task)
    assert done.records.counts == RecordCounts(5, 2, {"duplicate": 3}, {}, {"": 2})
    assert list(done.records.datasets) == [""]
    found = done.records.datasets[""]
    assert list(found) == [{"a": 1}, {"a": 2}]
    assert found.data == (b"\n".join(lines or [b'{"a":1}', b'{"a":2}']) + b"\n")
    whole = KeepPlaced("json", "jsonl")(remaining([{"a": 1}], 0))
    assert isinstance(whole, Task)
    assert whole.records.counts == RecordCounts(1, 1, {}, {}, {"": 1})


def test_of_what_is_dropped_as_a_whole_the_counts_stay() -> None:
    task = remaining([], 4)
    assert KeepPlaced("json", "jsonl")(task) == NoneTask(task, counts=RecordCounts(4, 0, {"duplicate": 4}))
    task = remaining([], 0)
    assert KeepPlaced("json", "jsonl")(task) == NoneTask(task, counts=RecordCounts())


def test_records_that_are_no_lines_are_converted() -> None:
    task = remaining([Sample("k", {"txt": b"a"})], 2)
    done = KeepPlaced("json", "jsonl")(task)
    assert isinstance(done, Task), done
    assert done.records.counts == RecordCounts(3, 1, {"duplicate": 2}, {}, {"": 1})
    kept = KeepPlaced("sample", "tar")(task)
    assert isinstance(kept, Task)
    assert list(kept.records.datasets[""]) == [Sample("k", {"txt": b"a"})]
    assert kept.records.counts == done.records.counts


def test_a_record_that_cannot_be_written_fails_the_task() -> None:
    task = remaining([{"a": math.nan}])
    done = KeepPlaced("json", "jsonl")(task)
    assert isinstance(done, FailedTask)
    assert done.task.node == task.node
    broken = remaining([], 0, [b"{"])
    done = KeepPlaced("json", "parquet")(broken)
    assert isinstance(done, FailedTask)
    assert done.task == broken
    assert "/in/a.jsonl" in done.error


MINHASH = MinHash(3, 2, 2)
TEXT = RecordKeys.of_user("text", "key")
SCORE = RecordKeys.of_user("score", "key")
TEXTS: list[Any] = ["a b c", None, "b c d e", "", "...", "a b c", b"a b c", "one", "x " * 30, "é è"]
WITHOUT_WORDS = {1, 3, 4}


def placed(texts: list[Any]) -> PlacedRecords:
    """Return records of two files, of which the second begins at its record 7."""
    records = [{"text": text, "score": n} for n, text in enumerate(texts)]
    first, rest = records[:3], records[3:]
    return PlacedRecords(
        [
            PlacedPart("/a", np.arange(len(first), dtype=np.uint64), first),
            PlacedPart("/b", np.arange(7, 7 + len(rest), dtype=np.uint64), rest),
        ]
    )


def noted(records: PlacedRecords, notes: list[bytes]) -> PlacedRecords:
    """Return the records of two files with a note of each."""
    first, rest = records.parts
    return PlacedRecords([replace(first, notes=notes[: len(first)]), replace(rest, notes=notes[len(first) :])])


def task_of(records: Any) -> Task:
    return Task(Source("/a", 1, "1"), 0, 9).replace(records=records)


def moved_of(done: Any) -> Any:
    """Return the records that go on, of a task in which some do not."""
    assert isinstance(done, Task)
    assert list(done.records.datasets) == [""]
    assert done.records.counts.dropped == {WITHOUT_KEY: len(WITHOUT_WORDS)}
    return done.records.datasets[""]


@pytest.mark.parametrize(("texts", "characters"), [(1, 10**6), (3, 10**6), (4096, 4), (4096, 10**6)])
@pytest.mark.parametrize("scored", [False, True])
def test_each_text_with_words_is_signed_as_it_is_alone(
    monkeypatch: pytest.MonkeyPatch, texts: int, characters: int, scored: bool
) -> None:
    monkeypatch.setattr(near, "_TEXTS", texts)
    monkeypatch.setattr(near, "_CHARACTERS", characters)
    records = placed(TEXTS)
    found = moved_of(SignRecords(TEXT, MINHASH, SCORE if scored else None)(task_of(records)))
    kept = [place for place in range(len(TEXTS)) if place not in WITHOUT_WORDS]
    assert found.numbers.tolist() == [records.places.tolist()[place] for place in kept]
    for lane, of in (("high", found.hashes.high), ("low", found.hashes.low)):
        texts_of = [text.decode() if isinstance(text, bytes) else text for text in map(TEXTS.__getitem__, kept)]
        assert of.tolist() == [getattr(MINHASH.sign([text]).hashes, lane)[0].tolist() for text in texts_of]
    if scored:
        assert found.payloads == [SCORE.order.encode(place) for place in kept]
    else:
        assert found.payloads is None


@pytest.mark.parametrize(
    ("texts", "characters", "expected"),
    [
        (2, 100, [(0, 2), (2, 2), (4, 1)]),
        (100, 4, [(0, 2), (2, 3)]),
        (100, 5, [(0, 3), (3, 2)]),
        (5, 100, [(0, 5)]),
        (100, 100, [(0, 5)]),
    ],
)
def test_so_many_texts_or_letters_are_looked_at_together(
    monkeypatch: pytest.MonkeyPatch, texts: int, characters: int, expected: list[tuple[int, int]]
) -> None:
    monkeypatch.setattr(near, "_TEXTS", texts)
    monkeypatch.setattr(near, "_CHARACTERS", characters)
    found = SignRecords(TEXT, MINHASH).batches(placed(["abc", "de", "f", "g", "h"]))
    assert [(first, len(some)) for first, some in found] == expected


def test_functions_of_texts_and_scores_are_imported_before_the_first_task() -> None:
    bad = RecordKeys("key", function="none_such:function")
    SignRecords(TEXT, MINHASH).set_up()
    SignRecords(TEXT, MINHASH, SCORE).set_up()
    for work in (SignRecords(bad, MINHASH), SignRecords(TEXT, MINHASH, bad)):
        with pytest.raises(FunctionError, match="none_such"):
            work.set_up()


def upper(record: Any) -> str:
    return str(record["text"].upper())


def test_a_function_of_texts_that_raises_fails_its_task_and_names_the_record() -> None:
    text = RecordKeys("key", function=f"{__name__}:upper")
    assert isinstance(SignRecords(text, MINHASH)(task_of(placed(["a", "b"]))), Task)
    done = SignRecords(text, MINHASH)(task_of(placed(["a", "b", "c", "d", 5])))
    assert isinstance(done, FailedTask)
    assert done.reason == "FunctionError"
    assert done.error.startswith("/b: record 8: tests.transforms.dedup.test_duplicates:upper raised AttributeError")


def test_a_line_that_is_no_record_is_named_once() -> None:
    numbers = np.arange(3, dtype=np.uint64)
    for lines, number in (([b"{", b"{}", b"{}"], 0), ([b"{}", b'{"text": "a"}', b"{"], 2)):
        records = PlacedRecords([PlacedPart("/a", numbers, None, ByteRows.of(lines))])
        done = SignRecords(TEXT, MINHASH)(task_of(records))
        assert isinstance(done, FailedTask)
        assert done.error.startswith(f"/a: record {number}, ")
        assert done.error.count("/a") == 1


def test_a_task_without_any_words_is_none() -> None:
    done = SignRecords(TEXT, MINHASH)(task_of(placed([None, "", ".", "!"])))
    assert isinstance(done, NoneTask)
    assert done.counts == RecordCounts(4, 0, {WITHOUT_KEY: 4})


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (7, "/b: record 8: expected text or null, found a int; name a field with text"),
        (b"\xff", "/b: record 8: expected text in UTF-8, found other bytes"),
    ],
)
@pytest.mark.parametrize("kind", [SignRecords, CollectGrams])
def test_what_is_no_text_fails_its_task_and_is_named(kind: type[Any], value: Any, message: str) -> None:
    records = placed(["a", "b", "c", "d", value])
    given = records if kind is SignRecords else noted(records, [b"\0" * 16] * 5)
    done = kind(TEXT, MINHASH)(task_of(given))
    assert isinstance(done, FailedTask)
    assert message in str(done.error)


@pytest.mark.parametrize("scored", [False, True])
def test_candidates_bring_their_n_grams_and_scores(monkeypatch: pytest.MonkeyPatch, scored: bool) -> None:
    monkeypatch.setattr(near, "_TEXTS", 3)
    records = placed(TEXTS)
    notes = [bytes([n]) * 8 + bytes([n + 100]) * 8 for n in range(len(TEXTS))]
    found = moved_of(CollectGrams(TEXT, MINHASH, SCORE if scored else None)(task_of(noted(records, notes))))
    kept = [place for place in range(len(TEXTS)) if place not in WITHOUT_WORDS]
    assert found.numbers.tolist() == [records.places.tolist()[place] for place in kept]
    halves = zip(found.hashes.high.tolist(), found.hashes.low.tolist(), strict=True)
    assert [high.to_bytes(8, "big") + low.to_bytes(8, "big") for high, low in halves] == [notes[n] for n in kept]
    for place, payload in zip(kept, found.payloads, strict=True):
        text = TEXTS[place].decode() if isinstance(TEXTS[place], bytes) else TEXTS[place]
        (grams,) = MINHASH.grams([text]).sets()
        score = SCORE.order.encode(place) if scored else b""
        assert payload == len(score).to_bytes(4, "little") + score + as_bytes(frozenset(grams.tolist()))


def test_no_candidates_make_no_task() -> None:
    assert isinstance(CollectGrams(TEXT, MINHASH)(task_of(PlacedRecords([]))), NoneTask)
