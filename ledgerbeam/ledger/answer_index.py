"""Index of the answers that jobs keep at a URL: finds the block with the answer of a request.

Each host has its own index, a file in the sidecar folder of the URL. It has the names and sizes of the files at the
URL, and a row for each answer, sorted by the beginning of its key. Processes map the file. Under a lock, one of them
replaces it when files were added or removed. A block is decoded, and the whole key compared, before an answer is used.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import tempfile
import threading
from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import Future
from contextlib import closing, suppress
from functools import lru_cache
from typing import Any

from ledgerbeam._base.lazy import NDArray, asyncio, np
from ledgerbeam._base.process import library_logger
from ledgerbeam.errors import ChangedSourceError, SourceNotFoundError
from ledgerbeam.io.storage.publish import publish
from ledgerbeam.io.storage.ranges import RangeReader
from ledgerbeam.ledger.answer_files import (
    DAMAGED,
    ENTRY,
    PACKED,
    AnswersPlace,
    blocks_of,
    entries_in,
    plain_of,
    threads,
)
from ledgerbeam.ledger.opening import sidecar_folder

_log = library_logger(__name__)

_HEADER = struct.Struct("<8sQ")  # version, and bytes of the names of files
_VERSION = b"answers1"
_ROW = {"key": "<u8", "at": "<u8", "file": "<u4", "size": "<u4", "place": "<u4"}
_ROWS = 2**20  # that are sorted at once
_CACHED = 32  # decoded blocks


class _MappedIndex:
    """The index, mapped. `rows` is sorted by key; `files` has sizes by name, in the order of their numbers."""

    def __init__(self, path: str) -> None:
        with open(path, "rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        version, size = _HEADER.unpack_from(data)
        if version != _VERSION:
            raise ValueError(path)
        names = data[_HEADER.size : _HEADER.size + size].decode().splitlines()
        self.files = {name: int(length) for length, _, name in (line.partition(" ") for line in names)}
        self.names = [*self.files]
        self.rows = np.frombuffer(data, _row_type(), offset=_HEADER.size + size)
        self._keys = self.rows["key"]

    def rows_of(self, key: bytes) -> Iterator[tuple[str, int, int, int]]:
        """Yield the rows that may have the answer of a request.

        A row is the name of a file, the offset and the bytes of a block in it, and the place of the answer among the
        decoded entries.
        """
        wanted = _beginning(key)
        for number in range(bisect_left(self._keys, wanted), len(self._keys)):
            found, at, file, size, place = self.rows[number].item()
            if found != wanted:
                return
            yield self.names[file], at, size, place

    def between(self, start: int, stop: int) -> NDArray[Any]:
        """Return the rows with keys in a range."""
        return self.rows[bisect_left(self._keys, start) : bisect_left(self._keys, stop)]


def _row_type() -> np.dtype[Any]:
    return np.dtype([*_ROW.items()])


def _beginning(key: bytes) -> int:
    return int.from_bytes(key[:8], "big")


class AnswerIndex:
    """The answers at a place for one process, which may be a few seconds old. `find` is for one event loop."""

    def __init__(self, place: AnswersPlace) -> None:
        self._place = place
        self._home = sidecar_folder(f"kept-{place.folder}")
        self._path = os.path.join(self._home, "index")
        self._table: _MappedIndex | None = None
        self._changing = threading.Lock()
        self._blocks = lru_cache(_CACHED)(lambda *block: threads().submit(_read, place, *block))

    def update(self) -> None:
        """Read the index; the first time also index new files. Later it indexes files that were packed meanwhile."""
        with self._changing:
            if self._table is None and self._place.is_indexed:
                self._table = self._existing()
            if self._table is None:
                self._table = self._synced(is_full=True)
            elif any(name not in self._table.files for name in self._place.files(PACKED)):
                self._table = self._synced()

    def _renew(self, stale: _MappedIndex, gone: Collection[str]) -> None:
        """Read the index without files that are gone, and with the files into which they were packed."""
        with self._changing:
            if self._table is stale:
                self._table = self._synced(gone)

    async def find(self, key: bytes) -> bytes | None:
        """Return the stored answer of a request; None without one."""
        if self._table is None:
            await _result(threads().submit(self.update))
        while table := self._table:
            gone: set[str] = set()
            for name, *block, place in table.rows_of(key):
                reading = self._blocks(name, *block)
                try:
                    plain = await _result(reading)
                except SourceNotFoundError:
                    gone.add(name)
                    continue
                finally:
                    if reading.done() and reading.exception():
                        self._blocks.cache_clear()
                if plain[place : place + len(key)] == key:
                    start = place + ENTRY.size
                    found: bytes = plain[start : start + ENTRY.unpack_from(plain, place)[1]]
                    return found
            if not gone:
                break
            await _result(threads().submit(self._renew, table, gone))
        return None

    def _existing(self) -> _MappedIndex | None:
        try:
            return _MappedIndex(self._path)
        except (OSError, ValueError, struct.error):  # missing, or damaged: it is built again
            return None

    def _synced(self, gone: Collection[str] = (), *, is_full: bool = False) -> _MappedIndex:
        """Return the index after an update by all files, or by the packed files and without those that are gone."""
        os.makedirs(self._home, exist_ok=True)
        with open(os.path.join(self._home, "lock"), "wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            while True:
                table = self._existing()
                known = {} if table is None else table.files
                is_full = is_full or table is None
                listed = self._place.files("" if is_full else PACKED)
                kept = {
                    name: size
                    for name, size in known.items()
                    if (listed.get(name) == size if is_full or name.startswith(f"{PACKED}/") else name not in gone)
                }
                fresh = {name: size for name, size in listed.items() if name not in kept}
                if table is not None and not fresh and len(kept) == len(known):
                    return table
                with tempfile.TemporaryFile(dir=self._home) as added:
                    if self._add(fresh, kept, added):
                        self._replace(table, kept, added)
                        return _MappedIndex(self._path)

    def _add(self, fresh: Mapping[str, int], files: dict[str, int], added: Any) -> bool:
        """Write the unsorted rows of files, and add these to `files`. False: a file is gone, so list them again."""
        for name, data in self._place.contents(fresh):
            if data is None:
                return False
            for at, size, plain in blocks_of(data, f"{self._place.folder}/{name}"):
                found = [(_beginning(key), at, len(files), size, place) for place, key, _ in entries_in(plain)]
                added.write(np.array(found, _row_type()).data)
            files[name] = len(data)
        added.flush()
        return True

    def _replace(self, table: _MappedIndex | None, files: Mapping[str, int], added: Any) -> None:
        """Write the index with the rows of `table` whose files are in `files`, and the added rows."""
        new = np.memmap(added, _row_type(), "r") if os.fstat(added.fileno()).st_size else np.empty(0, _row_type())
        parts = 1 + (len(new) + (0 if table is None else len(table.rows))) // _ROWS
        numbers = {name: number for number, name in enumerate(files)}
        renumbered = np.array([numbers.get(name, -1) for name in ([] if table is None else table.names)], np.int64)
        names = "".join(f"{size} {name}\n" for name, size in files.items()).encode()
        with publish(self._path) as file:
            file.write(_HEADER.pack(_VERSION, len(names)) + names)
            for part in range(parts):
                start, stop = (2**64 * one // parts for one in (part, part + 1))
                some = []
                if table is not None:
                    rows = table.between(start, stop)
                    rows = rows[renumbered[rows["file"]] >= 0]
                    rows["file"] = renumbered[rows["file"]]
                    some.append(rows)
                for first in range(0, len(new), _ROWS):
                    chunk = new[first : first + _ROWS]
                    some.append(chunk[(chunk["key"] >= start) & (chunk["key"] <= stop - 1)])
                rows = np.concatenate([new[:0], *some])
                file.write(rows[np.argsort(rows["key"], kind="stable")].data)


def _read(place: AnswersPlace, name: str, at: int, size: int) -> bytes:
    """Return the decoded entries of a block; empty for a damaged block."""
    url = f"{place.folder}/{name}"
    with closing(RangeReader(url, dict(place.options))) as reader, suppress(ChangedSourceError):  # it is shorter now
        if (plain := plain_of(reader.read(at, at + size))) is not None:
            return plain
    _log.warning(DAMAGED, url, at)
    return b""


async def _result(future: Future[Any]) -> Any:
    return future.result() if future.done() else await asyncio.shield(asyncio.wrap_future(future))


_known: tuple[int, AnswersPlace, AnswerIndex] | None = None


def index_of(place: AnswersPlace) -> AnswerIndex:
    """Return the index of a place, which a process has once for each run."""
    global _known  # noqa: PLW0603 - one for the process
    known = _known
    if known is None or known[0] != os.getpid() or known[1] != place:
        known = _known = os.getpid(), place, AnswerIndex(place)
    return known[2]
