"""obstore's side of the table of S3 transfers; runs in the peers' environment."""

from __future__ import annotations

import asyncio
import importlib
import time
from collections.abc import Awaitable, Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

from benchmarks.serve import serve

_obstore: Any = importlib.import_module("obstore")
_stores: dict[str, Any] = {}


def read(name: str, options: dict[str, Any], piece: int) -> tuple[float, float]:
    """Read the current version of an object of the bucket in concurrent pieces."""
    store = _store(options)
    found = _obstore.head(store, name)
    return _used(lambda: _pieces(store, name, found, piece))


def digest(name: str, options: dict[str, Any], piece: int) -> str:
    store = _store(options)
    pieces = asyncio.run(_pieces(store, name, _obstore.head(store, name), piece))
    return sha256(b"".join(map(bytes, pieces))).hexdigest()


def write(folder: str, name: str, options: dict[str, Any]) -> tuple[float, float]:
    """Write the files of a folder below a name, concurrently, from memory."""
    store = _store(options)
    contents = {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir())}

    async def put() -> None:
        # One request each, as ours: a put in parts would sign, and end, each of them.
        each = (
            _obstore.put_async(store, f"{name}/{file}", data, use_multipart=False) for file, data in contents.items()
        )
        await asyncio.gather(*each)

    return _used(put)


def _used(work: Callable[[], Awaitable[object]]) -> tuple[float, float]:
    async def timed() -> tuple[float, float]:
        wall, cpu = time.perf_counter(), time.process_time()
        await work()
        return time.perf_counter() - wall, time.process_time() - cpu

    return asyncio.run(timed())


async def _pieces(store: Any, name: str, found: Any, piece: int) -> list[Any]:
    """Read like ledgerbeam: with the ETag as a condition, which `get_ranges` does not support."""

    async def one(start: int) -> Any:
        wanted = {"range": (start, min(start + piece, found["size"])), "if_match": found["e_tag"]}
        return await (await _obstore.get_async(store, name, options=wanted)).bytes_async()

    return list(await asyncio.gather(*(one(start) for start in range(0, found["size"], piece))))


def _store(options: dict[str, Any]) -> Any:
    """Return the store of a bucket. Like ledgerbeam's, it keeps its connections, and hashes the content of writes."""
    endpoint = options["endpoint"]
    if endpoint not in _stores:
        _stores[endpoint] = importlib.import_module("obstore.store").S3Store(
            options["bucket"],
            endpoint=endpoint,
            access_key_id=options["key"],
            secret_access_key=options["secret"],
            region="us-east-1",
            checksum_algorithm="SHA256",
            client_options={"allow_http": True},
        )
    return _stores[endpoint]


if __name__ == "__main__":
    serve({work.__name__: work for work in (read, digest, write)})
