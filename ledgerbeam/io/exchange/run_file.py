"""Run files: the records of a scatter task, by bucket, and in a bucket by key and number.

    0        4C 42 52 55 4E 00 00 03 ("LBRUN", and the version)
             for each bucket that has records: its table, then its blocks
    F        for each bucket an entry of 56 bytes; all zero if the bucket has no records:
             u64 offset of its table, u64 bytes of table and blocks, u32 bytes of the table, u32 blocks,
             u64 bytes of the records plus one for each, u64 records, 16 bytes checksum of the table
    end-64   u64 F, u64 buckets, u64 records, 16 bytes mark of the task that wrote the file (`task_mark`), 16 bytes
             checksum of everything from F up to here, and the first 8 bytes of the file again

    table    for each block: u32 bytes, u32 bytes before compression, u32 records, u32 bytes of the records plus one
             for each, u64 its first number, u32 bytes of its first key, 16 bytes checksum; then the first keys,
             concatenated
    block    a frame of Zstandard: for each record u64 number, u32 bytes of the key, u32 bytes of the record, column by
             column; then the keys, then the records

Records are encoded by `payloads`. The number of a record is usually its place in the source. All integers are
little-endian, checksums are BLAKE3. The checksum of a table covers the checksums of its blocks, and so all records of
its bucket. The bytes of a file depend only on the records, the task, the level of compression and the version of
Zstandard. By the mark of the task, a reader detects an older copy of a file, or another file in its place.
"""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import accumulate, pairwise
from struct import Struct
from typing import Any, NamedTuple

import zstandard
from blake3 import blake3

from ledgerbeam._base.lazy import NDArray, np
from ledgerbeam.errors import RecordError, RunFileError
from ledgerbeam.io.lines.rows import ByteRows
from ledgerbeam.io.storage.urls import is_local

MAGIC = b"LBRUN\0\0\3"
SUFFIX = ".run"
BLOCK_BYTES = 128 * 1024  # before compression; larger blocks make smaller files, smaller ones finer ranges of keys
# Levels of Zstandard. A run file is read once: level 1 takes four times as long, for 0.8 of the size. STORED keeps the
# bytes as they are, because a disk writes them sooner than Zstandard compresses them.
LEVEL, STORED = -3, -131_072

MOST_RECORD = 1 << 30

_CHECKSUM = "V16"
ENTRY = np.dtype(
    [
        ("start", "<u8"),
        ("length", "<u8"),
        ("table", "<u4"),
        ("blocks", "<u4"),
        ("size", "<u8"),
        ("records", "<u8"),
        ("checksum", _CHECKSUM),
    ]
)
_ROW = np.dtype(
    [
        ("length", "<u4"),
        ("plain", "<u4"),
        ("records", "<u4"),
        ("size", "<u4"),
        ("number", "<u8"),
        ("key", "<u4"),
        ("checksum", _CHECKSUM),
    ]
)
_HEAD = Struct("<QQQ16s")  # part of the trailer that its checksum covers
_TRAILER = Struct(f"{_HEAD.format}16s8s")
NO_TASK = bytes(16)  # the mark of a run file that no task has written
RECORD_BYTES = 16  # bytes of a record in a block besides its key and payload: its number and two lengths
Cuts = Sequence[bytes]  # the least key of each bucket except the first, in ascending order


def encode_run(
    keys: Iterable[bytes],
    numbers: NDArray[np.uint64],
    payloads: Iterable[bytes],
    cuts: Cuts,
    block_bytes: int = BLOCK_BYTES,
    *,
    mark: bytes = NO_TASK,
    level: int = LEVEL,
) -> bytes:
    """Return a run file as bytes. Record `i` has `keys[i]`, `payloads[i]` and `numbers[i]`. Numbers ascend.

    `cuts` are the least keys of buckets. A block has about `block_bytes`. RecordError: a key or a record is too long.
    """
    each = ByteRows.of(keys)
    order = each.order()
    records = _SortedRows(each.at(order), numbers[order], ByteRows.of(payloads).at(order))
    return write_run(records, cuts, block_bytes, mark=mark, level=level)


