"""Signatures are what their definition says, and as alike as the texts are."""

from __future__ import annotations

import random
import sys
import unicodedata
from collections.abc import Sequence
from hashlib import blake2b

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledgerbeam.transforms.dedup import minhash
from ledgerbeam.transforms.dedup.minhash import SPACELESS, MinHash, hash_words
from tests.cases import each

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=60) | st.text(
    "aB1 _-'éＡﬁ中あกा\u0301٣²\n", max_size=40
)
ALL = (1 << 64) - 1


def plain_words(text: str) -> list[bytes]:
    """Return the words of a text as the docs say, letter by letter."""
    found: list[str] = []
    inside = False
    for letter in unicodedata.normalize("NFKC", text).casefold():
        if unicodedata.category(letter)[0] not in "LMN":
            inside = False
        elif any(first <= ord(letter) <= last for first, last in SPACELESS):
            found.append(letter)
            inside = False
        elif inside:
            found[-1] += letter
        else:
            found.append(letter)
            inside = True
    return [word.encode() for word in found]


def finished(x: int) -> int:
    x ^= x >> 30
    x = x * 0xBF58476D1CE4E5B9 & ALL
    x ^= x >> 27
    x = x * 0x94D049BB133111EB & ALL
    return x ^ x >> 31


def plain_hash(word: bytes) -> int:
    data = word if len(word) <= 64 else blake2b(word, digest_size=32).digest()
    x = len(word)
    for place in range(0, len(data), 8):
        x = (x ^ int.from_bytes(data[place : place + 8], "little")) * 0x9E3779B97F4A7C15 & ALL
        x ^= x >> 32
    return finished(x)


def plain_bands(text: str, bands: int, rows: int, ngram: int) -> list[bytes]:
    """Return the bands of a text as the docs say, number by number; none of a text without words."""
    hashes = [plain_hash(word) for word in plain_words(text)]
    grams = [hashes[place : place + ngram] for place in range(max(1, len(hashes) - ngram + 1))] if hashes else []
    numbers = []
    for gram in grams:
        x = 0
        for word in gram:
            x = x * 0x9E3779B97F4A7C15 & ALL
            x ^= x >> 29
            x = x + word & ALL
        numbers.append(finished(x) >> 32)
    if not numbers:
        return []
    least = []
    for row in range(bands * rows):
        seed = blake2b(b"minhash %d" % row, digest_size=8).digest()
        a, b = int.from_bytes(seed[:4], "little") | 1, int.from_bytes(seed[4:], "little")
        least.append(min((a * x + b) % 2**32 for x in numbers))
    found = []
    for band in range(bands):
        lanes = []
        for factor in (0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9):
            x = band + 1
            for row in least[band * rows : (band + 1) * rows]:
                x = (x ^ row) * factor & ALL
                x ^= x >> 32
            lanes.append(finished(x))
        found.append(lanes[0].to_bytes(8, "big") + lanes[1].to_bytes(8, "big"))
    return found


def signed(texts: Sequence[str], how: MinHash) -> list[list[bytes]]:
    found: list[list[bytes]] = [[] for _ in texts]
    places, hashes = how.sign(texts)
    for place, high, low in zip(places.tolist(), *(lane.tolist() for lane in hashes), strict=True):
        found[place] = [a.to_bytes(8, "big") + b.to_bytes(8, "big") for a, b in zip(high, low, strict=True)]
    return found


