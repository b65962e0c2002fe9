"""The files that the tables read. They are made once, in `.cache/bench`, and are the same on every machine."""

from __future__ import annotations

import random
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

VERSION = 2
"""Part of the name of the folder. Change it with the content of the files."""

GIGABYTE = 1_000_000_000
MANY_SOURCES = 1_000_000
LINE_TEXT = (350, 750)  # characters of text a line, so that lines have about 600 bytes
MEMBER_BYTES = 20_000
PAIR_BYTES = 20_480
ROW_GROUPS = 64

_POOL = 4 * 1024 * 1024


@dataclass(frozen=True)
class Data:
    """The files of one size, and the sizes of the measurements.

    Attributes:
        folder: Folder of the files.
        size: Size of each large file, in bytes.
        factor: Factor for numbers of records and the like: 1, or 0.1 with `--small`.
        finished: Number of finished sources that a rerun skips.
        full: Whether whole jobs of 10 GB are measured, too.
    """

    folder: Path
    size: int
    factor: float
    finished: int
    full: bool = False

    def count(self, full: int) -> int:
        """Return a number of records or the like, scaled by `factor`."""
        return max(1, int(full * self.factor))

    @property
    def jsonl(self) -> Path:
        """A JSONL file of lines of about 600 bytes."""
        return _once(self.folder / "lines.jsonl", lambda path: _write_jsonl(path, self.size))

    @property
    def members(self) -> Path:
        """A ustar archive of samples of two members, 20 kB each; keys and extensions as WebDataset has them."""
        return _once(self.folder / "energon" / "members.tar", lambda path: _write_members(path, self.size))

    @property
    def pairs(self) -> Path:
        """A Shar archive of pairs: an array of 20,480 bytes and its manifest."""
        return _once(self.folder / "pairs.tar", lambda path: _write_pairs(path, self.size))

    @property
    def parquet(self) -> Path:
        """A Parquet file of the fields of such lines, in 64 row groups."""
        return _once(self.folder / "rows.parquet", lambda path: _write_parquet(path, self.size, ROW_GROUPS))

    @property
    def parquet_part(self) -> Path:
        """A Parquet file of an eighth of the size, with 8 row groups."""
        size, groups = self.size // 8, ROW_GROUPS // 8
        return _once(self.folder / "part.parquet", lambda path: _write_parquet(path, size, groups))

    @property
    def work(self) -> Path:
        """A folder for the outputs of the tables."""
        folder = self.folder / "work"
        folder.mkdir(parents=True, exist_ok=True)
        return folder


def open_data(root: Path, *, small: bool, long: bool, full: bool = False) -> Data:
    """Return the files below `root`. Each file is made at its first use."""
    factor = 0.1 if small else 1.0
    finished = int(MANY_SOURCES * factor) * (10 if long else 1)
    return Data(root / f"{'small' if small else 'full'}-{VERSION}", int(GIGABYTE * factor), factor, finished, full)


def lines(count: int, text: tuple[int, int] = LINE_TEXT, seed: int = 7) -> Iterator[bytes]:
    """Make JSON lines of an id, a speaker and random text."""
    chance = random.Random(seed)
    pool = "".join(chance.choices("abcdefghijklmnopqrstuvwxyz      ", k=_POOL))
    for number in range(count):
        start = chance.randrange(_POOL - text[1])
        record = {
            "id": f"utterance-{number:09d}",
            "speaker": number % 1000,
            "text": pool[start : start + chance.randint(*text)],
        }
        yield orjson.dumps(record) + b"\n"


def _once(path: Path, write: Callable[[Path], None]) -> Path:
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(path.name + ".partial")
        write(partial)
        partial.rename(path)
    return path


def _write_jsonl(path: Path, size: int) -> None:
    with path.open("wb") as file:
        for line in lines(size):
            file.write(line)
            if file.tell() >= size:
                return


def _write_members(path: Path, size: int) -> None:
    _write_tar(path, size, lambda number: [(f"sample-{number:08d}.bin", None), (f"sample-{number:08d}.aux", None)])


def _write_pairs(path: Path, size: int) -> None:
    manifest = {"storage_type": "shar", "storage_path": "", "storage_key": "", "shape": [PAIR_BYTES // 4]}
    described = orjson.dumps(manifest)
    _write_tar(path, size, lambda number: [(f"cut-{number:08d}.npy", None), (f"cut-{number:08d}.json", described)])


def _write_tar(path: Path, size: int, sample: Callable[[int], list[tuple[str, bytes | None]]]) -> None:
    """Write samples until the archive has `size` bytes; a member without content gets random bytes."""
    chance = random.Random(11)
    pool = chance.randbytes(_POOL)
    number = 0
    with path.open("wb") as file, tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        while archive.offset < size:
            for name, content in sample(number):
                length = PAIR_BYTES if name.endswith(".npy") else MEMBER_BYTES
                start = chance.randrange(_POOL - length)
                data = pool[start : start + length] if content is None else content
                header = tarfile.TarInfo(name)
                header.size = len(data)
                file.write(header.tobuf(tarfile.USTAR_FORMAT))
                file.write(data + bytes(-len(data) % tarfile.BLOCKSIZE))
                archive.offset = file.tell()
            number += 1


def _write_parquet(path: Path, size: int, groups: int) -> None:
    """Write row groups of the same number of rows, so many that the file has about `size` bytes."""
    rows = [orjson.loads(line) for line in lines(10_000)]
    sample = pa.Table.from_pylist(rows)
    data = pa.BufferOutputStream()
    pq.write_table(sample, data, compression="zstd", compression_level=3)
    each = max(1, size * len(rows) // (groups * data.tell()))
    with pq.ParquetWriter(path, sample.schema, compression="zstd", compression_level=3) as writer:
        for group in range(groups):
            made = [orjson.loads(line) for line in lines(each, seed=group)]
            writer.write_table(pa.Table.from_pylist(made, schema=sample.schema))
