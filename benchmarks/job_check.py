"""Prints a digest of the records of JSONL files, the same for any order and form of them.

python -m benchmarks.job_check FOLDER
"""

from __future__ import annotations

import json
import multiprocessing
import sys
from hashlib import blake2b
from pathlib import Path

import orjson

_MASK = (1 << 128) - 1


def same_records(folder: str) -> tuple[int, int]:
    """Return the number of records below a folder, and the sum of their digests."""
    # Ray's files end in .json; what is no record lies in folders of ours.
    paths = [str(path) for path in sorted(Path(folder).glob("*.json*")) if path.suffix in (".json", ".jsonl")]
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        found = pool.map(_of_file, paths, chunksize=1)
    return sum(count for count, _ in found), sum(digest for _, digest in found) & _MASK


def _of_file(path: str) -> tuple[int, int]:
    count = total = 0
    with open(path, "rb") as lines:
        for line in lines:
            canonical = orjson.dumps(orjson.loads(line), None, orjson.OPT_SORT_KEYS)
            total += int.from_bytes(blake2b(canonical, digest_size=16).digest())
            count += 1
    return count, total


if __name__ == "__main__":
    print(json.dumps(same_records(sys.argv[1])))