@settings(deadline=None, max_examples=300)
@given(st.lists(TEXTS, max_size=5), st.sampled_from([1, 30, 10**6]))
def test_words_are_those_of_the_definition(texts: list[str], at_once: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(minhash, "_AT_ONCE", at_once)
        hashes, counts = hash_words(texts)
    expected = [[plain_hash(word) for word in plain_words(text)] for text in texts]
    assert counts.tolist() == [len(some) for some in expected]
    assert hashes.tolist() == [one for some in expected for one in some]


@each("size", [1, 7, 8, 9, 63, 64, 65, 71, 100_000])
def test_words_of_any_length_are_told_apart(size: int) -> None:
    word = "x" * size
    hashes, counts = hash_words([f"a {word} {word}x", word, f"{word[:-1]}y {word}"])
    assert counts.tolist() == [3, 1, 2]
    names = ["a", word, f"{word}x", word, f"{word[:-1]}y", word]
    assert hashes.tolist() == [plain_hash(name.encode()) for name in names]
    assert len(set(hashes.tolist())) == 4


@each(
    ("text", "expected"),
    [
        ("It's 2 o'clock_now", ["it", "s", "2", "o", "clock", "now"]),
        ("\uff21\uff22\uff23 straße \ufb01t", ["abc", "strasse", "fit"]),
        ("Cafe\u0301 CAFÉ", ["café", "café"]),
        ("हिन्दी में", ["हिन्दी", "में"]),
        ("東京タワー tower", ["東", "京", "タ", "ワ", "ー", "tower"]),
        (" \n--- ", []),
        ("", []),
    ],
)
def test_words(text: str, expected: list[str]) -> None:
    assert hash_words([text])[0].tolist() == [plain_hash(word.encode()) for word in expected]


ALONE = "\u1000\u1780\u1950\u1a20\u3005\u31a0\u31f0\u3400\u4e00\ua9e0\uaa60\uf900\U0001b000\U00020000"
TOGETHER = "\u0f00\u10a0\u1ab0\ua000\uaa00\uaa80\ufb00\U0001b170"
"""The first letters of scripts, and those behind the last ones of others: without spaces, and with them."""


def test_letters_at_the_edges_of_scripts_are_words_or_parts_of_words() -> None:
    pattern = minhash._pattern.__wrapped__()
    edges = {point for first, last in SPACELESS for point in (first - 1, first, last, last + 1)}
    some = set(range(0, sys.maxunicode + 1, 997)) | {*range(64, 128), 0xE01EF, sys.maxunicode}
    for letter in map(chr, sorted(edges | some)):
        expected = [letter] if unicodedata.category(letter)[0] in "LMN" else []
        alone = any(first <= ord(letter) <= last for first, last in SPACELESS)
        found = pattern.findall(f"{letter}{letter}")
        assert found == (2 * expected if alone else [2 * letter] if expected else []), hex(ord(letter))
    alone_twice = "".join(2 * letter for letter in ALONE)
    assert pattern.findall(alone_twice) == list(alone_twice)
    assert pattern.findall(TOGETHER) == [TOGETHER]


@settings(deadline=None, max_examples=100)
@given(
    st.lists(TEXTS, max_size=6), st.integers(1, 3), st.integers(1, 3), st.integers(1, 4), st.sampled_from([1, 7, 10**6])
)
def test_signatures_are_those_of_the_definition(
    texts: list[str], bands: int, rows: int, ngram: int, at_once: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(minhash, "_AT_ONCE", at_once)
        assert signed(texts, MinHash(bands, rows, ngram)) == [plain_bands(text, bands, rows, ngram) for text in texts]


def test_signatures_never_change() -> None:
    (found,) = signed(["The quick brown fox jumps over the lazy dog"], MinHash(2, 8, 5))
    assert [band.hex() for band in found] == GOLDEN, "what has been signed is compared with what will be"


GOLDEN = ["94d1c73ecac6e5f941384424d9b69e30", "6362b68cc05bd0740013eab5502280a1"]


def test_a_text_with_fewer_words_than_an_ngram_is_one_of_all_its_words() -> None:
    how = MinHash(4, 2, 5)
    one, same, other, nothing = signed(["to be", "To  be!", "to be or", "..."], how)
    assert one == same
    assert not set(one) & set(other)
    assert nothing == []


@pytest.mark.parametrize("share", [0.3, 0.6, 0.9])
def test_two_texts_share_as_many_hashes_as_ngrams(share: float) -> None:
    chosen = random.Random(share)
    size, pairs, hashes = 120, 300, 64
    common = round(2 * size * share / (1 + share))
    texts = []
    for _ in range(pairs):
        drawn = [f"w{chosen.getrandbits(40)}" for _ in range(2 * size - common)]
        texts += [" ".join(drawn[:size]), " ".join([*drawn[:common], *drawn[size:]])]
    rows = MinHash(hashes, 1, 1).sign(texts).hashes.high
    equal = rows[::2] == rows[1::2]
    exact = common / (2 * size - common)
    spread = (exact * (1 - exact) / (pairs * hashes)) ** 0.5
    assert abs(equal.mean() - exact) < 5 * spread
    of_pairs = (exact * (1 - exact) / hashes) ** 0.5
    assert 0.8 * of_pairs < equal.mean(axis=1).std() < 1.2 * of_pairs, "the hashes depend on each other"
    of_hashes = (exact * (1 - exact) / pairs) ** 0.5
    assert np.abs(equal.mean(axis=0) - exact).max() < 5 * of_hashes, "one hash is another than the others"
