"""Outputs and sources of a job as its ledger records them: find lost and changed files, and remove stale outputs.

Nothing outside of the folders of the job is ever removed, even if the ledger names it.
"""

from __future__ import annotations

import os
import re
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, compress
from typing import Any, TypeAlias

from ledgerbeam._base.lazy import NDArray, np
from ledgerbeam._base.process import library_logger
from ledgerbeam.errors import LedgerDamagedError, SourceNotFoundError, StorageError
from ledgerbeam.io import Options
from ledgerbeam.io.storage.client import ask_each
from ledgerbeam.io.storage.files import first_link, refuse_links
from ledgerbeam.io.storage.objects import ObjectFolder, list_files, sizes_of
from ledgerbeam.io.storage.publish import remove_stale_temporaries
from ledgerbeam.io.storage.stat import stat
from ledgerbeam.io.storage.urls import canonical_url, is_local
from ledgerbeam.ledger import LedgerStore, Source
from ledgerbeam.ledger.model.rows import OutputColumns
from ledgerbeam.ledger.selection import PendingSource, with_progress
from ledgerbeam.pipelines.jobs.sources import OutputPlace
from ledgerbeam.pipelines.jobs.spec import JobSpec
from ledgerbeam.sources.kind import is_content

_log = library_logger(__name__)

_Keys: TypeAlias = "NDArray[np.uint64]"

_INDEXES = (".idx", ".gzidx")
_PART = re.compile(r"[0-9a-f]{32}-\d+\.part")  # names of the parts of indexes, see `transforms.chain.index`


@dataclass(frozen=True)
class OutputFolder:
    """An output folder whose job is known only from its ledger."""

    output: str
    storage_options: dict[str, Any]

    def output_places(self) -> list[OutputPlace]:
        return [(self.output, "", True)]


Outputs: TypeAlias = JobSpec | OutputFolder


def routes_of(store: LedgerStore) -> list[str]:
    """Return the names of the routes to which a job has written records."""
    return sorted(name for name in store.status()["records"]["written"] if name)


def forget_lost(spec: Outputs, store: LedgerStore) -> int:
    """Make a ledger forget the sources of missing outputs, so that they run again. Return the number of these outputs.

    On a local disk the function checks each output by name, one page at a time. On an object store it lists the folder
    once, with 8 bytes of memory for each output.

    Raises:
        StorageError: An output has another size. An index, which any program may build again, counts as missing then.
        UsageError: A link has replaced a folder of outputs, so its files may belong to others.
    """
    lost = 0
    for page, found in _lost(spec, store, refuse=partial(refuse_links, canonical_url(spec.output or "/"))):
        for name, size, now in zip(page.names, page.sizes, found, strict=True) if spec.output is not None else ():
            if now >= 0:
                raise StorageError(
                    f"{spec.output}/{name}: expected {size:,} bytes, as this job's ledger records, found {now:,}: it "
                    "was cut short or replaced by another file; move it away or delete it: the next run writes it again"
                )
        store.forget_sources(set(page.source_ids))
        lost += len(page.names)
    return lost


def lost_sources(spec: Outputs, store: LedgerStore) -> set[bytes]:
    """Return the IDs of the sources with an output that is missing or has another size than recorded."""
    return {source for page, _ in _lost(spec, store) for source in page.source_ids}


def count_lost(spec: Outputs, store: LedgerStore) -> int:
    """Return the number of outputs that are missing or have another size than recorded."""
    return sum(len(page.names) for page, _ in _lost(spec, store))


def unrecorded(shards: Iterable[list[str]], store: LedgerStore) -> Iterator[list[str]]:
    """Yield the shards that a ledger has not recorded. This needs 8 bytes of memory for each recorded shard.

    A run leaves such a shard if it is killed between publishing and recording it. A later run replaces the shard if it
    splits the source into the same tasks.
    """
    names = (page.names for page in store.output_columns())
    known = np.sort(np.concatenate([_hashes(page) for page in chain([[]], names, store.superseded_names())]))
    for page in shards:
        strange = ~_among(known, _hashes(page))
        if strange.any():
            yield list(compress(page, strange))


