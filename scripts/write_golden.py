"""Writes tests/golden: small files with indexes that lhotse makes, not ledgerbeam.

Run with a Python that has lhotse 2.0.0a7 and torch (`make conformance` makes one):

    .cache/peers/bin/python scripts/write_golden.py tests/golden
"""

from __future__ import annotations

import gzip
import io
import json
import sys
import tarfile
from pathlib import Path

JSONL = {
    "plain": b'{"id": 1}\n{"id": 2, "text": "gr\xc3\xbc\xc3\x9fe"}\n{"id": 3}\n',
    "blank-lines": b'\n{"id": 1}\n\n  \n{"id": 2}\n\n',
    "crlf": b'{"id": 1}\r\n{"id": 2}\r\n\r\n{"id": 3}\r\n',
    "no-trailing-newline": b'{"id": 1}\n{"id": 2}',
    "empty": b"",
    "other-separators": '{"id": "a\u2028b\x85c"}\n{"id": 2}\n'.encode(),
}

LONG = "speaker/" + "utterance-" * 11 + "7"
IDS = ["a", "b.c", "dir/d", LONG, "sprecher-grün"]


def shar(layout: int, ids: list[str]) -> bytes:
    """Return a tar archive of pairs in the order of lhotse's Shar writers: first the payload, then its manifest."""
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w", format=layout) as tar:
        for number, key in enumerate(ids):
            manifest = json.dumps({"id": key, "sampling_rate": 16000}).encode() + b"\n"
            for name, content in ((f"{key}.flac", bytes([number]) * (150 * number)), (f"{key}.json", manifest)):
                info = tarfile.TarInfo(name)
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    return target.getvalue()


def main(folder: Path) -> None:
    from lhotse.indexing import create_jsonl_index, create_tar_index

    folder.mkdir(parents=True, exist_ok=True)
    for name, content in JSONL.items():
        path = folder / f"{name}.jsonl"
        path.write_bytes(content)
        create_jsonl_index(str(path))
    ustar = shar(tarfile.USTAR_FORMAT, ["a", "b.c", "dir/d"])
    archives = {
        "shar-ustar": ustar,
        "shar-pax": shar(tarfile.PAX_FORMAT, IDS),
        "shar-gnu": shar(tarfile.GNU_FORMAT, IDS),
        "shar-no-end": ustar.rstrip(b"\0") + bytes(-len(ustar.rstrip(b"\0")) % 512),
        "shar-padded": ustar + bytes(10240),
    }
    for name, content in archives.items():
        path = folder / f"{name}.tar"
        path.write_bytes(content)
        create_tar_index(str(path))
        # Archives are mostly zeros, so they are compressed. The tests decompress them beside a copy of the index.
        (folder / f"{name}.tar.gz").write_bytes(gzip.compress(content, mtime=0))
        path.unlink()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
