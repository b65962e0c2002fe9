"""What is connected is what plain Python connects, whichever sets are compared with which."""

from __future__ import annotations

import random
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from ledgerbeam.errors import RecordError
from ledgerbeam.io.exchange.run_file import encode_run
from ledgerbeam.io.exchange.slices import EARLIER, RunFile, RunLayout, SliceTables, SomeUrls
from ledgerbeam.sources.buckets import BucketSources, GatheredRecords
from ledgerbeam.transforms.dedup import verify
from ledgerbeam.transforms.dedup.minhash import MinHash
from ledgerbeam.transforms.dedup.verify import RECORD_BYTES, VerifiedTrees, connected
from tests.cases import each
from tests.pipelines.exchanges.stages import bucket_tasks
from tests.transforms.dedup.test_minhash import TEXTS, plain_words

Sets = list[frozenset[int]]


def as_bytes(grams: frozenset[int]) -> bytes:
    return np.array(sorted(grams), "<u8").tobytes()


def partition(labels: list[int]) -> set[frozenset[int]]:
    """Return which places have one label."""
    return {frozenset(place for place, other in enumerate(labels) if other == label) for label in labels}


def plainly_connected(sets: Sets, minhash: MinHash, share: float) -> set[frozenset[int]]:
    """Return what is connected: every set is compared with every other one."""
    bands = []
    for grams in sets:
        hashes = minhash.bands_of(np.array(sorted(grams), np.uint64), np.array([len(grams)]))
        bands.append(set(enumerate(zip(*(lane[0].tolist() for lane in hashes), strict=True))))
    labels = list(range(len(sets)))
    for one, other in combinations(range(len(sets)), 2):
        shared = len(sets[one] & sets[other]) / len(sets[one] | sets[other])
        if bands[one] & bands[other] and shared >= share:
            labels = [labels[one] if label == labels[other] else label for label in labels]
    return partition(labels)


def check_connected(sets: Sets, minhash: MinHash, share: float, few: int, gathered: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verify, "FEW", few)
        patch.setattr(verify, "_GATHERED", gathered)
        found = connected([as_bytes(grams) for grams in sets], minhash, share)
    assert partition(found.tolist()) == plainly_connected(sets, minhash, share)


GRAMS = st.frozensets(st.integers(0, 2**64 - 1), min_size=1, max_size=3) | st.frozensets(
    st.integers(0, 12).map(lambda n: n * 0x9E3779B97F4A7C15 % 2**64), min_size=1, max_size=12
)


@settings(deadline=None, max_examples=150)
@given(
    st.lists(GRAMS, min_size=1, max_size=20, unique=True),
    st.sampled_from([(1, 1), (4, 1), (3, 2)]),
    st.sampled_from([0.05, 1 / 3, 0.5, 0.6, 0.75, 0.9]),
    st.sampled_from([0, 3, 32]),
    st.sampled_from([1, 7, 10**6]),
)
def test_what_shares_a_band_and_enough_is_connected(
    sets: Sets, bands: tuple[int, int], share: float, few: int, gathered: int
) -> None:
    check_connected(sets, MinHash(*bands, 5), share, few, gathered)


@each("few", [0, 3])
@each("gathered", [1, 7, 10**6])
def test_random_sets_are_connected_as_pairs_of_them_are(few: int, gathered: int) -> None:
    draw = random.Random(gathered)
    grams = [draw.getrandbits(64) for _ in range(14)]
    for share in (1 / 3, 0.5, 0.75, 1.0):
        sets = list(dict.fromkeys(frozenset(draw.sample(grams, draw.randint(1, 9))) for _ in range(16)))
        check_connected(sets, MinHash(*draw.choice([(1, 1), (4, 1), (3, 2)]), 5), share, few, gathered)


@pytest.mark.parametrize("seed", range(3))
def test_trees_of_many_sets_grow_together(seed: int) -> None:
    draw, count = random.Random(seed), 80
    pairs = [draw.sample(range(count), 2) for _ in range(count)]
    sets = [of_numbers(*(at for at, pair in enumerate(pairs) if one in pair), count + one) for one in range(count)]
    check_connected(sets, MinHash(16, 1, 5), 0.1, 32, 10**6)