def forgotten_outputs(spec: Outputs, store: LedgerStore) -> list[str]:
    """Return the names of existing outputs that a ledger has forgotten and will not write again.

    Their sources are gone, but a reader of the folder would take them for outputs of the job. Call it when all sources
    of the ledger are complete and stale outputs are removed.
    """
    names = {name for page in store.superseded_names() for name in page}
    if not names or spec.output is None:
        return []
    for page in store.output_columns():
        names.difference_update(page.names)
    if is_local(spec.output):
        known = sorted(names)
        below = [f"./{name}" for name in known]  # in a damaged ledger, a name may start with a slash
        return [name for name, size in zip(known, sizes_of(spec.output, below), strict=True) if size >= 0]
    listed = (name for found, _ in _listed(spec, spec.output_places()) for name in found)
    return sorted(names.intersection(listed))


def _lost(
    spec: Outputs, store: LedgerStore, refuse: Callable[[set[str]], None] = lambda _: None
) -> Iterator[tuple[OutputColumns, list[int]]]:
    """Yield the outputs that are missing or have another size than recorded, and their sizes; -1 if missing.

    `refuse` is called with the local folders of each page of outputs, and may raise an error.
    """
    places = spec.output_places()
    if all(is_local(folder) for folder, _, _ in places):
        for page in store.output_columns():
            if spec.output is not None:
                root = canonical_url(spec.output)
                refuse({f"{root}/{folder}" for folder in {name.rpartition("/")[0] for name in page.names}})
            yield from _differing(page, _sizes(spec, page.names))
    else:
        yield from _differing_from_listing(spec, store, places)


def _sizes(spec: Outputs, names: list[str]) -> list[int]:
    """Return the sizes of outputs, checked one by one; -1 if missing."""
    if spec.output is not None:
        return sizes_of(spec.output, names)
    if all(map(is_local, names)):
        return sizes_of("/", names)  # absolute paths
    # Indexes of a list of URLs. Reading the metadata of the sources costs one request each, too.
    return ask_each(partial(_size, options=spec.storage_options), names)


def _size(url: str, options: Options) -> int:
    try:
        return stat(url, options).size
    except SourceNotFoundError:
        return -1


def _differing(page: OutputColumns, found: Sequence[int]) -> Iterator[tuple[OutputColumns, list[int]]]:
    if found != page.sizes:
        differs = [now != size for now, size in zip(found, page.sizes, strict=True)]
        ids, names, sizes = page
        rows = list(compress(ids, differs)), list(compress(names, differs)), list(compress(sizes, differs))
        yield OutputColumns(*rows), list(compress(found, differs))


def _differing_from_listing(
    spec: Outputs, store: LedgerStore, places: Sequence[OutputPlace]
) -> Iterator[tuple[OutputColumns, list[int]]]:
    recorded = np.empty(store.output_count(), np.uint64)
    filled = 0
    for page in store.output_columns():
        keys = _keys(page.names, page.sizes)[: len(recorded) - filled]
        recorded[filled : filled + len(keys)] = keys
        filled += len(keys)
    if not filled:
        return  # forgotten since
    recorded = recorded[:filled]
    recorded.sort()
    seen = np.zeros(filled, np.bool_)
    odd_names, odd_sizes = array("Q"), array("q")
    for names, sizes in _listed(spec, places):
        keys = _keys(names, sizes)
        rows = np.minimum(np.searchsorted(recorded, keys), filled - 1)
        known = recorded[rows] == keys
        seen[rows[known]] = True
        for place in np.flatnonzero(~known).tolist():
            odd_names.append(hash(names[place]) % 2**64)
            odd_sizes.append(sizes[place])
    if not seen.all():
        yield from _named(store, recorded[~seen], np.frombuffer(odd_names, np.uint64), odd_sizes)


def _named(
    store: LedgerStore, missing: _Keys, odd: _Keys, odd_sizes: Sequence[int]
) -> Iterator[tuple[OutputColumns, list[int]]]:
    """Yield the outputs with `missing` keys, and their listed sizes; -1 if not listed.

    `odd` and `odd_sizes` are the hashes of names, and the sizes, of listed files without a recorded key.
    """
    order = np.argsort(odd)
    for page in store.output_columns():
        keys = _keys(page.names, page.sizes)
        found = list(page.sizes)
        for place in np.flatnonzero(_among(missing, keys)).tolist():
            name = np.uint64(hash(page.names[place]) % 2**64)
            at = np.searchsorted(odd, name, sorter=order)
            found[place] = odd_sizes[order[at]] if at < len(odd) and odd[order[at]] == name else -1
        yield from _differing(page, found)


