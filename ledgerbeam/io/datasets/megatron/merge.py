"""Join Megatron datasets: the `.bin` as bytes, the `.idx` by arithmetic on its arrays."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import BinaryIO, NamedTuple

from ledgerbeam.errors import IndexMismatchError, SourceNotFoundError, UsageError
from ledgerbeam.io.datasets.megatron.index import BLOCK, MegatronIndex, stat_index
from ledgerbeam.io.datasets.megatron.layout import MAGIC, Layout, dataset_prefix, dtype_code
from ledgerbeam.io.datasets.megatron.writer import IndexWriter, require_own
from ledgerbeam.io.storage.client import Options
from ledgerbeam.io.storage.concatenate import concatenated
from ledgerbeam.io.storage.concurrency import CONCURRENCY, map_ahead
from ledgerbeam.io.storage.files import delete
from ledgerbeam.io.storage.overwrite import refuse_foreign
from ledgerbeam.io.storage.publish import publish, remove_stale_temporaries_of
from ledgerbeam.io.storage.stat import FileInfo, SourceWatch, stat
from ledgerbeam.io.storage.urls import is_local

_AHEAD = 4
_LOOKS = re.compile(re.escape(MAGIC))
_LOAD = 8 * 1024 * 1024  # a larger index is read in parts


class _OpenedPart(NamedTuple):
    """A dataset to be joined, and the state of its files when the merge starts."""

    data: FileInfo
    listed: FileInfo
    arrays: MegatronIndex


def merge_megatron(prefixes: Sequence[str], output: str, options: Options | None = None) -> Layout:
    """Join datasets in the given order.

    The result has the same bytes as one builder writes for all documents, and as Megatron's `add_index` makes. So the
    number of parts of a build does not matter. Each part is checked entry by entry. The kernel copies the `.bin`, or S3
    copies it on the server; otherwise it is streamed. Memory is bounded by blocks of about a million sequences.

    Args:
        prefixes: Prefixes of at least one dataset, or the names of their `.bin`. Datasets of fairseq are allowed; each
            of their sequences is a document.
        output: Prefix of the result. It appears when all data is complete, the `.idx` last.
        options: Storage options of all datasets.

    Returns:
        The layout of the result: its dtype, sequences and documents.

    Raises:
        ChangedSourceError: A part changed while it was read; nothing was published. Or another process has written the
            result at the same time; see `require_own`.
        IndexMismatchError: The two files of a part do not fit each other.
        IndexNotFoundError: A part has no `.idx`.
        SourceNotFoundError: A part has no `.bin`.
        UsageError: There are no parts, parts have different dtypes or only some have modes, or the output is a part or
            another file. An existing dataset is replaced, and also the `.bin` of a killed merge.
    """
    target = dataset_prefix(output)
    if not prefixes:
        raise UsageError(f"{target}: there is nothing to merge; give the prefix of at least one dataset")
    places = list(map(dataset_prefix, prefixes))
    if any(_is_same(target, place) for place in places):
        raise UsageError(f"{target} is both a part and the result; choose another output")
    with ThreadPoolExecutor(CONCURRENCY, "ledgerbeam-merge") as pool:
        parts = list(pool.map(partial(_open, options=options), places))
    sources, indexes = [part.data for part in parts], [part.arrays for part in parts]
    layout = _merged_layout(indexes)
    require_replaceable(target, sum(source.size for source in sources), options)
    for ending in (".bin", ".idx"):  # temporaries of killed merges take disk space
        remove_stale_temporaries_of(target + ending)
    with publish(target + ".idx", options) as file:
        with SourceWatch([*sources, *(part.listed for part in parts)]) as watch:
            _write_index(indexes, layout, file)
        with concatenated(sources, target + ".bin", options):
            watch.check()  # index and tokens must have one version
            delete(target + ".idx", options)  # no reader may find the old index with the new `.bin`
        own = stat(target + ".bin", options)
    require_own(own, options)
    return layout


def require_replaceable(output: str, size: int, options: Options | None = None) -> None:
    """Check that a dataset can be written: its files do not exist, or are files that a merge replaces.

    Args:
        output: Prefix of the dataset.
        size: Bytes of the `.bin` to be written. A `.bin` of this size without `.idx` is the work of a killed merge.
        options: Storage options.

    Raises:
        UsageError: There is an `.idx` of another format, or a `.bin` of another size without a matching `.idx`.
    """
    target = dataset_prefix(output)
    index = {f"{target}.idx": _LOOKS}
    has_index = refuse_foreign(index, options, kind="the index of a dataset", remedy="or give another output")
    with suppress(SourceNotFoundError):
        found = stat(target + ".bin", options).size
        if found != size and not (has_index and _fits(MegatronIndex(target + ".idx", options), found)):
            raise UsageError(
                f"{target}.bin: expected no file, or one of a dataset with its .idx, which is replaced; "
                "found another file: move it away, or give another output"
            )


def _fits(index: MegatronIndex, size: int) -> bool:
    """Return whether an index fits a `.bin` of a size in bytes."""
    try:
        index.check_ends(size)
    except IndexMismatchError:
        return False
    finally:
        index.close()
    return True


def _is_same(target: str, place: str) -> bool:
    """Return whether two prefixes name one dataset, also through links to its folder or files."""
    if target == place or not (is_local(target) and is_local(place)):
        return target == place
    with suppress(OSError):  # one of them does not exist
        return os.path.samefile(target + ".bin", place + ".bin")
    return False


def _open(prefix: str, options: Options | None) -> _OpenedPart:
    """Describe the files of a part, and check their sizes."""
    data, listed = stat(prefix + ".bin", options), stat_index(prefix, options)
    index = MegatronIndex(listed.url, options, listed=listed)
    index.check_ends(data.size)
    index.close()
    return _OpenedPart(data, listed, index)


def _merged_layout(indexes: Sequence[MegatronIndex]) -> Layout:
    first = indexes[0]
    sequences = documents = 0
    with_modes: dict[bool, MegatronIndex] = {}
    for index in indexes:
        layout = index.layout
        if layout.dtype != first.layout.dtype:
            raise UsageError(
                f"{index.url} holds {layout.dtype.name}, {first.url} {first.layout.dtype.name}; merge datasets of one "
                "dtype, or tokenize the others again"
            )
        if layout.sequences:  # a part without sequences fits both kinds
            with_modes.setdefault(layout.modes, index)
        sequences += layout.sequences
        documents += layout.documents
    if len(with_modes) == 2:
        raise UsageError(
            f"{with_modes[True].url} has modes, {with_modes[False].url} has none; merge datasets of one kind"
        )
    dtype_code(first.layout.dtype)  # raises for dtypes of fairseq that Megatron does not have
    return Layout(first.layout.dtype, sequences, documents + 1, modes=True in with_modes)


def _write_index(indexes: Sequence[MegatronIndex], layout: Layout, file: BinaryIO) -> None:
    writer = IndexWriter(file, layout)
    before = 0
    for index in map_ahead(_load, indexes, _AHEAD):
        sequences, documents = index.layout.sequences, index.layout.documents
        place = end = 0
        for start in range(0, sequences, BLOCK):
            rows = index.rows(start, min(start + BLOCK, sequences))
            place = index.check_rows(rows, start, place)
            writer.add_sequences(rows.lengths, rows.modes)
        for start in range(0, documents, BLOCK):
            ends = index.document_ends(start, min(start + BLOCK, documents))
            end = index.check_document_ends(ends, start, end)
            writer.add_documents(ends + before)
        before += sequences
        index.close()


def _load(index: MegatronIndex) -> MegatronIndex:
    if index.layout.size <= _LOAD:
        index.load()
    return index