class SortedRecords(ABC):
    """The sorted records of a run file, as the writer reads them.

    Args:
        sizes: Bytes of each record.
        key_sizes: Bytes of each key, or of any key.
    """

    def __init__(self, sizes: NDArray[np.int64], key_sizes: NDArray[np.int64] | int) -> None:
        self.sizes = sizes
        self._ends = np.cumsum(sizes + (key_sizes + RECORD_BYTES))

    def __len__(self) -> int:
        return len(self.sizes)

    @abstractmethod
    def bound(self, cut: bytes, first: int) -> int:
        """Return the number of records whose keys are less than `cut`. The search starts at the record `first`."""

    @abstractmethod
    def first(self, place: int) -> tuple[int, bytes]:
        """Return the number and the key of the record at a position."""

    @abstractmethod
    def block(self, start: int, stop: int) -> bytes:
        """Return the records `[start, stop)` as a block, before compression."""

    def size(self, start: int, stop: int) -> int:
        """Return the size of the records `[start, stop)` in bytes, without keys, plus one byte for each record."""
        return int(self.sizes[start:stop].sum()) + stop - start

    def block_ends(self, start: int, stop: int, block_bytes: int) -> Iterator[int]:
        """Divide the records `[start, stop)` into blocks of about `block_bytes`; yield the end of each block."""
        while start < stop:
            before = int(self._ends[start - 1]) if start else 0
            start = min(max(int(self._ends.searchsorted(before + block_bytes, "right")), start + 1), stop)
            yield start


def write_run(
    records: SortedRecords, cuts: Cuts, block_bytes: int = BLOCK_BYTES, *, mark: bytes = NO_TASK, level: int = LEVEL
) -> bytes:
    """Return a run file of sorted records; see `encode_run`."""
    bounds = [0]
    for cut in cuts:
        bounds.append(records.bound(cut, bounds[-1]))
    bounds.append(len(records))
    writer = _Writer(block_bytes, level)
    entries = np.zeros(len(bounds) - 1, ENTRY)
    for bucket, (start, stop) in enumerate(pairwise(bounds)):
        if start < stop:
            entries[bucket] = writer.bucket(records, start, stop)
    return writer.finish(entries.tobytes(), len(entries), len(records), mark)


def encode_sorted(
    parts: Iterable[RunBlock], cuts: Cuts, block_bytes: int = BLOCK_BYTES, *, mark: bytes = NO_TASK, level: int = LEVEL
) -> tuple[bytes, int]:
    """Return a run file of records that are already sorted, and the number of records; see `encode_run`.

    Only the file and the records of one bucket are in memory.
    """
    writer = _Writer(block_bytes, level)
    entries = np.zeros(len(cuts) + 1, ENTRY)
    held: list[RunBlock] = []
    bucket = count = 0

    def write() -> None:
        if held:
            block = RunBlock.concatenated(held)
            entries[bucket] = writer.bucket(_SortedRows(block.keys, block.numbers, block.payloads), 0, len(block))
        held.clear()

    for part in parts:
        start = 0
        while start < len(part):
            stop = bisect_left(part.keys, cuts[bucket], start) if bucket < len(cuts) else len(part)
            if start < stop:
                held.append(part.at(slice(start, stop)))
            start = stop
            if start < len(part):
                write()
                bucket += 1
        count += len(part)
    write()
    return writer.finish(entries.tobytes(), len(entries), count, mark), count


class _SortedRows(SortedRecords):
    """Records sorted by key and number."""

    def __init__(self, keys: ByteRows, numbers: NDArray[np.uint64], payloads: ByteRows) -> None:
        self._keys, self._numbers, self._payloads = keys, numbers, payloads
        if len(keys) and max(keys.lengths.max(), payloads.lengths.max()) > MOST_RECORD:
            raise RecordError(f"expected records and keys of at most {MOST_RECORD:,} bytes each; drop larger records")
        super().__init__(payloads.lengths, keys.lengths)

    def bound(self, cut: bytes, first: int) -> int:
        return bisect_left(self._keys, cut, first)

    def first(self, place: int) -> tuple[int, bytes]:
        return int(self._numbers[place]), self._keys[place]

    def block(self, start: int, stop: int) -> bytes:
        keys, payloads = self._keys[start:stop], self._payloads[start:stop]
        sizes = (rows.lengths.astype("<u4").tobytes() for rows in (keys, payloads))
        return b"".join([self._numbers[start:stop].astype("<u8").tobytes(), *sizes, keys.joined(), payloads.joined()])


