"""Hostile tar archives, walked and read by both implementations: `python -m tests.io.fuzz_native COUNT [SEED]`."""

from __future__ import annotations

import io
import random
import sys
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from ledgerbeam.errors import ArchiveError, LedgerbeamError
from ledgerbeam.io import native
from ledgerbeam.io.index.file import write_index
from ledgerbeam.io.tar.grouping import Grouping, group_key
from ledgerbeam.io.tar.reader import TarReader
from ledgerbeam.io.tar.sample import Sample
from ledgerbeam.io.tar.walk import TarMembers, walk_bytes, walk_tar
from tests.io.fuzzing import limit_memory

_BLOCK = 512
_FORMATS = (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)
_KINDS = b"0000000\x00A7123456SxgLKX"
_NAMES = ("a.wav", "a.json", "b.seg.png", "d/é.txt", "d/.hidden", "__x__/y.z", "n", "l/" * 60 + "x.y", "d/\udcff.a")
_FIELDS = ((0, 100), (124, 12), (148, 8), (156, 1), (257, 8), (345, 155), (482, 1))
_SIZES = (
    b"\x80" + b"\0" * 10 + b"\x07",
    b"\x80" + b"\xff" * 11,
    b"\xff" * 12,
    b"77777777777\0",
    b"00000000010 ",
    b"     100 \0\0\0",
    b"-0000000001\0",
    b"0_000000100\0",
    b"0o000000100\0",
    b"\0" * 12,
    b"000000001000",
)


def archive(chance: random.Random) -> bytearray:
    """Return a small archive of a few members of any kind."""
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w", format=chance.choice(_FORMATS)) as tar:
        for _ in range(chance.randrange(1, 6)):
            info = tarfile.TarInfo(chance.choice(_NAMES))
            info.size = chance.choice((0, 0, 1, 511, 512, 513, 1500))
            info.mtime = chance.choice((0, 0, 1.5))
            tar.addfile(info, io.BytesIO(bytes(info.size)))
    end = target.tell() if chance.random() < 0.5 else len(target.getvalue().rstrip(b"\0")) + _BLOCK
    return bytearray(target.getvalue()[:end])


