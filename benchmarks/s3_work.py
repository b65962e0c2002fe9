"""Our side of the table of S3 transfers. It runs in a separate process, so that its CPU time can be measured."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import Any

from benchmarks.serve import serve
from ledgerbeam.io import publish_bytes
from ledgerbeam.io.storage.ranges import RangeReader
from ledgerbeam.io.storage.stat import FileInfo, stat


def read(url: str, options: dict[str, Any], piece: int) -> tuple[float, float]:
    """Read the current version of an object in concurrent pieces. Return wall and CPU seconds."""
    listed = stat(url, options)
    return used(lambda: _pieces(listed, options, piece))


def digest(url: str, options: dict[str, Any], piece: int) -> str:
    """Return the SHA-256 of the bytes that `read` reads."""
    return sha256(b"".join(_pieces(stat(url, options), options, piece))).hexdigest()


def write(folder: str, url: str, options: dict[str, Any]) -> tuple[float, float]:
    """Publish the files of a folder below a URL, concurrently, from memory. Return wall and CPU seconds."""
    contents = {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir())}
    with ThreadPoolExecutor(len(contents)) as pool:

        def publish(name: str) -> None:
            publish_bytes(f"{url}/{name}", contents[name], options)

        return used(lambda: list(pool.map(publish, contents)))


def used(work: Callable[[], object]) -> tuple[float, float]:
    """Do work. Return the wall time, and the CPU time of this process, in seconds."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - cpu


def _pieces(listed: FileInfo, options: dict[str, Any], piece: int) -> list[bytes]:
    starts = list(range(0, listed.size, piece))
    stops = [min(start + piece, listed.size) for start in starts]
    return RangeReader(listed.url, options, listed=listed).read_many(starts, stops)


if __name__ == "__main__":
    serve({work.__name__: work for work in (read, digest, write)})