class _Writer:
    def __init__(self, block_bytes: int, level: int) -> None:
        self._block_bytes = block_bytes
        self._file = io.BytesIO()  # `getvalue` returns its bytes without a copy
        self._file.write(MAGIC)
        # A new one for each file, so that earlier data cannot influence the bytes.
        self._compress = zstandard.ZstdCompressor(level=level, write_checksum=False, write_content_size=True).compress

    def bucket(self, records: SortedRecords, start: int, stop: int) -> tuple[Any, ...]:
        """Write the records `[start, stop)` as a bucket; return its entry, the values of `ENTRY`."""
        file, begin = self._file, self._file.tell()
        ends = [start, *records.block_ends(start, stop, self._block_bytes)]
        firsts = [records.first(first) for first in ends[:-1]]
        rows, keys = np.zeros(len(firsts), _ROW), b"".join([key for _, key in firsts])
        file.write(bytes(rows.nbytes + len(keys)))  # room for the table, which is written after the blocks
        for row, ((number, key), (first, last)) in enumerate(zip(firsts, pairwise(ends), strict=True)):
            plain = records.block(first, last)
            data = self._compress(plain)
            file.write(data)
            about = number, len(key), _checksum(data)
            rows[row] = len(data), len(plain), last - first, records.size(first, last), *about
        stop_at = file.tell()
        table = rows.tobytes() + keys
        file.seek(begin)
        file.write(table)
        file.seek(stop_at)
        size = int(rows["size"].sum())
        return begin, stop_at - begin, len(table), len(rows), size, stop - start, _checksum(table)

    def finish(self, footer: bytes, buckets: int, records: int, mark: bytes) -> bytes:
        """Write the entries (`footer`) and the trailer; return the bytes of the file."""
        head = _HEAD.pack(self._file.tell(), buckets, records, mark)
        self._file.writelines([footer, head, _checksum(footer + head), MAGIC])
        return self._file.getvalue()


def level_in(folder: str) -> int:
    """Return the level of compression for run files in a folder: `STORED` if it is local, else `LEVEL`."""
    return STORED if is_local(folder) else LEVEL


def tail_bytes(buckets: int) -> int:
    """Return the number of bytes at the end of a run file that describe its buckets."""
    return buckets * ENTRY.itemsize + _TRAILER.size


def task_mark(source_id: bytes, first: int) -> bytes:
    """Return the mark of the run file that a task writes, from its source and its first record in the source."""
    return blake2b(b"%s%d" % (source_id, first), digest_size=16, person=b"lb.task").digest()


def parse_footer(data: bytes, size: int, buckets: int, url: str, mark: bytes = NO_TASK) -> NDArray[np.void]:
    """Return the entries of the buckets of a run file of `size` bytes, given its last bytes (see `tail_bytes`).

    RunFileError: the file is damaged or no run file, has another number of buckets, or was written by another task.
    """
    if len(data) < _TRAILER.size or data[-len(MAGIC) :] != MAGIC:
        raise damaged(url, f"expected a run file that ends with {MAGIC!r}, found {data[-len(MAGIC) :]!r}")
    start, found, records, of, checksum, _ = _TRAILER.unpack(data[-_TRAILER.size :])
    if (found, start) != (buckets, place := size - tail_bytes(buckets)):
        raise damaged(
            url, f"expected a footer of {buckets:,} buckets at byte {place:,}, found one of {found:,} at byte {start:,}"
        )
    footer = data[len(data) - tail_bytes(buckets) : -_TRAILER.size]
    if len(footer) != buckets * ENTRY.itemsize or _checksum(footer + data[-_TRAILER.size :][: _HEAD.size]) != checksum:
        raise damaged(url, "the footer does not match its checksum")
    entries: NDArray[np.void] = np.frombuffer(footer, ENTRY)
    if int(entries["records"].sum()) != records:
        raise damaged(url, f"expected {records:,} records, found {int(entries['records'].sum()):,} in its buckets")
    if of != mark:
        raise damaged(url, "another task has written it: it is an older copy, or a copy of another file")
    return entries


@dataclass(frozen=True)
class BlockTable:
    """The table of the blocks of a bucket."""

    starts: list[int]  # offset of each block in the file, and the end of the last block
    plain: list[int]  # bytes of each block before compression
    sizes: list[int]  # bytes of the records of each block, plus one for each record
    records: list[int]  # number of records of each block
    keys: list[bytes]  # the first key of each block
    numbers: list[int]  # the number of the first record of each block
    checksums: list[bytes]  # checksum of each block