def mutate(data: bytearray, chance: random.Random) -> None:
    """Damage an archive; mostly a header, and mostly so that its checksum fits again."""
    block = chance.randrange(max(1, len(data) // _BLOCK)) * _BLOCK
    start, size = chance.choice(_FIELDS)
    what = chance.randrange(7)
    if what == 0:
        data[block + start : block + start + size] = chance.randbytes(size)
    elif what == 1:
        data[block + 124 : block + 136] = chance.choice(_SIZES)
    elif what == 2:
        data[block + 156 : block + 157] = bytes([chance.choice(_KINDS)])
    elif what == 3:
        place = min(block + chance.randrange(_BLOCK), len(data) - 1)
        data[place] ^= 1 << chance.randrange(8)
    elif what == 4:
        del data[chance.randrange(len(data)) :]
    elif what == 5:
        data[block:block] = chance.randbytes(_BLOCK) if chance.random() < 0.5 else data[:_BLOCK]
    else:
        data[block + 124 : block + 136] = b"%011o\0" % chance.choice((chance.randrange(3000), chance.randrange(8**11)))
    if chance.random() < 0.8 and block + _BLOCK <= len(data):
        data[block + 148 : block + 156] = b" " * 8
        data[block + 148 : block + 156] = b"%06o\0 " % sum(data[block : block + _BLOCK])


@contextmanager
def pure_python() -> Iterator[None]:
    """Use the implementation in Python."""
    kept, native.compiled = native.compiled, None
    try:
        yield
    finally:
        native.compiled = kept


def outcome(walk: Callable[[], TarMembers]) -> Any:
    """Return the result of a walk and its grouping, or their error."""
    try:
        found = walk()
        columns = (found.header_offset, found.data_offset, found.size, found.kind)
        told = found.names, found.end, found.consumed, [(column.dtype, column.tolist()) for column in columns]
    except ArchiveError as error:
        return str(error)
    try:
        return told, group_key(found, "x").tolist()
    except ArchiveError as error:
        return told, str(error)


def require_equal(walk: Callable[[], TarMembers], data: bytes) -> bool:
    """Raise unless both implementations have the same result; return whether it is an error."""
    compiled = outcome(walk)
    with pure_python():
        python = outcome(walk)
    if compiled != python:
        raise RuntimeError(f"{data!r}:\ncompiled: {compiled}\nPython: {python}")
    return isinstance(python, str)


def fuzz(count: int, seed: int, folder: Path) -> int:
    """Walk `count` damaged archives from memory, and each tenth from a file; return how many were errors."""
    chance = random.Random(seed)
    path = folder / "fuzz.tar"
    errors = 0
    for number in range(count):
        data = archive(chance) if chance.random() < 0.97 else bytearray(chance.randbytes(chance.randrange(1, 3000)))
        for _ in range(chance.choice((0, 1, 1, 1, 2, 3))):
            if data:
                mutate(data, chance)
        content = bytes(data)
        errors += require_equal(lambda: walk_bytes(content, "x"), content)  # noqa: B023 - called at once
        if number % 10 == 0:
            path.write_bytes(content)
            require_equal(lambda: walk_tar(str(path)), content)
    return errors


def samples(chance: random.Random) -> tuple[bytearray, list[int]]:
    """Return an archive of samples of plain files, with their starts and the end of the last one."""
    target = io.BytesIO()
    bounds = []
    stem = chance.choice(("{}", "d/{}", "{}.x", "{}.é", "a.{}"))
    with tarfile.open(fileobj=target, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for number in range(chance.randrange(1, 7)):
            bounds.append(tar.offset)
            for extension in chance.sample(
                ("wav", "json", "seg.png", "", "é", "cls", "\udcff"), chance.randrange(1, 5)
            ):
                info = tarfile.TarInfo(f"{stem.format(number)}.{extension}")
                info.size = chance.choice((0, 1, 511, 512, 513, 1500, 5000))
                tar.addfile(info, io.BytesIO(chance.randbytes(info.size)))
        bounds.append(tar.offset)
    return bytearray(target.getvalue()), bounds


def damage_bounds(bounds: list[int], chance: random.Random) -> list[int]:
    """Return bounds as an index of another archive may have them: still in order."""
    place = chance.randrange(len(bounds))
    what = chance.randrange(4)
    if what == 0 and len(bounds) > 2:
        bounds = bounds[:place] + bounds[place + 1 :]
    elif what == 1:
        bounds = [*bounds[:place], max(0, bounds[place] - _BLOCK), *bounds[place:]]
    elif what == 2:
        bounds = [*bounds[:place], bounds[place] + _BLOCK * chance.randrange(-3, 4), *bounds[place + 1 :]]
    return sorted({max(0, bound) for bound in bounds})


def read_all(url: str, index: str, group: Grouping) -> list[list[Any]]:
    """Return the results of each sample, alone and with all samples after it; an error is the last one."""
    with TarReader(url, index, check=False, group=group) as reader:
        count = len(reader)
        alone = [taken(lambda: iter([[reader[record]]])) for record in range(count)]  # noqa: B023 - called at once
        return alone + [taken(lambda: reader.read_pieces(range(record, count))) for record in range(count)]  # noqa: B023


def taken(read: Callable[[], Iterator[list[Sample]]]) -> list[Any]:
    """Return keys and members of samples, and the error that ends them."""
    found: list[Any] = []
    try:
        for piece in read():
            found += [(sample.key, list(sample.items())) for sample in piece]
    except LedgerbeamError as error:
        found.append(str(error))
    return found


def fuzz_samples(count: int, seed: int, folder: Path) -> int:
    """Read the samples of `count` archives, most of them damaged; return how many reads were errors."""
    chance = random.Random(seed)
    path, index = str(folder / "samples.tar"), str(folder / "samples.idx")
    errors = 0
    for _ in range(count):
        data, bounds = samples(chance)
        for _ in range(chance.choice((0, 0, 1, 2))):
            mutate(data, chance)
        for _ in range(chance.choice((0, 0, 1))):
            bounds = damage_bounds(bounds, chance)
        Path(path).write_bytes(data)
        write_index(index, np.array(bounds, np.uint64))
        for group in ("auto", "key", "pairs"):
            compiled = read_all(path, index, group)
            with pure_python():
                python = read_all(path, index, group)
            if compiled != python:
                raise RuntimeError(f"{data!r}, {bounds}, {group}:\ncompiled: {compiled}\nPython: {python}")
            errors += sum(isinstance(found[-1], str) for found in python)
    return errors


if __name__ == "__main__":
    with TemporaryDirectory() as scratch:
        limit_memory()
        total = int(sys.argv[1])
        start = int(sys.argv[2]) if sys.argv[2:] else 1
        print(f"{total} archives, {fuzz(total, start, Path(scratch))} errors, all equal")
        print(f"{total} archives of samples, {fuzz_samples(total, start, Path(scratch))} errors, all equal")
