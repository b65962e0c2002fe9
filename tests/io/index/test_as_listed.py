"""Indexes that are a part of their source: reads return the listed version or fail."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import numpy as np
import pytest

from ledgerbeam.errors import ChangedSourceError
from ledgerbeam.io import write_index
from ledgerbeam.io.index.file import IndexFile
from ledgerbeam.io.storage.stat import stat


def test_it_is_read_as_it_was_listed_or_not_at_all(tmp_path: Path) -> None:
    url = f"{tmp_path}/a.idx"
    write_index(url, np.array([0, 6, 13], np.uint64))
    plain = IndexFile(url, source="/in/a.cut")
    found = plain.as_listed(stat(url))
    for index in (found, pickle.loads(pickle.dumps(found))):
        assert (index.url, index.source, index.options) == (url, "/in/a.cut", None)
        assert index.load().tolist() == [0, 6, 13]
        index.close()
    again = pickle.dumps(found)
    write_index(url, np.array([0, 7, 13], np.uint64))
    os.utime(url, (1_000, 1_000))
    assert pickle.loads(pickle.dumps(plain)).load().tolist() == [0, 7, 13]
    for index in (found, pickle.loads(again)):
        with pytest.raises(ChangedSourceError, match=url):
            index.load()
