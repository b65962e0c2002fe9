"""The files that the records of a task become."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ledgerbeam.errors import RecordError
from ledgerbeam.io import Sample, TarFormat, TarReader
from ledgerbeam.io.datasets.megatron import MegatronReader
from ledgerbeam.io.datasets.megatron.format import TokenShards


def samples(keys: str) -> list[Sample]:
    return [Sample(keys.format(number), {"wav": b"x", "json": b"{}"}) for number in range(3)]


def test_the_index_of_a_tar_of_two_members_each_ends_where_the_last_sample_does(tmp_path: Path) -> None:
    data, index = TarFormat().encode(samples("a{}"))
    (tmp_path / "x.tar").write_bytes(data.data)
    (tmp_path / "x.tar.idx").write_bytes(index.data)
    assert np.frombuffer(index.data, np.uint64)[-1] == 3 * 2 * 1024
    with TarReader(str(tmp_path / "x.tar")) as reader:
        assert reader[:] == samples("a{}")


def test_tokens_of_each_key_are_a_dataset_of_its_own(tmp_path: Path) -> None:
    records = [{"text": [[1, 2], [3]], "title": [[4]]}, {"title": [[5, 6]], "text": []}]
    files = TokenShards({"text": "_text", "title": "_title"}, "uint16", eod=9).encode(records)
    assert [(file.ending, file.records) for file in files] == [
        ("_text.bin", 2),
        ("_text.idx", 0),
        ("_title.bin", 2),
        ("_title.idx", 0),
    ]
    for file in files:
        (tmp_path / f"part{file.ending}").write_bytes(file.data)
    for suffix, expected in (("_text", [[1, 2], [3, 9]]), ("_title", [[4, 9], [5, 6, 9]])):
        with MegatronReader(str(tmp_path / f"part{suffix}")) as reader:
            assert [sequence.tolist() for sequence in reader] == expected


def test_samples_that_webdataset_and_lhotse_read_differently_are_refused() -> None:
    with pytest.raises(RecordError, match=r"output sample 0 \('a\.0': .*\) would be read back as \('a', "):
        TarFormat().encode(samples("a.{}"))
