"""wids' side of the conformance tests. It runs in a separate folder of the peers' environment."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.serve import serve

sys.path.insert(0, str(Path(sys.prefix) / "wids"))

import wids  # type: ignore[import-not-found]
from wids import wids_index


def read(url: str, cache: str) -> list[tuple[str, dict[str, str]]]:
    """Read all samples that an index lists: keys, and the digest of each member, its extension with the dot."""
    dataset = wids.ShardListDataset(url, cache_dir=cache, keep=True, transformations=[])
    found = []
    for number in range(len(dataset)):
        sample = dataset[number]
        members = {name: data.read() for name, data in sample.items() if not name.startswith("__")}
        found.append((sample["__key__"], {name: hashlib.sha256(data).hexdigest() for name, data in members.items()}))
    return found


def create(files: list[str], output: str, name: str) -> Any:
    sys.argv = ["wids-index", "create", "--output", output, "--name", name, *files]
    wids_index.main()
    return json.loads(Path(output).read_text(encoding="utf-8"))


if __name__ == "__main__":
    serve({"read": read, "create": create})
