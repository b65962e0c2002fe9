"""The side of rensa in the table of near duplicates; runs in the peers' environment.

Each function returns its CPU seconds, without those of its imports.
"""

from __future__ import annotations

import glob
import importlib
import time
from typing import Any

import orjson

from benchmarks.serve import serve


def texts_of(folder: str) -> list[str]:
    """Return the texts of all files, in order."""
    found = []
    for path in sorted(glob.glob(f"{folder}/*.jsonl")):
        with open(path, "rb") as file:
            found += [orjson.loads(line)["text"] for line in file]
    return found


def _signed(folder: str, hashes: int, ngram: int) -> list[Any]:
    rensa: Any = importlib.import_module("rensa")
    found = []
    for text in texts_of(folder):
        words = text.lower().split()
        signature = rensa.RMinHash(hashes, 42)
        signature.update([" ".join(words[place : place + ngram]) for place in range(max(1, len(words) - ngram + 1))])
        found.append(signature)
    return found


def signatures(folder: str, bands: int, rows: int, ngram: int) -> float:
    importlib.import_module("rensa")
    started = time.process_time()
    _signed(folder, bands * rows, ngram)
    return time.process_time() - started


def clusters(folder: str, bands: int, rows: int, ngram: int) -> tuple[float, int]:
    """Sign all texts, find texts that share a band in memory, and cluster them. Return also the number that stays."""
    rensa: Any = importlib.import_module("rensa")
    started = time.process_time()
    found = _signed(folder, bands * rows, ngram)
    index = rensa.RMinHashLSH(threshold=0.7, num_perm=bands * rows, num_bands=bands)
    roots = list(range(len(found)))

    def root(place: int) -> int:
        while roots[place] != place:
            roots[place] = roots[roots[place]]
            place = roots[place]
        return place

    for place, signature in enumerate(found):
        for other in index.query(signature):
            one, two = sorted((root(place), root(other)))
            roots[two] = one
        index.insert(place, signature)
    kept = sum(root(place) == place for place in range(len(found)))
    return time.process_time() - started, kept


if __name__ == "__main__":
    serve({"signatures": signatures, "clusters": clusters})
