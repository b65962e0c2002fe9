"""lhotse's packs of indexes; runs in the peers' environment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from lhotse.index_pack import IndexPack, IndexPackArraySpec, IndexPackCollectionSpec, write_index_pack

from benchmarks.serve import serve


def write(output: str, collections: list[dict[str, Any]], sizes: dict[str, int]) -> None:
    """Write a pack of sources, or of numbers where a collection has `shards`."""
    specs: list[Any] = []
    for number, collection in enumerate(collections):
        identity = collection["role"], collection["kind"], collection["source_spec"]
        if "shards" in collection:
            files = []
            for shard, values in enumerate(collection["shards"]):
                files.append(Path(f"{output}.{number}.{shard}.u32"))
                files[-1].write_bytes(np.array(values, "<u4").tobytes())
            specs.append(IndexPackArraySpec(*identity, tuple(files)))
        else:
            specs.append(IndexPackCollectionSpec(*identity, tuple(collection["sources"]), collection["offsets"]))
    write_index_pack(output, specs, source_size_overrides=sizes)


def read(path: str, layout: str, keys: list[str]) -> list[Any]:
    """Open a pack of a known layout, checks each segment, and return what each collection holds."""
    found = []
    with IndexPack(path, expected_layout_hash=layout) as pack:
        segments = set()
        for key in keys:
            collection = pack.collection(key)
            if collection.is_array:
                found.append([collection.value(number) for number in range(len(collection))])
                continue
            places = [collection.locate(number) for number in range(len(collection))]
            segments |= {place.segment_id for place in places}
            found.append([[str(place.path), place.start, place.end] for place in places])
        for segment in sorted(segments):
            pack.verify_segment(segment)
    return found


if __name__ == "__main__":
    serve({work.__name__: work for work in (write, read)})