def _listed(spec: Outputs, places: Sequence[OutputPlace]) -> Iterator[tuple[list[str], list[int]]]:
    """Yield names, as in the ledger, and sizes of the files below the folders that may be outputs."""
    for folder, beginning, recursive in places:
        for page in list_files(folder, spec.storage_options, beginning=beginning, recursive=recursive):
            if spec.output is not None:
                yield page.names, page.sizes
            else:
                are_indexes = [name.endswith(_INDEXES) for name in page.names]
                names = [f"{folder}/{name}" for name in compress(page.names, are_indexes)]
                yield names, list(compress(page.sizes, are_indexes))


def _keys(names: Sequence[str], sizes: Sequence[int]) -> _Keys:
    """Return keys of 8 bytes, from the hash of each name and its size. They are valid in this process only."""
    keys: _Keys = _hashes(names) ^ np.fromiter(sizes, np.uint64, len(sizes))
    return keys


def _hashes(names: Sequence[str]) -> _Keys:
    return np.fromiter(map(hash, names), np.int64, len(names)).view(np.uint64)


def _among(known: _Keys, keys: _Keys) -> NDArray[np.bool_]:
    """Return a mask of the keys that are in a sorted array."""
    if not len(known):
        return np.zeros(len(keys), np.bool_)
    found: NDArray[np.bool_] = known[np.minimum(np.searchsorted(known, keys), len(known) - 1)] == keys
    return found


def look_at_files(sources: Sequence[Source], store: LedgerStore) -> list[PendingSource]:
    """Return the progress of sources for the next pass of the local runner, like `with_progress`.

    The ID of a source stays if a local file is replaced by a file of the same size and modification time. So the ledger
    also stores the time of the last change of a file's inode (ctime), which no program can set. If the ctime of a
    partly processed source has changed, its finished tasks are discarded: outputs would come from two contents.
    Planning and reading compare the ctime, too, and fail the tasks if it has changed.
    """
    found = with_progress(sources, store)
    # Sources identified by their content are compared when they are planned.
    looked = {row.source.id: _looked_at(row.source) for row in found}
    times = {known: [file.changed_ns for file in source.members or (source,)] for known, source in looked.items()}
    before = store.file_times(list(times))
    partial = {row.source.id for row in found if len(row.applied) > 1}
    changed = {known for known in partial & before.keys() if any(times[known]) and before[known] != times[known]}
    for known in sorted(changed):
        _log.warning("%s: it changed after parts of it were done; all its tasks run again", looked[known].url)
    if changed:
        store.forget_sources(changed)
        found = with_progress(sources, store)
    store.note_file_times({known: now for known, now in times.items() if any(now) and before.get(known) != now})
    return [replace(row, source=looked.get(row.source.id, row.source)) for row in found]


def _looked_at(source: Source) -> Source:
    if source.members:
        return replace(source, members=tuple(map(_looked_at, source.members)))
    try:
        looks = is_local(source.url) and not is_content(source)
        return replace(source, changed_ns=os.stat(source.url).st_ctime_ns) if looks else source
    except OSError:  # planning reports the error
        return source


def remove_superseded(spec: JobSpec, store: LedgerStore) -> list[str]:
    """Remove outputs that sources no longer produce, and stored parts of the indexes of complete sources.

    Call it only while no worker writes to the ledger. An object that is published but not yet recorded looks stale.

    Returns:
        Names of stale outputs outside of the job's folders, which are kept.

    Raises:
        LedgerDamagedError: An output in the ledger leads out of the job's folders. Nothing was removed.
    """
    require_own_folder(spec.work_folder)
    store.refresh()
    stale = store.stale_outputs()
    places = [_place(spec, name) for name in stale]
    names = defaultdict[str, list[str]](list)
    for root, name in places:
        if root is not None:
            names[root].append(name)
    for root, below in names.items():
        _require_below(root, below, ledger=spec.ledger)
    for root, below in names.items():
        remove_below(root, below, spec.storage_options, ledger=spec.ledger)
    store.drop_stale(stale)
    remove_stale_temporaries(spec.work_folder)
    parts = [name for name in ObjectFolder(spec.work_folder, spec.storage_options).names("") if _PART.fullmatch(name)]
    done = store.completed_mask([bytes.fromhex(name.partition("-")[0]) for name in parts])
    remove_below(spec.work_folder, compress(parts, done), spec.storage_options, ledger=spec.ledger)
    return [name for root, name in places if root is None]


