"""Records that share an n-gram with an evaluation set: those that a search word by word finds, and no others."""

from __future__ import annotations

import json
import re
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledgerbeam import UsageError
from ledgerbeam.transforms.dedup.decontaminate import EvaluationSets

WORDS = ["a", "b", "c", "Ab", "é", "日", "x1"]
texts = st.lists(st.sampled_from([*WORDS, ", ", "\n", " - "]), max_size=30).map(" ".join)


def words_of(text: str) -> list[str]:
    folded = unicodedata.normalize("NFKC", text).casefold()
    return re.findall(r"日|[^\W_日]+", folded)


def grams_of(text: str, ngram: int) -> list[tuple[str, ...]]:
    words = words_of(text)
    return [tuple(words[start : start + ngram]) for start in range(len(words) - ngram + 1)]


def written(folder: Path, name: str, found: list[str]) -> str:
    path = folder / name
    path.write_text("".join(json.dumps({"question": text, "choices": [text]}) + "\n" for text in found))
    return str(path)


@settings(deadline=None)
@given(
    st.lists(st.lists(texts, min_size=1, max_size=4), min_size=1, max_size=3),
    st.lists(texts, max_size=9),
    st.integers(1, 4),
)
def test_a_match_is_what_a_search_word_by_word_finds(sets: list[list[str]], records: list[str], ngram: int) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        urls = [written(Path(folder), f"{number}.jsonl", found) for number, found in enumerate(sets)]
        grams = [{gram for text in found for gram in grams_of(text, ngram)} for found in sets]
        if not all(grams):
            with pytest.raises(UsageError, match="expected texts of at least"):
                EvaluationSets(urls, ngram)
            return
        matches = EvaluationSets(urls, ngram).matches(records)
    for record, match in zip(records, matches, strict=True):
        own = grams_of(record, ngram)
        common = [gram for gram in own if any(gram in of_set for of_set in grams)]
        if not common:
            assert match is None
            continue
        assert match is not None
        name, text, share = match
        assert tuple(text.split()) == common[0]
        assert common[0] in grams[int(name.removesuffix(".jsonl"))]
        assert share == pytest.approx(len(common) / len(own))
