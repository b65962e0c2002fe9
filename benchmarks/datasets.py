"""Table: random reads of samples from datasets of many local shards, which are in the page cache."""

from __future__ import annotations

import random
import shutil
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import orjson

from benchmarks.data import MEMBER_BYTES, Data
from benchmarks.peer import PEERS_REMEDY, Peer, peer_python
from benchmarks.table import Row, Work, absent_row, speed_row
from benchmarks.timing import Contender, best, timed
from ledgerbeam.io import Sample
from ledgerbeam.io.datasets.lit import LitDataset, LitWriter, write_lit_index
from ledgerbeam.io.datasets.shar.reader import SharReader
from ledgerbeam.io.datasets.shar.writer import SharWriter
from ledgerbeam.io.datasets.webdataset import ShardReader, ShardWriter, open_wids, write_wids_index

TITLE = "Random samples of sharded datasets, 20 kB payloads, one by one, warm cache"

SAMPLES = 20_000
SHARD = 1000
READS = 10_000


def rows(data: Data) -> Iterator[Row]:
    folder = data.work / "datasets"
    shutil.rmtree(folder, ignore_errors=True)
    count, wanted = data.count(SAMPLES), random.Random(5).choices(range(data.count(SAMPLES)), k=data.count(READS))
    folder.mkdir()
    (folder / "wanted.txt").write_text("\n".join(map(str, wanted)))
    try:
        yield from _shar(folder, count, wanted)
        yield from _wds(folder, count, wanted)
        yield from _lit(folder, count, wanted)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _shar(folder: Path, count: int, wanted: Sequence[int]) -> Iterator[Row]:
    manifest = {"storage_type": "shar", "storage_path": "", "storage_key": "", "shape": [MEMBER_BYTES // 4]}
    with SharWriter(str(folder / "shar"), {"vector": "tar", "label": "jsonl"}, shard_size=SHARD) as writer:
        for number, payload in enumerate(_payloads(count)):
            cut = {"id": f"cut-{number:08d}", "type": "MonoCut", "start": 0, "duration": 1.0, "channel": 0}
            writer.write({**cut, "vector": {"npy": payload, "json": manifest}, "label": number})
    reader = SharReader(writer.url)
    work = Work("SharReader[i], a payload and a label", "cuts", len(wanted))
    peer = ("benchmarks.peer_lhotse", "read_shar", {"folder": writer.url})
    yield _compared(work, reader, peer, folder / "wanted.txt", 3)


def _wds(folder: Path, count: int, wanted: Sequence[int]) -> Iterator[Row]:
    with ShardWriter(str(folder / "wds" / "part-%04d.tar"), max_samples=SHARD) as writer:
        for number, payload in enumerate(_payloads(count)):
            writer.write(Sample(f"{number:08d}", {"bin": payload, "cls": b"%d" % number}))
    index = str(folder / "wds" / "index.json")
    write_wids_index(index, writer.shards, name="bench")
    work = Work("open_wids()[i], two members", "samples", len(wanted))
    peer = ("benchmarks.peer_wids", "read", {"url": index, "cache": str(folder / "cache")})
    yield _compared(work, open_wids(index), peer, folder / "wanted.txt", 1)


def _lit(folder: Path, count: int, wanted: Sequence[int]) -> Iterator[Row]:
    """Compare with tarfile, which opens the shard for each item, as the package of LIT does; that is not available."""
    root = folder / "lit"
    with LitWriter(str(root), max_samples=SHARD) as writer:
        for number, payload in enumerate(_payloads(count)):
            writer.write({"__key__": f"{number:08d}", "bin": payload, "cls": number})
    dataset = LitDataset(str(root), modalities=["bin", "cls"], decoders={"bin": bytes})
    index = orjson.loads((root / "train.idx.json").read_bytes())

    def by_tarfile() -> None:
        for number in wanted:
            name = f"train_{number // SHARD:04d}.tar"
            with tarfile.open(root / name) as archive:
                for modality in (".bin", ".cls"):
                    archive.fileobj.seek(index[name][modality][f"{number:08d}"])
                    file = archive.extractfile(tarfile.TarInfo.fromtarfile(archive))
                    if file is not None:
                        file.read()

    seconds = best({"ours": timed(lambda: _each(dataset, wanted)), "tarfile": timed(by_tarfile)})
    work = Work("LitDataset[i], two modalities, one decoded", "samples", len(wanted))
    yield speed_row(work, seconds["ours"], "tarfile", seconds["tarfile"], 3)

    def index_by_tarfile() -> None:
        found: dict[str, dict[str, dict[str, int]]] = {}
        for path in sorted(root.glob("*.tar")):
            with tarfile.open(path) as archive:
                for member in archive:
                    key, _, modality = member.name.partition(".")
                    found.setdefault(path.name, {}).setdefault(f".{modality}", {})[key] = member.offset
        (folder / "tarfile.json").write_bytes(orjson.dumps(found))

    seconds = best({"ours": timed(lambda: write_lit_index(str(root), "train")), "tarfile": timed(index_by_tarfile)})
    if orjson.loads((root / "train.idx.json").read_bytes()) != orjson.loads((folder / "tarfile.json").read_bytes()):
        raise RuntimeError(f"{root}: the indexes differ")
    work = Work("write_lit_index, two members a sample", "samples", count)
    yield speed_row(work, seconds["ours"], "tarfile", seconds["tarfile"], 10)


def _compared(
    work: Work,
    reader: SharReader | ShardReader,
    peer: tuple[str, str, dict[str, Any]],
    asked: Path,
    target: float,
) -> Row:
    wanted = list(map(int, asked.read_text(encoding="utf-8").split()))
    python = peer_python()
    module, what, arguments = peer
    name = module.removeprefix("benchmarks.peer_")
    if python is None:
        return absent_row(f"{work.name}, vs {name}", f">= {target:g}", PEERS_REMEDY)
    with Peer(module, python) as other:
        contenders: dict[str, Contender] = {
            "ours": timed(lambda: _each(reader, wanted)),
            "theirs": other.contender(what, **arguments, records=str(asked)),
        }
        seconds = best(contenders)
    return speed_row(work, seconds["ours"], name, seconds["theirs"], target)


def _each(reader: Any, wanted: Sequence[int]) -> None:
    for number in wanted:
        reader[number]


def _payloads(count: int) -> Iterator[bytes]:
    chance = random.Random(11)
    pool = chance.randbytes(1 << 22)
    head = b"\x93NUMPY\x01\x00" + (118).to_bytes(2, "little")
    head += f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({MEMBER_BYTES // 4},), }}".ljust(117).encode() + b"\n"
    for _ in range(count):
        start = chance.randrange(len(pool) - MEMBER_BYTES)
        yield head + pool[start : start + MEMBER_BYTES]