def remove_gone(spec: JobSpec, store: LedgerStore) -> int:
    """Remove the outputs of sources that are missing from the last listing, and make the ledger forget the sources.

    It is for jobs in which each output depends on all sources, so that an output of a missing source would be wrong.
    After a kill, the next run of the job finds the outputs missing and forgets their sources.
    """
    gone = store.gone_ids()
    if not gone or spec.output is None:
        return 0
    names = [row.output.name for row in store.outputs(ordered=False) if row.source_id in gone]
    remove_below(spec.output, names, spec.storage_options, ledger=spec.ledger)
    store.forget_sources(gone)
    return len(names)


def count_superseded(store: LedgerStore) -> int:
    """Return the number of outputs that `remove_superseded` would remove."""
    store.refresh()
    return len(store.stale_outputs())


def _place(spec: JobSpec, name: str) -> tuple[str | None, str]:
    """Return the folder of the job that contains an output, and the name relative to it; None if no folder does.

    An index job names its outputs by URL. If folders of the job are nested, the result is the innermost.
    """
    if spec.output is not None:
        return spec.output, name
    url = canonical_url(name)
    for folder in sorted(spec.folders(), reverse=True):
        root = f"{folder.rstrip('/')}/"
        if url.endswith(_INDEXES) and url.startswith(root):
            return folder, url.removeprefix(root)
    return None, name


def sweep_temporaries(spec: JobSpec) -> None:
    """Remove the temporary files of killed writers in all folders of the job. Files of live writers stay."""
    for folder in spec.folders():
        remove_stale_temporaries(folder)


def remove_below(root: str, names: Iterable[str], options: Options, *, ledger: str, prune: bool = False) -> None:
    """Remove objects below a folder, durably. Missing ones are skipped. A link is removed, not followed.

    All names are checked by `_require_below` before the first removal.

    Args:
        root: The folder; it may be a link itself.
        prune: Whether to remove local folders that become empty, including `root`.

    Raises:
        LedgerDamagedError: A name leads out of the folder, by ``..`` or through a link.
    """
    chosen = list(names)
    parents = _require_below(root, chosen, ledger=ledger)
    ObjectFolder(root, options).delete(chosen)
    base = f"{canonical_url(root).rstrip('/')}/"
    for empty in parents if prune else ():
        with suppress(OSError):  # not empty
            while f"{empty}/".startswith(base):
                os.rmdir(empty)
                empty = os.path.dirname(empty)  # noqa: PLW2901


def _require_below(root: str, names: Sequence[str], *, ledger: str) -> set[str]:
    """Check that names are below a folder, which may be a link itself, and return the local folders of the files.

    A program that can write to a ledger can store any name in it.
    """
    for name in names:
        if not name or "\0" in name or ".." in name.split("/"):
            _refuse(name, root, ledger)
    if not is_local(root):
        return set()
    base = canonical_url(root).rstrip("/")
    parents = {os.path.dirname(f"{base}/{name}") for name in names}
    outside = {parent for parent in parents if first_link(base, parent) is not None}
    for name in names:
        if os.path.dirname(f"{base}/{name}") in outside:
            _refuse(name, root, ledger)
    return parents


def require_own_folder(url: str) -> None:
    """Raise StorageError if the place of a folder for a ledger's own files has a file, or a link."""
    if is_local(url) and os.path.lexists(url) and (os.path.islink(url) or not os.path.isdir(url)):
        raise StorageError(
            f"{url}: expected a folder for notes, marks or parts of indexes of the ledger, found a link or a file, "
            "which stays unchanged. Move it away and run the same command again"
        )


def _refuse(name: str, root: str, ledger: str) -> None:
    raise LedgerDamagedError(
        f"ledger {ledger}: the stale output {name!r} leads out of {root}; nothing was removed. If a link in that "
        "folder leads elsewhere, put a folder in its place. Otherwise another program has changed the ledger: restore "
        "it from a copy, or give another --ledger"
    )
