"""webdataset's side of the conformance tests; runs in the peers' environment."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path

import webdataset  # type: ignore[import-not-found]

from benchmarks.serve import serve


def read(path: str) -> list[tuple[str, dict[str, str]]]:
    """Read all samples of a shard: key, and the digest of each member by extension."""
    found = []
    for sample in webdataset.WebDataset(path, shardshuffle=False):
        members = {name: content for name, content in sample.items() if not name.startswith("__")}
        found.append((sample["__key__"], {name: hashlib.sha256(data).hexdigest() for name, data in members.items()}))
    return found


def write(path: str, samples: int) -> None:
    buffer = io.BytesIO()
    with webdataset.TarWriter(buffer) as writer:
        for number in range(samples):
            content = bytes([number % 256]) * (number * 37 % 2000)
            writer.write({"__key__": f"folder/sample-{number:05d}", "bin": content, "txt": f"text {number}"})
    Path(path).write_bytes(buffer.getvalue())


if __name__ == "__main__":
    serve({"read": read, "write": write})
