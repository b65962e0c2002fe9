"""Packs: each token of each document once, for any lengths, ranks and places of the data."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledgerbeam.errors import ChangedSourceError, SourceError, SourceNotFoundError, UnsupportedShapeError, UsageError
from ledgerbeam.io import publish_bytes
from ledgerbeam.iterators import (
    Batches,
    GlobalShuffle,
    IteratorNode,
    Mux,
    Packed,
    Repeat,
    merge_states,
    mix,
    stack_packs,
)
from ledgerbeam.iterators.testing import through_json
from ledgerbeam.ledger import Source, Task
from ledgerbeam.sources.documents import DocumentLengths
from ledgerbeam.transforms.mapping.pack import PackDocuments
from tests.iterators.data import numbers, plain, write_documents, write_packs
from tests.servers.s3_proxy import S3Proxy

PAD = 60_000
DTYPES = [("uint16", "uint16"), ("uint16", "int32"), ("uint16", "uint64"), ("int32", "int64"), ("int64", "int64")]


def naive_best_fit(lengths: Sequence[int], length: int) -> list[int]:
    """Return the tokens of each pack, sorted: each piece, the longest first, goes into the fullest pack with room."""
    pieces = [min(length, total - start) for total in lengths for start in range(0, total, length)]
    packs: list[int] = []
    for piece in sorted(pieces, reverse=True):
        fits = [number for number, held in enumerate(packs) if held + piece <= length]
        if fits:
            packs[max(fits, key=lambda number: packs[number])] += piece
        else:
            packs.append(piece)
    return sorted(packs)


def check_pack(pack: dict[str, Any], documents: Sequence[Sequence[int]], length: int) -> list[tuple[int, int]]:
    """Check a pack against the documents, and return the document and the place of each of its tokens."""
    bounds = pack["cu_seqlens"].tolist()
    pieces = list(zip(pack["documents"].tolist(), pack["starts"].tolist(), bounds, bounds[1:], strict=False))
    assert bounds[0] == 0
    assert bounds[-1] == length
    assert len(bounds) - 1 - len(pieces) in (0, 1)
    found: list[tuple[int, int]] = []
    tokens: list[int] = []
    positions: list[int] = []
    segments: list[int] = []
    for number, (document, start, begin, end) in enumerate(pieces):
        assert end > begin
        tokens += documents[document][start : start + end - begin]
        positions += range(end - begin)
        segments += [number] * (end - begin)
        found += [(document, place) for place in range(start, start + end - begin)]
    padding = length - len(tokens)
    assert pack["tokens"].tolist() == [*tokens, *[PAD] * padding]
    assert pack["positions"].tolist() == [*positions, *range(padding)]
    assert pack["segments"].tolist() == [*segments, *[-1] * padding]
    return found


@settings(deadline=None, max_examples=150)
@given(
    lengths=st.lists(st.integers(0, 40), min_size=1, max_size=60).filter(any),
    length=st.integers(1, 24),
    how=st.sampled_from([("best-fit", "split"), ("best-fit", "cut"), ("concat", "split")]),
    others=st.tuples(st.sampled_from([None, 59_999]), st.sampled_from([1, 100, 1 << 20]), st.sampled_from(DTYPES)),
)
def test_each_token_of_each_document_is_in_one_pack(
    lengths: list[int],
    length: int,
    how: tuple[Any, Any],
    others: tuple[int | None, int, tuple[str, str]],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder, (eod, task_bytes, (dtype, of_arrays)) = tmp_path_factory.mktemp("packs"), others
    prefix = write_documents(folder / "d", lengths, dtype=dtype)
    work = PackDocuments(length, how[0], eod is not None, how[1])
    folder_of_packs = write_packs(folder / "packs", [prefix], work, eod=eod, task_bytes=task_bytes)
    packed = Packed(folder_of_packs, pad=PAD, dtype=of_arrays)
    ends = np.cumsum(lengths).tolist()
    documents = [
        [*range(end - size, end), *([] if eod is None else [eod])] if size else []
        for size, end in zip(lengths, ends, strict=True)
    ]
    found = [check_pack(pack, documents, length) for pack in packed]
    sizes = packed.sizes(np.arange(len(packed))).tolist()
    assert sizes == list(map(len, found))
    kept = [document[: length if how[1] == "cut" else None] for document in documents]
    assert sorted(token for pack in found for token in pack) == [
        (number, place) for number, document in enumerate(kept) for place in range(len(document))
    ]
    tasks = packed.blocks
    assert len(tasks) > 1 or task_bytes > 1 or len([*filter(None, lengths)]) == 1
    if how[0] == "concat":
        last = np.cumsum(tasks) - 1
        assert all(size == length for place, size in enumerate(sizes) if place not in last)
    shuffled = np.random.default_rng(1).permutation(len(packed))
    for one, number in zip(packed.records.read_many(shuffled), shuffled.tolist(), strict=True):
        assert check_pack(one, documents, length) == found[number]


@settings(deadline=None, max_examples=50)
@given(
    growth=st.lists(st.lists(st.integers(0, 40), max_size=30), min_size=1, max_size=5).filter(lambda one: any(one[0])),
    sizes=st.lists(st.sampled_from([1, 100, 1 << 20]), min_size=5, max_size=5),
    strategy=st.sampled_from(["best-fit", "concat"]),
    eod=st.sampled_from([None, 59_999]),
)
def test_documents_that_are_added_add_packs_and_change_none(
    growth: list[list[int]],
    sizes: list[int],
    strategy: Any,
    eod: int | None,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder, work = tmp_path_factory.mktemp("grown"), PackDocuments(24, strategy, eod is not None)
    lengths: list[int] = []
    before: list[Any] = []
    for added, task_bytes in zip(growth, sizes, strict=False):
        lengths += added
        prefix = write_documents(folder / "d", lengths)
        packed = Packed(write_packs(folder / "packs", [prefix], work, eod=eod, task_bytes=task_bytes), pad=PAD)
        after = [plain(pack) for pack in packed]
        assert after[: len(before)] == before
        found = Counter(document for pack in after[len(before) :] for document in pack["documents"])
        assert set(found) == {len(lengths) - len(added) + place for place, size in enumerate(added) if size}
        before = after
    assert packed.sizes(np.arange(len(packed))).sum() == sum(size + (eod is not None) for size in lengths if size)


@settings(deadline=None, max_examples=300)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=120), st.integers(8, 32) | st.just(2**31 - 1))
def test_best_fit_fills_packs_as_the_naive_algorithm(lengths: list[int], length: int) -> None:
    numbers = np.arange(len(lengths))
    sizes = np.array(lengths, np.int64)
    documents = DocumentLengths(numbers, sizes, np.cumsum(sizes) - sizes, "uint16")
    task = Task(Source("/d.bin", 1, "1"), 0, len(lengths), ((0, 1),))
    done: Any = PackDocuments(length)(task.replace(records=documents))
    assert sorted(done.records.datasets[""].pieces.tokens.tolist()) == naive_best_fit(lengths, length)


def test_a_weight_takes_documents_several_times_or_some_of_them(tmp_path: Path) -> None:
    prefix = write_documents(tmp_path / "d", [8] * 4000)
    taken = {
        weight: Counter(
            document
            for pack in Packed(write_packs(tmp_path / str(weight), [prefix], PackDocuments(64, weight=weight)))
            for document in pack["documents"].tolist()
        )
        for weight in (0.25, 2.5)
    }
    assert set(taken[0.25].values()) == {1}
    assert 900 < len(taken[0.25]) < 1100
    assert set(taken[2.5].values()) == {2, 3}
    assert len(taken[2.5]) == 4000
    assert 9800 < taken[2.5].total() < 10_200


def corpus(folder: Path, count: int, length: int = 32) -> list[str]:
    """Write packs of two datasets, in folders of their own."""
    chance = np.random.default_rng(5)
    found = []
    for name, many in (("web", count), ("books", count // 3)):
        prefix = write_documents(folder / name, chance.integers(1, 60, many).tolist())
        found.append(write_packs(folder / f"packs-{name}", [prefix], PackDocuments(length), task_bytes=30 * count))
    return found


def ranges(packs: Sequence[dict[str, Any]], length: int = 32) -> Counter[Any]:
    """Return the (tokens, document, start, stop) of packs, counted; tokens distinguish datasets."""
    found: Counter[Any] = Counter()
    for pack in packs:
        sizes = np.diff(pack["cu_seqlens"])
        for number, (document, start) in enumerate(zip(pack["documents"], pack["starts"], strict=True)):
            found[(len(pack["documents"]), int(document), int(start), int(start + sizes[number]))] += 1
    return found


GRAPHS: dict[str, Callable[[list[str]], IteratorNode]] = {
    "in order": lambda at: Packed(at[0]),
    "shuffled": lambda at: Packed(at[0], shuffle=True, seed=4),
    "by blocks": lambda at: Packed(at[0], shuffle="blocks", window=3),
    "all sources": lambda at: GlobalShuffle(Packed(at[0]), Packed(at[1])),
    "mixed by tokens": lambda at: Mux(
        Packed(at[0], shuffle=True), Repeat(Packed(at[1], shuffle=True), 2), weights=[6, 4], weights_in="tokens"
    ),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_other_numbers_of_ranks_continue_at_every_step(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """4 ranks, then 3, then 5: each range of a document as often as in an undisturbed pass."""
    monkeypatch.setattr(mix, "_STATE_EVERY", 4)
    monkeypatch.setattr(mix, "_MOST_DRAWN", 16)
    at = corpus(tmp_path, 60 if name == "mixed by tokens" else 90)
    graph = GRAPHS[name](at)
    whole = list(graph)

    def part(shard: int, shards: int, steps: int | None, state: Any) -> tuple[list[Any], Any]:
        own = GRAPHS[name](at)
        own.partition(shard, shards)
        if state is not None:
            own.load_state_dict(state)
        found = list(islice(own, steps))
        return found, through_json(own.state_dict())

    for step in range(len(whole) // 4 + 2):
        state: Any = None
        given: list[Any] = []
        for shards, steps in ((4, step), (3, 2), (5, None)):
            # In some passes, ranks are behind others.
            taken = [None if steps is None else max(0, steps - shard * (step % 3)) for shard in range(shards)]
            parts = [part(shard, shards, some, state) for shard, some in enumerate(taken)]
            given += [pack for packs, _ in parts for pack in packs]
            state = through_json(merge_states(graph, [one for _, one in parts]))
        assert ranges(given) == ranges(whole)


@pytest.mark.parametrize("ranks", [1, 7, 64])
def test_a_mixture_has_the_ratio_of_tokens_in_each_window(ranks: int, tmp_path: Path) -> None:
    at = corpus(tmp_path, 12_000, 64)
    share = 0.617

    def graph() -> IteratorNode:
        return Mux(
            Packed(at[0], shuffle=True), Repeat(Packed(at[1]), 4), weights=[share, 1 - share], weights_in="tokens"
        )

    passes: list[Iterator[Any]] = []
    for rank in range(ranks):
        own = graph()
        own.partition(rank, ranks)
        passes.append(own.pairs())
    window, places = 1_000, 3_000
    drawn = [next(passes[place % ranks]) for place in range(places)]
    sizes = np.array([int((pack["segments"] >= 0).sum()) for _, pack in drawn])
    of_first = np.where([token[0] == 0 for token, _ in drawn], sizes, 0)
    sums = [np.concatenate(([0], np.cumsum(part))) for part in (of_first, sizes)]
    shares = (sums[0][window:] - sums[0][:-window]) / (sums[1][window:] - sums[1][:-window])
    assert np.abs(shares - share).max() <= 0.001


def test_weights_follow_a_schedule_of_tokens(tmp_path: Path) -> None:
    at = corpus(tmp_path, 3_000, 64)
    schedule = [(0, [1, 0]), (8_000, [1, 1]), (24_000, [1, 3])]
    graph = Mux(Packed(at[0]), Packed(at[1]), weights=schedule, weights_in="tokens")
    seen, given = 0, Counter[tuple[int, int]]()
    for token, pack in graph.pairs():
        source = 0 if token is None else token[0]
        phase = sum(seen >= start for start, _ in schedule) - 1
        size = int((pack["segments"] >= 0).sum())
        given[phase, source] += size
        seen += size
        if seen > 40_000:
            break
    assert given[0, 1] == 0
    assert abs(given[1, 0] - given[1, 1]) <= 64
    assert abs(3 * given[2, 0] - given[2, 1]) <= 4 * 64
    wrong: Any
    for wrong in ([(5, [1, 1])], [(0, [1, 1]), (0, [1, 1])], [(0, [0, 0]), (9, [1, 1])], [1, 0], [1], [], [(0, 1)]):
        with pytest.raises(UsageError, match="Mux: expected"):
            Mux(Packed(at[0]), Packed(at[1]), weights=wrong, weights_in="tokens")
    with pytest.raises(UnsupportedShapeError, match="numbers of tokens"):
        list(Mux(numbers(5), numbers(5), weights_in="tokens"))
    with pytest.raises(UnsupportedShapeError, match="arbitrary place"):
        Mux(Repeat(Packed(at[0])), Packed(at[1]), weights_in="tokens")


def test_states_are_small_and_restored_anywhere_at_once(tmp_path: Path) -> None:
    at = corpus(tmp_path, 12_000, 64)
    graph = GRAPHS["mixed by tokens"](at)
    for _ in islice(graph, 4_000):
        pass
    state = json.dumps(graph.state_dict())
    assert len(state) < 4096
    other = GRAPHS["mixed by tokens"](at)
    began = time.perf_counter()
    other.load_state_dict(json.loads(state))
    first = next(iter(other))
    assert time.perf_counter() - began < 1  # 50 ms on an idle machine; the table `packs` of benchmarks measures it
    assert first["tokens"].tolist() == next(islice(GRAPHS["mixed by tokens"](at), 4_000, None))["tokens"].tolist()


def test_datasets_that_were_changed_or_moved_are_noticed(tmp_path: Path) -> None:
    prefix = write_documents(tmp_path / "data" / "d", [5, 9, 30])
    packs = write_packs(tmp_path / "packs", [prefix], PackDocuments(16))
    before = [pack["tokens"].tolist() for pack in Packed(packs)]
    shutil.copytree(tmp_path / "data", tmp_path / "moved")
    for ending in ("bin", "idx"):
        os.utime(f"{prefix}.{ending}", ns=(1, 1))
        with pytest.raises(ChangedSourceError, match=f"d.{ending}.*run the same ledgerbeam pack again"):
            next(iter(Packed(packs)))
        shutil.copystat(tmp_path / "moved" / f"d.{ending}", f"{prefix}.{ending}")
        next(iter(Packed(packs)))
    moved = Packed(packs, datasets=str(tmp_path / "moved"))
    assert [pack["tokens"].tolist() for pack in moved] == before
    with open(tmp_path / "moved" / "d.bin", "ab") as file:
        file.write(b"\0\0")
    with pytest.raises(ChangedSourceError, match="expected the dataset of the packs, with 88 bytes, found 90"):
        next(iter(Packed(packs, datasets=str(tmp_path / "moved"))))


def test_what_cannot_be_read_is_refused(tmp_path: Path) -> None:
    prefix = write_documents(tmp_path / "d", [5, 9, 30])
    packs = write_packs(tmp_path / "packs", [prefix], PackDocuments(16))
    with pytest.raises(SourceNotFoundError, match=r"_packs.arrow, found none; give the output of a complete"):
        Packed(str(tmp_path))
    with pytest.raises(UsageError, match="expected fields of tokens, positions"):
        Packed(packs, fields=["token"])
    for wrong in (
        *({"pad": 1.5}, {"pad": 2**40, "dtype": "int32"}, {"pad": -1, "dtype": "uint16"}),
        *({"dtype": "float32"}, {"dtype": "words"}, {"fields": ()}),
    ):
        with pytest.raises(UsageError, match=r"expected (as pad|a dtype|fields)"):
            Packed(packs, **wrong)
    assert not len(Packed(packs).records.sizes([]))
    swapped = next(iter(Packed(packs, dtype=">i4")))["tokens"]
    assert swapped.tolist() == next(iter(Packed(packs)))["tokens"].tolist()
    assert Packed(packs).records.sizes([0, -1]).tolist() == Packed(packs).records.sizes(np.array([0, -1])).tolist()
    with pytest.raises(UsageError, match="int8 cannot hold its tokens, of uint16"):
        next(iter(Packed(packs, dtype="int8")))
    with pytest.raises(IndexError, match="there is no pack 3"):
        Packed(packs).records[3]
    with pytest.raises(SourceError, match="document 2 ends with token 43 already; leave --eod out"):
        write_packs(tmp_path / "twice", [prefix], PackDocuments(16, adds_eod=True), eod=43)
    with pytest.raises(SourceError, match="expected tokens that are integers, found float32"):
        write_packs(tmp_path / "real", [write_documents(tmp_path / "real", [5], dtype="float32")], PackDocuments(16))
    small = write_packs(tmp_path / "small", [prefix], PackDocuments(8))
    name = next(name for name in os.listdir(small) if name.startswith("d"))
    shutil.copy(f"{small}/{name}", f"{packs}/{name}")
    with pytest.raises(ChangedSourceError, match="changed since the packs were opened"):
        next(iter(Packed(packs)))


def test_fields_and_dtype_are_chosen_and_rows_of_a_read_share_one_array(tmp_path: Path) -> None:
    prefix = write_documents(tmp_path / "d", [5, 9, 30])
    packs = write_packs(tmp_path / "packs", [prefix], PackDocuments(16))
    some = Packed(packs, fields=("tokens", "cu_seqlens"), dtype="int32").records.read_many([2, 0, 1])
    assert [set(pack) for pack in some] == [{"tokens", "cu_seqlens"}] * 3
    base = some[0]["tokens"].base
    assert base is not None
    assert all(pack["tokens"].base is base for pack in some)
    assert base.dtype == np.int32
    for wanted, is_view in (([0, 1, 2], True), ([1], True), ([0, 2], False)):
        batch = stack_packs([some[place] for place in wanted])
        assert batch["tokens"].tolist() == [some[place]["tokens"].tolist() for place in wanted]
        assert np.shares_memory(batch["tokens"], base) == is_view
        assert batch["cu_seqlens"].tolist() == sorted(
            {16 * number + bound for number, place in enumerate(wanted) for bound in some[place]["cu_seqlens"].tolist()}
        )
    assert (base.reshape(-1, 16) == np.stack([pack["tokens"] for pack in some])).all()


@pytest.mark.s3
def test_packs_of_a_store_are_those_of_a_disk_and_tokens_of_blocks_are_read_once(
    tmp_path: Path, faulty_s3: S3Proxy
) -> None:
    bucket, options = faulty_s3.server.bucket(), faulty_s3.server.options
    prefix = write_documents(tmp_path / "d", np.random.default_rng(3).integers(0, 900, 400).tolist())
    for ending in (".bin", ".idx"):
        publish_bytes(f"s3://{bucket}/d{ending}", Path(prefix + ending).read_bytes(), options)
    work = PackDocuments(512, adds_eod=True)
    local = Packed(write_packs(tmp_path / "packs", [prefix], work, eod=9, task_bytes=40_000))
    stored = write_packs(f"s3://{bucket}/packs", [f"s3://{bucket}/d"], work, eod=9, task_bytes=40_000, options=options)
    for shuffle in (False, "blocks", True):
        leaf = Packed(stored, options=faulty_s3.options, shuffle=shuffle, window=2)
        faulty_s3.clear()
        found = Counter(map(repr, map(plain, leaf)))
        assert found == Counter(map(repr, map(plain, local)))
        if shuffle == "blocks":
            assert faulty_s3.count("GET") <= 2 * len(local.blocks)  # of each file of packs, and of its tokens
    faulty_s3.clear()
    Packed(stored, options=faulty_s3.options).records[5]
    assert faulty_s3.count("GET") < 8  # of catalog, packs and near ranges


def test_packs_that_are_no_neighbours_are_copied(tmp_path: Path) -> None:
    numbers = np.arange(64)
    for rows in (
        [numbers[::2]],
        [numbers[:16][::-1], numbers[16:32][::-1]],
        [numbers[:8].view(np.int32), numbers[8:16].view(np.int32)],
        [numbers[:16].reshape(4, 4), numbers[16:32].reshape(4, 4)],
    ):
        found = stack_packs([{"tokens": row} for row in rows])["tokens"]
        assert found.dtype == rows[0].dtype
        assert found.tolist() == [row.tolist() for row in rows]
    bounds = stack_packs([{"cu_seqlens": np.array(one, np.int32)} for one in ([0, 32], [0, 26, 64])])["cu_seqlens"]
    assert bounds.tolist() == [0, 32, 58, 96]
    with pytest.raises(UsageError, match="found none"):
        stack_packs([])


def test_packs_made_again_under_an_open_reader_are_refused(tmp_path: Path) -> None:
    prefix = write_documents(tmp_path / "d", [10] * 20)
    packs = write_packs(tmp_path / "packs", [prefix], PackDocuments(10))
    before = Packed(packs)
    write_documents(tmp_path / "d", [9] * 20)
    write_packs(tmp_path / "packs", [prefix], PackDocuments(10))
    with pytest.raises(ChangedSourceError, match="open them again"):
        next(iter(before))
    assert len(next(iter(Packed(packs)))["documents"]) == 1


@pytest.mark.parametrize("size", [1, 3, 12, 64])
def test_batches_of_packs_are_views_of_what_was_read(tmp_path: Path, size: int) -> None:
    prefix = write_documents(tmp_path / "d", [37, 90, 11] * 900)
    packed = Packed(write_packs(tmp_path / "packs", [prefix], PackDocuments(128)), shuffle=True)
    batches = [(batch, stack_packs(batch)) for batch in Batches(packed, size)]
    assert sum(len(batch) for batch, _ in batches) == len(packed)
    assert all(np.shares_memory(stacked["tokens"], batch[0]["tokens"]) for batch, stacked in batches)