@pytest.mark.parametrize("share", [0.5, 0.7, 0.9])
def test_many_sets_with_much_in_common_are_told_apart(share: float) -> None:
    chosen = random.Random(7)
    common = [chosen.getrandbits(64) for _ in range(30)]
    bases = [[chosen.getrandbits(64) for _ in range(chosen.randrange(5, 60))] for _ in range(40)]
    sets: Sets = []
    for _ in range(300):
        own = [gram for gram in chosen.choice(bases) if chosen.random() < 0.9]
        sets.append(frozenset([*common, *own, chosen.getrandbits(64)]))
    minhash = MinHash(5, 1, 5)
    found = partition(connected([as_bytes(grams) for grams in sets], minhash, share).tolist())
    assert found == plainly_connected(sets, minhash, share)
    assert 1 < len(found) < 300


def of_numbers(*numbers: int) -> frozenset[int]:
    """Return n-grams that are spread as hashes are."""
    return frozenset(number * 0x9E3779B97F4A7C15 % 2**64 for number in numbers)


@each(
    ("sets", "share"),
    [
        # Of the first one the 45 rarest are its own: the next one is in common. 0.55 * 100 is more than 55 for a float.
        ([of_numbers(*range(100)), of_numbers(*range(45, 100))], 0.55),
        ([of_numbers(*range(45, 100)), of_numbers(*range(100))], 0.55),
        ([of_numbers(*range(10)), of_numbers(*range(11))], 10 / 11),
        ([of_numbers(*range(11)), of_numbers(*range(10))], 10 / 11),
        ([of_numbers(*range(20)), of_numbers(*range(1, 20)), of_numbers(*range(18))], 0.9),
    ],
)
def test_sets_that_have_just_enough_in_common_are_found_by_their_rarest(sets: Sets, share: float) -> None:
    minhash = MinHash(16, 1, 5)
    assert len(plainly_connected(sets, minhash, share)) == 1
    assert len(plainly_connected(sets, minhash, share + 0.001)) > 1
    for few in (0, 32):
        check_connected(sets, minhash, share, few, 10**6)


def test_a_set_that_is_near_none_is_compared_with_few_however_much_is_common_to_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chosen = random.Random(1)
    common = [chosen.getrandbits(64) for _ in range(20)]
    sets = [frozenset([*common, *(chosen.getrandbits(64) for _ in range(20))]) for _ in range(400)]
    compared: list[int] = []
    shares = verify._Comparison._shares

    def counted(self: verify._Comparison, one: int, others: NDArray[np.int64]) -> NDArray[np.float64]:
        compared.append(len(others))
        return shares(self, one, others)

    monkeypatch.setattr(verify._Comparison, "_shares", counted)
    found = connected([as_bytes(grams) for grams in sets], MinHash(8, 1, 5), 0.6)
    assert len(set(found.tolist())) == 400
    assert sum(compared) < 400 * 399 / 2 / 10, "all of them share a band"


@settings(deadline=None)
@given(st.lists(TEXTS, max_size=6), st.integers(1, 4))
def test_equal_n_grams_have_one_hash_and_others_have_others(texts: list[str], ngram: int) -> None:
    grams = MinHash(1, 1, ngram).grams(texts)
    expected = []
    for text in texts:
        words = plain_words(text)
        if words:
            expected.append({tuple(words[at : at + ngram]) for at in range(max(1, len(words) - ngram + 1))})
    assert grams.places.tolist() == [place for place, text in enumerate(texts) if plain_words(text)]
    found = grams.sets()
    assert [len(one) for one in found] == list(map(len, expected))
    for (one, of_one), (other, of_other) in combinations(zip(found, expected, strict=True), 2):
        assert len(np.intersect1d(one, other)) == len(of_one & of_other)


URLS = [f"{EARLIER}/in/old", "/in/a", "/in/b"]


def gathered(folder: Path, clusters: list[Sets], scores: dict[int, bytes] | None = None) -> GatheredRecords:
    """Return candidates by their clusters, one file after the other; the score of each is by its number."""
    runs: list[list[tuple[bytes, int, bytes]]] = [[] for _ in URLS]
    number = 0
    for cluster, sets in enumerate(clusters):
        for grams in sets:
            score = b"" if scores is None else scores[number]
            payload = len(score).to_bytes(4, "little") + score + as_bytes(grams)
            runs[number % len(URLS)].append((b"%016d" % cluster, number, payload))
            number += 1
    files = []
    for place, rows in enumerate(runs):
        keys, numbers, payloads = map(list, zip(*rows, strict=True)) if rows else ([], [], [])
        data = encode_run(keys, np.array(numbers, np.uint64), payloads, [])
        (folder / f"{place}.run").write_bytes(data)
        files.append(RunFile(f"{place}.run", len(data), SomeUrls(URLS, place, place + 1)))
    sources = BucketSources(SliceTables(str(folder), "state"), 10**9)
    (task,) = bucket_tasks(RunLayout.of_one(files, 1), sources)
    records: GatheredRecords = task.records
    return records


