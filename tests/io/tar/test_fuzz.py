"""Damaged tar archives taken apart: `python -m tests.io.tar.test_fuzz INPUTS [SEED]`.

`tests.io.test_native` compares the two walks over headers; here are the samples, sparse members among them, and the
archives are in memory.
"""

from __future__ import annotations

import random
import tarfile
from pathlib import Path

import pytest

from ledgerbeam.io import Sample
from ledgerbeam.io.tar.format import TarFormat
from ledgerbeam.io.tar.sample import MOST_EXPANSION
from ledgerbeam.io.tar.writer import encode_tar
from tests.io.fuzzing import Trial, fuzz_briefly, main, mangled

_BLOCK = 512
_FIELDS = (0, 100, 124, 128, 135, 148, 156, 257, 345, 386, 398, 482, 483, 495)
_TEXT = [
    *(b"%011o\0" % number for number in (0, 1, 512, 8**11 - 1)),
    *(b"\x80" + bytes(3) + b"\x7f" + b"\xff" * 7, b"\xff" * 12, b"9" * 40, b"9" * 5000),
    *(b"\0" * 12, b"\n", b"=", b" ", b"-1"),
    b"20 size=99999999999\n",
    b"29 GNU.sparse.map=0,512,9999\n",
    b"22 GNU.sparse.major=1\n22 GNU.sparse.minor=0\n",
]


def member(name: str, kind: bytes, payload: bytes, fields: dict[int, bytes] | None = None) -> bytes:
    """Return a member with a header of the given kind, and bytes put into it."""
    info = tarfile.TarInfo(name)
    info.size, info.type = len(payload), kind
    header = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    for at, value in (fields or {}).items():
        header[at : at + len(value)] = value
    return _summed(bytes(header)) + payload + bytes(-len(payload) % _BLOCK)


def _summed(block: bytes) -> bytes:
    blank = block[:148] + b" " * 8 + block[156:]
    return block[:148] + b"%06o\0 " % sum(blank) + block[156:]


def pax(*records: tuple[str, str]) -> bytes:
    text = b""
    for key, value in records:
        size = len(key) + len(value.encode()) + 3
        size += len(str(size + len(str(size))))
        text += b"%d %s=%s\n" % (size, key.encode(), value.encode())
    return member("pax", b"x", text)


def sparse_pax(**records: str) -> bytes:
    return pax(*((f"GNU.sparse.{key}", value) for key, value in records.items()))


def old_sparse(real: int) -> bytes:
    """Return a sparse member in GNU's old format: 512 bytes at offset 1024 of a file of some length."""
    pieces = b"".join(b"%011o\0" % number for number in (1024, 512, real, 0))
    return member("s.bin", b"S", b"d" * 512, {386: pieces, 482: b"\0%011o\0" % real})


def _archives() -> list[bytes]:
    plain = encode_tar([Sample(f"k{number}", {"bin": b"x" * 300 * number, "json": b"{}"}) for number in range(3)])[0]
    wide = encode_tar([Sample("é" * 60, {"a": b"1", "b": b"2", "c": b"3"})])[0]
    one = {"major": "1", "minor": "0", "name": "s.x", "realsize": "30000"}
    nil = {"size": "30000", "numblocks": "1", "map": "1024,512"}
    return [
        plain.rstrip(b"\0") + bytes(1024 + -len(plain.rstrip(b"\0")) % 512),
        wide.rstrip(b"\0") + bytes(1024 + -len(wide.rstrip(b"\0")) % 512),
        old_sparse(30_000) + member("s.json", b"0", b"{}") + bytes(1024),
        sparse_pax(**one) + member("s.x", b"0", b"1\n1024\n512\n".ljust(512, b"\0") + b"d" * 512) + bytes(1024),
        sparse_pax(**nil) + member("s.x", b"0", b"d" * 512) + bytes(1024),
        pax(("size", "700"), ("path", "long/er.bin")) + member("s.bin", b"0", b"d" * 700) + bytes(1024),
        member("././@LongLink", b"L", b"n" * 150 + b".bin\0") + member("n.bin", b"0", b"d") + bytes(1024),
    ]


def tar_trial(_: Path) -> Trial:
    archives = _archives()

    def trial(chance: random.Random) -> str:
        sound = chance.choice(archives)
        fields = [block + field for block in range(0, len(sound), _BLOCK) for field in _FIELDS]
        data = bytearray(mangled(sound, chance, fields) if chance.random() < 0.4 else sound)
        for _ in range(chance.choice([0, 1, 1, 2])):
            at = chance.choice([chance.randrange(len(data) + 1), chance.choice(fields)])
            data[at : at + chance.choice([0, 1, 12])] = chance.choice(_TEXT)
            if chance.random() < 0.7:  # so that the blocks after it stay where they were
                del data[at + 12 : at + 12 + max(0, len(data) - len(sound))]
        if chance.random() < 0.8:
            for block in range(0, len(data) - _BLOCK + 1, _BLOCK):
                if data[block + 257 : block + 262] == b"ustar":
                    data[block : block + _BLOCK] = _summed(bytes(data[block : block + _BLOCK]))
        samples = TarFormat(chance.choice(["auto", "pairs", "key"])).split(bytes(data), "x.tar")
        taken = sum(len(content) for sample in samples for content in sample.values())
        assert taken <= MOST_EXPANSION * len(data)
        return "read" if taken <= len(data) else "read with holes"

    return trial


@pytest.mark.slow
def test_damaged_archives_give_typed_errors(tmp_path: Path) -> None:
    outcomes = fuzz_briefly(tar_trial(tmp_path), 1500, name="x.tar")
    assert outcomes["ArchiveError"] > 500
    assert min(outcomes["read"], outcomes["read with holes"]) > 50


def test_sparse_members_are_read_with_their_holes() -> None:
    archives = _archives()
    for number in (2, 3, 4):
        (sample,) = TarFormat().split(archives[number], "x.tar")
        assert next(iter(sample.values())) == bytes(1024) + b"d" * 512 + bytes(28_464)


if __name__ == "__main__":
    main(tar_trial)
