"""Texts are signed and their n-grams collected record by record, however many are looked at together."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ledgerbeam.errors import FunctionError
from ledgerbeam.io.lines.jsonl import HeldLines
from ledgerbeam.ledger import FailedTask, NoneTask, Source, Task
from ledgerbeam.ledger.model.accounts import RecordCounts
from ledgerbeam.sources.forms import PlacedPart, PlacedRecords
from ledgerbeam.sources.listed import ChosenRecords
from ledgerbeam.transforms.dedup import duplicates as near
from ledgerbeam.transforms.dedup.duplicates import SignRecords
from ledgerbeam.transforms.dedup.minhash import MinHash
from ledgerbeam.transforms.dedup.verify import CollectGrams
from ledgerbeam.transforms.exchange.keys import WITHOUT_KEY, RecordKeys
from tests.transforms.dedup.test_verify import as_bytes

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
    assert list(found) == found.numbers.tolist() == [records.places.tolist()[place] for place in kept]
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


def test_letters_are_counted_anew_for_texts_that_are_looked_at_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(near, "_CHARACTERS", 4)
    found = SignRecords(TEXT, MINHASH).batches(placed(["abc", "de", "abc", "d", "ef", "x"]))
    assert [(first, some) for first, some in found] == [(0, ["abc", "de"]), (2, ["abc", "d", "ef"]), (5, ["x"])]


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
    assert done.error.startswith("/b: record 8: tests.transforms.dedup.test_near:upper raised AttributeError")


def test_a_line_that_is_no_record_is_named_once() -> None:
    numbers = np.arange(3, dtype=np.uint64)
    for lines, number in (([b"{", b"{}", b"{}"], 0), ([b"{}", b'{"text": "a"}', b"{"], 2)):
        records = PlacedRecords([PlacedPart("/a", numbers, None, HeldLines.joined(lines))])
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
        (7, "/b: record 8: expected text or null for near duplicates, found a int; name a field with text"),
        (b"\xff", "/b: record 8: expected text in UTF-8, found other bytes"),
    ],
)
@pytest.mark.parametrize("kind", [SignRecords, CollectGrams])
def test_what_is_no_text_fails_its_task_and_is_named(kind: type[Any], value: Any, message: str) -> None:
    records = placed(["a", "b", "c", "d", value])
    given = records if kind is SignRecords else ChosenRecords(records, [b"\0" * 16] * 5)
    done = kind(TEXT, MINHASH)(task_of(given))
    assert isinstance(done, FailedTask)
    assert message in str(done.error)


@pytest.mark.parametrize("scored", [False, True])
def test_candidates_bring_their_n_grams_and_scores(monkeypatch: pytest.MonkeyPatch, scored: bool) -> None:
    monkeypatch.setattr(near, "_TEXTS", 3)
    records = placed(TEXTS)
    notes = [bytes([n]) * 8 + bytes([n + 100]) * 8 for n in range(len(TEXTS))]
    found = moved_of(CollectGrams(TEXT, MINHASH, SCORE if scored else None)(task_of(ChosenRecords(records, notes))))
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
    assert isinstance(CollectGrams(TEXT, MINHASH)(task_of(ChosenRecords(PlacedRecords([]), []))), NoneTask)