def clusters_of(sets: Sets, minhash: MinHash) -> list[Sets]:
    """Divide sets into those that bands connect."""
    return [[sets[place] for place in sorted(part)] for part in plainly_connected(sets, minhash, 0.0)]


@pytest.mark.parametrize("at_once", [1, 500, 1 << 24])
@pytest.mark.parametrize("with_scores", [False, True])
def test_candidates_are_connected_cluster_by_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int, with_scores: bool
) -> None:
    """Equal sets are connected, too, and of each tree the best record stays."""
    monkeypatch.setattr(verify, "AT_ONCE", at_once)
    draw = random.Random(3)
    minhash, share = MinHash(2, 1, 5), 0.5
    grams = [draw.getrandbits(64) for _ in range(30)]
    sets = [frozenset(draw.sample(grams, draw.randint(1, 6))) for _ in range(25)]
    clusters = [[*some, *some[:2]] for some in clusters_of(list(dict.fromkeys(sets)), minhash)]
    assert len(clusters) > 3
    every = [grams for some in clusters for grams in some]
    scores = {number: bytes([draw.randrange(4)]) * draw.randrange(3) for number in range(len(every))}
    trees = VerifiedTrees(minhash, share, with_scores)(gathered(tmp_path, clusters, scores if with_scores else None))
    assert trees is not None
    places = [trees.forest.place(node) for node in trees.forest.nodes.tolist()]
    found: dict[int, set[int]] = {}
    for root, (url, number) in zip(trees.forest.roots.tolist(), places, strict=True):
        assert url.decode().endswith(URLS[number % len(URLS)])
        found.setdefault(root, set()).add(number)
    alike = list(dict.fromkeys(every))
    expected = {
        frozenset(number for number, grams in enumerate(every) if alike.index(grams) in part)
        for part in plainly_connected(alike, minhash, share)
    }
    assert set(map(frozenset, found.values())) == {part for part in expected if len(part) > 1}
    for part in found.values() if with_scores else ():
        (stays,) = {places[best][1] for best in trees.forest.best().tolist() if places[best][1] in part}
        old = {number for number in part if number % len(URLS) == 0}
        assert stays in old if old else scores[stays] == min(scores[number] for number in part)


def test_nothing_that_is_near_makes_no_trees(tmp_path: Path) -> None:
    one, other = frozenset([1, 2]), frozenset([3, 4])
    assert VerifiedTrees(MinHash(2, 1, 5), 0.5, False)(gathered(tmp_path, [[one], [other]])) is None


@pytest.mark.parametrize("scored", [False, True])
def test_so_many_n_grams_of_a_cluster_are_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scored: bool
) -> None:
    """Each set is held once; the error names the first record of the cluster, which an earlier job may have read."""
    sets = [frozenset([1, 2]), frozenset([1, 2]), frozenset([1, 2, 3])]
    scores = dict.fromkeys(range(6), b"score") if scored else None
    candidates = gathered(tmp_path, [sets, sets], scores)
    size = 16 + 24 + 3 * (RECORD_BYTES + 5 * scored)
    verified = VerifiedTrees(MinHash(2, 1, 5), 0.5, scored)
    for at_once in (1, 1 << 24):
        monkeypatch.setattr(verify, "AT_ONCE", at_once)
        monkeypatch.setattr(verify, "MOST_BYTES", size)
        assert verified(candidates) is not None
        monkeypatch.setattr(verify, "MOST_BYTES", size - 1)
        with pytest.raises(RecordError, match=r"^/in/old, record 0: --verify holds"):
            verified(candidates)


SMALL = [frozenset([1, 2]), frozenset([1, 2])]
LARGE = [frozenset([3, 4]), frozenset([3, 4, 5])]


@pytest.mark.parametrize(("clusters", "first"), [([SMALL, LARGE], 3), ([LARGE, SMALL], 0)])
def test_of_several_clusters_the_one_that_has_too_many_n_grams_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clusters: list[Sets], first: int
) -> None:
    """By its first record in the order of the files: of the numbers 2 and 3 that is 3."""
    monkeypatch.setattr(verify, "MOST_BYTES", 16 + 2 * RECORD_BYTES)
    with pytest.raises(RecordError, match=rf"^/in/old, record {first}: --verify holds"):
        VerifiedTrees(MinHash(2, 1, 5), 0.5, False)(gathered(tmp_path, clusters))
