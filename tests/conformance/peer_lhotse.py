"""lhotse's side of the conformance tests; runs in the peers' environment."""

from __future__ import annotations

import hashlib
import io
import wave
from pathlib import Path
from typing import Any

import lhotse.indexing
import lhotse.shar.readers.indexed
import numpy as np
from lhotse import AudioSource, CutSet, MonoCut, Recording, SupervisionSegment
from lhotse.features.io import MemoryRawWriter
from lhotse.indexing import IndexedJsonlReader, IndexedTarReader
from lhotse.shar.readers.indexed import LazyIndexedSharIterator

from benchmarks.serve import serve
from ledgerbeam.io.datasets.shar.writer import SharWriter

RATE = 16_000
FIELDS: dict[str, Any] = {"recording": "wav", "embedding": "numpy", "track": "numpy", "label": "jsonl"}

create_jsonl_index = lhotse.indexing.create_jsonl_index
create_tar_index = lhotse.indexing.create_tar_index


def index(kind: str, files: list[tuple[str, str]]) -> list[str | None]:
    """Index files into given places; return the name of the error for each that is refused."""
    create = {"jsonl": create_jsonl_index, "tar": create_tar_index}[kind]
    errors: list[str | None] = []
    for path, output in files:
        try:
            create(path, output_path=output)
        except Exception as error:  # noqa: BLE001 - the test says which are expected
            errors.append(type(error).__name__)
        else:
            errors.append(None)
    return errors


def read_jsonl(path: str, index: str) -> list[Any]:
    """Read every record through an index that is there; a record that fails is the name of its error."""
    _forbid_indexing()
    reader = IndexedJsonlReader(path, auto_create_index=False, index_path=index)
    records: list[Any] = []
    for number in range(len(reader)):
        try:
            records.append({"value": reader[number]})
        except Exception as error:  # noqa: BLE001 - the test says which are expected
            records.append({"error": type(error).__name__})
    return records


def read_tar(path: str, index: str) -> list[tuple[str, str | None]]:
    """Read every pair through an index that is there: the payload's name and digest."""
    _forbid_indexing()
    reader = IndexedTarReader(path, auto_create_index=False, index_path=index)
    found = []
    for number in range(len(reader)):
        manifest, name = reader[number]
        found.append((str(name), None if manifest is None else _digest(_payload(manifest))))
    return found


def write_shar(folder: str, ids: list[str], shard_size: int, compressed: bool = False) -> None:
    """Write cuts with recordings, arrays, temporal arrays and labels. Every third or fifth of them is missing."""
    Path(folder).mkdir(parents=True)
    cuts = CutSet.from_cuts(_cut(number, name) for number, name in enumerate(ids))
    cuts.to_shar(folder, fields=FIELDS, shard_size=shard_size, compress_jsonl=compressed, create_index=False)


def write_shar_by_ours(folder: str, ids: list[str], shard_size: int, compressed: bool = False) -> None:
    """Give the cuts of `write_shar` to our writer, as users of lhotse's writer do."""
    writer = SharWriter(folder, FIELDS, shard_size=shard_size, compress_jsonl=compressed, create_index=True)
    for number, name in enumerate(ids):
        writer.write(_cut(number, name))
    writer.close()


def read_shar(folder: str, index: str | None) -> list[dict[str, Any]]:
    """Read all cuts of a Shar folder: through the indexes in a folder, or sequentially without any."""
    if index is None:
        return [_described(cut) for cut in CutSet.from_shar(in_dir=folder, indexed=False)]
    _forbid_indexing()
    reader = LazyIndexedSharIterator(in_dir=folder, index_path=index)
    return [_described(reader[number]) for number in range(len(reader))]


def open_shar(folder: str | None, fields: dict[str, list[str]] | None) -> list[dict[str, Any]]:
    """Read all cuts of a Shar dataset as its users do, by the indexes beside the shards."""
    _forbid_indexing()
    cuts = CutSet.from_shar(in_dir=folder, fields=fields, indexed=True)
    return [_described(cut) for cut in cuts]


def _forbid_indexing() -> None:
    """Keep readers from rebuilding a bad index. Some of them rebuild it without an option to disable that."""

    def refuse(path: Any, output_path: Any = None) -> None:
        raise RuntimeError(f"{path}: lhotse wanted to write its own index to {output_path}")

    for module in (lhotse.indexing, lhotse.shar.readers.indexed):
        for name in ("create_jsonl_index", "create_tar_index"):
            if hasattr(module, name):
                setattr(module, name, refuse)


def _cut(number: int, name: str) -> MonoCut:
    chance = np.random.default_rng(number)
    samples = 1600 + 160 * number
    duration = samples / RATE
    content = io.BytesIO()
    with wave.open(content, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes(chance.integers(-9000, 9000, samples, dtype=np.int16).tobytes())
    source = AudioSource(type="memory", channels=[0], source=content.getvalue())
    recording = Recording(f"rec-{number}", [source], RATE, samples, duration)
    said = SupervisionSegment(f"said-{number}", recording.id, 0, duration, text=f"text {number} \u00fc\u2028")
    cut = MonoCut(name, 0, duration, 0, supervisions=[said], recording=recording)
    if number % 3 != 2:
        vector = chance.random(8 + number).astype(np.float32)
        cut.embedding = MemoryRawWriter().store_array("vector", vector)
    if number % 5 != 4:
        frames = chance.random((samples // 160, 4)).astype(np.float32)
        cut.track = MemoryRawWriter().store_array("track", frames, frame_shift=0.01, temporal_dim=0, start=0)
        cut.label = f"label-{number}"
    return cut


def _described(cut: Any) -> dict[str, Any]:
    return {
        "id": cut.id,
        "duration": cut.duration,
        "texts": [supervision.text for supervision in cut.supervisions],
        "audio": _array(cut.load_audio()) if cut.has_recording else None,
        "embedding": _array(cut.load_embedding()) if cut.has_custom("embedding") else None,
        "track": _array(cut.load_track()) if cut.has_custom("track") else None,
        "label": cut.custom.get("label") if cut.custom else None,
    }


def _array(values: Any) -> list[Any]:
    return [list(values.shape), str(values.dtype), _digest(np.ascontiguousarray(values).tobytes())]


def _payload(manifest: Any) -> bytes:
    if isinstance(manifest, Recording):
        return bytes(manifest.sources[0].source)
    return bytes(getattr(manifest, "array", manifest).storage_key)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


if __name__ == "__main__":
    works = (index, read_jsonl, read_tar, write_shar, write_shar_by_ours, read_shar, open_shar)
    serve({work.__name__: work for work in works})