def parse_table(data: bytes, entry: Any, url: str) -> BlockTable:
    """Return the table of a bucket, given its bytes and its entry. Raises RunFileError if it is damaged."""
    count, first = int(entry["blocks"]), int(entry["start"]) + int(entry["table"])
    if _checksum(data) != entry["checksum"].tobytes():
        raise damaged(url, f"the table of blocks at byte {int(entry['start']):,} does not match its checksum")
    rows = np.frombuffer(data, _ROW, count=count) if count * _ROW.itemsize <= len(data) else np.zeros(0, _ROW)
    keys, place = [], count * _ROW.itemsize
    for size in rows["key"].tolist():
        keys.append(data[place : place + size])
        place += size
    starts = list(accumulate(rows["length"].tolist(), initial=first))
    expected = len(data), starts[-1], int(entry["records"])
    if (place, int(entry["start"]) + int(entry["length"]), int(rows["records"].sum())) != expected:
        raise damaged(url, f"the table of blocks at byte {int(entry['start']):,} does not fit the footer")
    return BlockTable(
        starts,
        rows["plain"].tolist(),
        rows["size"].tolist(),
        rows["records"].tolist(),
        keys,
        rows["number"].tolist(),
        [row.tobytes() for row in rows["checksum"]],
    )


@dataclass(frozen=True, eq=False)
class RunBlock:
    """Sorted records of one bucket of one run file."""

    keys: ByteRows  # keys of the records
    numbers: NDArray[np.uint64]  # numbers of the records
    payloads: ByteRows  # the records

    @classmethod
    def concatenated(cls, blocks: Sequence[RunBlock]) -> RunBlock:
        """Return the records of several blocks as one."""
        if len(blocks) == 1:
            return blocks[0]
        return cls(
            ByteRows.concatenated([block.keys for block in blocks]),
            np.concatenate([np.zeros(0, np.uint64), *(block.numbers for block in blocks)]),
            ByteRows.concatenated([block.payloads for block in blocks]),
        )

    def __len__(self) -> int:
        return len(self.keys)

    def at(self, places: Any) -> RunBlock:
        """Return the records at some positions, or the records of a slice."""
        return RunBlock(self.keys.at(places), self.numbers[places], self.payloads.at(places))


class BlockColumns(NamedTuple):
    """A block, checked and decompressed."""

    plain: bytes  # the bytes of the block
    numbers: NDArray[np.uint64]  # numbers of its records
    key_ends: NDArray[np.int64]  # end of each key in the bytes
    ends: NDArray[np.int64]  # end of each record; the first record begins at the end of the last key


def open_block(data: bytes, table: BlockTable, block: int, url: str) -> BlockColumns:
    """Check and decompress a block, given its number in the table; raises RunFileError if it is damaged."""
    where = f"the block at byte {table.starts[block]:,}"
    if _checksum(data) != table.checksums[block]:
        raise damaged(url, f"{where} does not match its checksum")
    size, count = table.plain[block], table.records[block]
    try:
        found = zstandard.frame_content_size(data)
        if found != size or not 0 < count * RECORD_BYTES <= size:
            raise damaged(url, f"{where}: expected {size:,} bytes of {count:,} records, found {found:,}")
        plain = zstandard.ZstdDecompressor().decompress(data)
    except zstandard.ZstdError as error:
        raise damaged(url, f"{where} cannot be decompressed: {error}") from error
    numbers = np.frombuffer(plain, "<u8", count)
    key_sizes = np.frombuffer(plain, "<u4", count, 8 * count)
    sizes = np.frombuffer(plain, "<u4", count, 12 * count)
    key_ends = np.cumsum(key_sizes, dtype=np.int64) + RECORD_BYTES * count
    ends = np.cumsum(sizes, dtype=np.int64) + int(key_ends[-1])
    if int(ends[-1]) != size:
        raise damaged(url, f"{where}: expected its records to end at {size:,}, found {int(ends[-1]):,}")
    return BlockColumns(plain, numbers, key_ends, ends)


def decode_block(data: bytes, table: BlockTable, block: int, url: str) -> RunBlock:
    """Return the records of a block; see `open_block`."""
    plain, numbers, key_ends, ends = open_block(data, table, block, url)
    keys = ByteRows.consecutive(plain, key_ends, first=RECORD_BYTES * len(numbers))
    return RunBlock(keys, numbers, ByteRows.consecutive(plain, ends, first=int(key_ends[-1])))


def _checksum(data: bytes) -> bytes:
    return blake3(data).digest(16)


def damaged(url: str, what: str) -> RunFileError:
    """Return the error for a damaged run file."""
    return RunFileError(
        f"{url}: {what}; delete this file and run the same command again, which writes it again from its source"
    )
