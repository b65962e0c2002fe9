"""Special tokens inside texts: ordinary text unless requested, for any model of the tokenizer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from ledgerbeam.errors import RecordError
from ledgerbeam.io.datasets.megatron.tokenizer import FileTokenizer, SpecialTokens

pytest.importorskip("tokenizers", reason="needs the package tokenizers: pip install 'ledgerbeam[tokenize]'")

LETTERS = ["<", "|", ">", "/", "s", "e", "o", "d", "a"]
BPE = {"type": "BPE", "vocab": {letter: number for number, letter in enumerate(LETTERS)}, "merges": []}
PIECES = [["<unk>", 0.0], ["</s>", 0.0], *([letter, -3.0] for letter in LETTERS)]
UNIGRAM = {"type": "Unigram", "unk_id": 0, "vocab": PIECES, "byte_fallback": False}
WORDS = {"type": "WordLevel", "vocab": {"<eos>": 0, "<unk>": 1, "a": 2}, "unk_token": "<unk>"}


def added(content: str, number: int, *, special: bool) -> dict[str, Any]:
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {"id": number, "content": content, "special": special, **plain}


def tokenizer(
    model: Mapping[str, Any], tokens: list[Any], special: SpecialTokens = "text", eod: int | None = None, pre: str = ""
) -> FileTokenizer:
    nothing = dict.fromkeys(["truncation", "padding", "normalizer", "post_processor", "decoder"])
    first = {"type": pre} if pre else None
    content = {"version": "1.0", "added_tokens": tokens, "pre_tokenizer": first, "model": model, **nothing}
    return FileTokenizer(json.dumps(content).encode(), "/t.json", special, eod)


def encoded(tokenizer: FileTokenizer, text: str) -> list[int]:
    return [int(token) for token in tokenizer.encode(text)]


def letters(text: str, first: int) -> list[int]:
    return [LETTERS.index(letter) + first for letter in text]


def test_the_name_of_a_special_token_is_ordinary_text_unless_it_is_kept() -> None:
    special = [added("<eod>", 9, special=True)]
    assert encoded(tokenizer(BPE, special), "a<eod>a") == letters("a<eod>a", 0)
    assert encoded(tokenizer(BPE, special, "token"), "a<eod>a") == [8, 9, 8]


def test_an_end_of_documents_that_is_not_marked_as_special_is_ordinary_text_as_well() -> None:
    plain = [added("<eod>", 9, special=False)]
    assert encoded(tokenizer(BPE, plain), "a<eod>") == [8, 9]  # an added token, and no end of documents
    assert encoded(tokenizer(BPE, plain, eod=9), "a<eod>") == letters("a<eod>", 0)
    assert encoded(tokenizer(BPE, plain, "token", eod=9), "a<eod>") == [8, 9]


def test_a_special_token_that_a_model_makes_of_ordinary_text_is_an_error() -> None:
    unigram = tokenizer(UNIGRAM, [added("</s>", 1, special=True)])
    assert encoded(unigram, "a</a>") == letters("a</a>", 2)
    with pytest.raises(RecordError, match=r"special token '</s>'.*--special-tokens token"):
        unigram.encode("a</s>a")
    assert encoded(tokenizer(UNIGRAM, [added("</s>", 1, special=True)], "token"), "a</s>") == [10, 1]


def test_a_word_that_ends_documents_is_an_error_inside_a_text() -> None:
    words = tokenizer(WORDS, [], eod=0, pre="WhitespaceSplit")
    assert encoded(words, "a b") == [2, 1]
    with pytest.raises(RecordError, match="special token '<eos>'"):
        words.encode("a <eos>")
    assert encoded(tokenizer(WORDS, [], "token", eod=0, pre="WhitespaceSplit"), "a <eos>") == [2, 0]


def test_the_token_of_unknown_text_is_no_error_though_it_is_special() -> None:
    special = [added("<unk>", 1, special=True)]
    assert encoded(tokenizer(WORDS, special, pre="WhitespaceSplit"), "a b") == [2, 1]
    special = [added("<unk>", 0, special=True)]
    assert encoded(tokenizer(UNIGRAM, special), "ab") == [10, 0]
