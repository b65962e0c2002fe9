"""Joining Megatron datasets: the `.bin` as bytes, the `.idx` by arithmetic on its arrays."""

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
_LOAD = 8 * 1024 * 1024  # an index up to this size is read at once


class _OpenedPart(NamedTuple):
    """A dataset to be joined, as it is when the merge begins."""

    data: FileInfo
    listed: FileInfo
    arrays: MegatronIndex


def merge_megatron(prefixes: Sequence[str], output: str, options: Options | None = None) -> Layout:
    """Join datasets in the given order.

    The result is byte for byte what one builder writes that is given all documents, and what Megatron's `add_index`
    makes; so it does not matter into how many parts a build was cut. Each part is checked entry by entry on the way.
    The `.bin` is copied by the kernel, or inside S3 by the server, else streamed. Memory is bounded by blocks of
    about a million sequences.

    Args:
        prefixes: Of the datasets, at least one, or the names of their `.bin`. fairseq's may be among them; each of
            their sequences is a document.
        output: Prefix of the result, which appears when all is complete, the `.idx` last.
        options: Storage options of all of them.

    Returns:
        The layout of the result: its dtype, sequences and documents.

    Raises:
        ChangedSourceError: A part was changed while it was read; nothing was published. Or another process has written
            the result at the same time; see `require_own`.
        IndexMismatchError: The two files of a part do not fit each other.
        IndexNotFoundError: A part has no `.idx`.
        SourceNotFoundError: A part has no `.bin`.
        UsageError: No parts, parts of different dtypes or with and without modes, or an output that is one of them, or
            where another file lies. A dataset is replaced, and so is the `.bin` of a merge that was killed.
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
    layout = _joined(indexes)
    require_replaceable(target, sum(source.size for source in sources), options)
    for ending in (".bin", ".idx"):  # what killed merges were writing takes the room of the result
        remove_stale_temporaries_of(target + ending)
    with publish(target + ".idx", options) as file:
        with SourceWatch([*sources, *(part.listed for part in parts)]) as watch:
            _write_index(indexes, layout, file)
        with concatenated(sources, target + ".bin", options):
            watch.check()  # the index of one content must not come to the tokens of another
            delete(target + ".idx", options)  # no reader may find a former one with the new `.bin`
        own = stat(target + ".bin", options)
    require_own(own, options)
    return layout


def require_replaceable(output: str, size: int, options: Options | None = None) -> None:
    """Check that nothing lies where a dataset is to be written, or what a merge replaces.

    Args:
        output: Its prefix.
        size: Bytes of the `.bin` to be written, by which that of a merge that was killed is known.
        options: Storage options.

    Raises:
        UsageError: There is an `.idx` of another format, or a `.bin` of another size that no `.idx` is of.
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
    """Return whether an index is that of a `.bin` of some bytes."""
    try:
        index.check_ends(size)
    except IndexMismatchError:
        return False
    finally:
        index.close()
    return True


def _is_same(target: str, place: str) -> bool:
    """Return whether two prefixes are of one dataset, also where a link leads to its folder or its file."""
    if target == place or not (is_local(target) and is_local(place)):
        return target == place
    with suppress(OSError):  # one of them does not exist
        return os.path.samefile(target + ".bin", place + ".bin")
    return False


def _open(prefix: str, options: Options | None) -> _OpenedPart:
    """Describe the files of a part, and check that they fit by size."""
    data, listed = stat(prefix + ".bin", options), stat_index(prefix, options)
    index = MegatronIndex(listed.url, options, listed=listed)
    index.check_ends(data.size)
    index.close()
    return _OpenedPart(data, listed, index)


def _joined(indexes: Sequence[MegatronIndex]) -> Layout:
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
        if layout.sequences:  # without any, none can have a mode
            with_modes.setdefault(layout.modes, index)
        sequences += layout.sequences
        documents += layout.documents
    if len(with_modes) == 2:
        raise UsageError(
            f"{with_modes[True].url} has modes, {with_modes[False].url} has none; merge datasets of one kind"
        )
    dtype_code(first.layout.dtype)  # fairseq has dtypes that Megatron has not
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
