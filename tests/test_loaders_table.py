"""What the table of loaders compares: sources by hand hold the samples of our graphs, and each sample counts."""

from __future__ import annotations

import pickle
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.loader_sources import Lines, Reordered, Rows, Samples, by_groups, canonical
from benchmarks.loaders import make_files, require_same
from ledgerbeam.io import Sample
from ledgerbeam.iterators import IndexedManifest, IndexedParquet, IndexedTar, IteratorNode

COUNT = 200


def digest(sample: Any) -> str:
    return sha256(b"\0".join(canonical(sample))).hexdigest()


def sides(folder: Path, kind: str) -> tuple[IteratorNode, Any]:
    files = make_files(folder, kind, COUNT)
    if kind == "jsonl":
        return IndexedManifest(files[0], files[1]), Lines(*files)
    if kind == "tar":
        return IndexedTar(files[0], files[1]), Samples(files[0], files[2])
    return IndexedParquet(files), Rows(*files)


@pytest.mark.parametrize("kind", ["jsonl", "tar", "parquet"])
def test_a_source_by_hand_has_the_samples_of_the_graph(tmp_path: Path, kind: str) -> None:
    graph, source = sides(tmp_path, kind)
    wanted = list(map(digest, graph))
    assert len(source) == len(set(wanted)) == COUNT
    for opened in (source, pickle.loads(pickle.dumps(source))):
        assert [digest(opened[number]) for number in range(COUNT)] == wanted
    turned = Reordered(source, range(COUNT - 1, -1, -1))
    assert [digest(turned[place]) for place in range(len(turned))] == wanted[::-1]


def test_what_a_sample_holds_decides_its_digest() -> None:
    assert digest({"a": 1, "b": "x"}) == digest({"b": "x", "a": 1}) != digest({"a": 1, "b": "y"})
    ours, theirs = Sample("k", {"bin": b"1", "cls": b"2"}), {"__key__": "k", "cls": b"2", "bin": b"1"}
    assert digest(ours) == digest(theirs) != digest({**theirs, "__key__": "l"})
    assert digest(theirs) != digest({**theirs, "bin": b"2"})
    assert digest(np.array([1, 2], np.uint16)) != digest(np.array([1, 2], np.int32))


def test_a_shuffle_by_groups_has_every_row_once_and_each_group_together() -> None:
    order = by_groups([3, 0, 5, 1])
    assert sorted(order) == list(range(9)) != order
    groups = [0 if row < 3 else 2 if row < 8 else 3 for row in order]
    assert len([one for one, before in zip(groups, [None, *groups], strict=False) if one != before]) == 3


def test_loaders_that_deliver_other_samples_are_refused() -> None:
    require_same({"ours": [2, "a"], "torch": [2, "a"]}, 2, "jsonl")
    for found, count in (({"ours": [2, "a"], "torch": [2, "b"]}, 2), ({"ours": [1, "a"], "torch": [1, "a"]}, 2)):
        with pytest.raises(RuntimeError, match="jsonl: expected 2 samples"):
            require_same(found, count, "jsonl")
