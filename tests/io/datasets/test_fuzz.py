"""Damaged datasets of other tools give typed errors: `python -m tests.io.datasets.test_fuzz DATASET INPUTS [SEED]`."""

from __future__ import annotations

import gzip
import io
import random
import struct
import sys
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ledgerbeam.errors import LedgerbeamError, RecordError, UsageError
from ledgerbeam.io import Sample, encode_jsonl
from ledgerbeam.io.datasets.audio import Audio
from ledgerbeam.io.datasets.lit import CODECS, LitDataset, LitWriter, decode_rle
from ledgerbeam.io.datasets.lit.codecs import MOST_LABELS
from ledgerbeam.io.datasets.megatron import MegatronReader
from ledgerbeam.io.datasets.shar.payloads import array_shape, audio_header
from ledgerbeam.io.datasets.shar.reader import SharReader, find_shar, stream_shar, write_shar_fields
from ledgerbeam.io.datasets.webdataset import (
    DaliReader,
    open_energon,
    open_wids,
    write_dali_index,
    write_energon,
    write_wids_index,
)
from ledgerbeam.io.index.file import index_bytes
from ledgerbeam.io.tar.writer import encode_tar
from tests.io.datasets.megatron.test_format import MAGIC, fairseq, index
from tests.io.datasets.shar.content import flac, npy, wav
from tests.io.datasets.webdataset.content import plain_samples, write_shards
from tests.io.fuzzing import Files, Trial, damaged, fuzz_briefly, main, mangled


def lit_trial(folder: Path) -> Trial:
    with LitWriter(str(folder), max_samples=2) as writer:
        for number in range(3):
            labels = np.full((2, 3), number, np.uint8)
            writer.write(
                {"__key__": f"k{number}", "a.npy": labels, "b.rle": labels, "c.seg8": labels, "d.json": [number]}
            )
    contents = {name: (folder / name).read_bytes() for name in ("config.json", "train.idx.json")}
    for name in ("train_0000.tar", "train_0001.tar"):
        contents[name] = (folder / name).read_bytes().rstrip(b"\0") + bytes(1024)
    files = Files(folder, contents, {})

    def trial(chance: random.Random) -> str:
        files.damage(chance)
        try:
            list(LitDataset(str(folder), decoders={"b.rle": lambda data: decode_rle(data, 10_000)}))
        except UsageError:  # a modality has another name now, which needs another decoder
            return "no such codec"
        return "read"

    return trial


def test_damaged_lit_datasets(tmp_path: Path) -> None:
    outcomes = fuzz_briefly(lit_trial(tmp_path), 400, most=20_000_000, name=str(tmp_path))
    assert outcomes["IndexMismatchError"] > 40
    assert min(outcomes["RecordError"], outcomes["SourceError"], outcomes["read"]) > 10


def codec_trial(_: Path) -> Trial:
    """Damage the members of LIT samples, by codec.

    A codec may raise any error of a decoder, which `LitDataset` turns into RecordError. Its memory is bounded: for the
    run-length code by the limit of values, for all others by the size of the member.
    """
    most_values = 100_000
    labels = np.arange(48, dtype=np.uint16).reshape(6, 8) // 5
    texts = {"CLS": 7, "CSV": [["a", "b"], ["c, d", "e"]], "TXT": "some text", "JSON": {"a": [1, 2.5, "x"], "b": None}}
    values = {
        **texts,
        "MP4": b"\0\0\0\x18ftypisom",
        "NPZ": {"a": labels, "b": labels[0]},
        "WAV": (labels.astype(np.int16).ravel(), 8000),
        "NPY": labels,
        "RLE": labels.astype(np.int32),
        "SEG8": labels.astype(np.uint8),
        "SEG16": labels,
        "SEG24": labels.astype(np.uint32) * 70_000,
        "SEG32": labels.astype(np.uint32) * 2**24,
    }
    members = {name: CODECS[name].encode(value, name.lower()) for name, value in values.items()}
    fields = {"RLE": [1, 9, 17, 25], "SEG8": [16, 20, 24], "NPY": [8], "NPZ": [18, 22], "WAV": [4, 16, 22, 40]}

    def trial(chance: random.Random) -> str:
        name = chance.choice(list(members))
        if name == "MP4" or name in texts:
            data = damaged(members[name], chance)
        else:
            places = fields.get("SEG8" if name.startswith("SEG") else name, [])
            data = mangled(members[name], chance, places, 4 if name.startswith("SEG") else 8)
            if name.startswith("SEG") and chance.random() < 0.7:
                data = summed(data)
        try:
            found: Any = decode_rle(data, most_values) if name == "RLE" else CODECS[name].decode(data)
        except MemoryError:
            raise
        except Exception as error:  # `LitDataset` does so too
            raise RecordError(name) from error
        if isinstance(found, Audio):
            assert found.samples.nbytes <= 4 * len(data)
        if isinstance(found, np.ndarray):
            assert found.size <= most_values if name == "RLE" else found.nbytes <= 4 * MOST_LABELS * len(data)
        return f"{name} read"

    return trial


def summed(data: bytes) -> bytes:
    """Make the checksum of a PNG's first chunk fit again."""
    return data[:29] + zlib.crc32(data[12:29]).to_bytes(4) + data[33:] if len(data) > 33 else data


def test_damaged_members_of_lit_samples(tmp_path: Path) -> None:
    outcomes = fuzz_briefly(codec_trial(tmp_path), 1500)
    assert outcomes["RecordError"] > 500
    for name in ("CLS", "CSV", "JSON", "NPY", "NPZ", "RLE", "TXT", "WAV", "SEG8", "SEG16", "SEG24", "SEG32"):
        assert outcomes[f"{name} read"] > 5


def shar_trial(folder: Path) -> Trial:
    """Damage Shar folders that are read by index, by list and as streams."""
    names = ["cut-0", "a/cut-1", "cut-2"]
    cuts = encode_jsonl([{"id": name, "duration": 1.5, "custom": {"x": number}} for number, name in enumerate(names)])
    labels = encode_jsonl([{"cut_id": name, "label": [number]} for number, name in enumerate(names)])
    payloads = [
        {"wav": b"RIFF" * 9, "json": b'{"id": 1}'},
        {"nodata": b"", "nometa": b""},
        {"npy": b"x", "json": b"{}"},
    ]
    audio, places = encode_tar([Sample(name, pair) for name, pair in zip(names, payloads, strict=True)])
    audio = audio[: int(places[-2]) + 4096]
    places[-1] = len(audio)
    contents = {
        "plain/cuts.000000.jsonl": cuts[0],
        "plain/cuts.000000.jsonl.idx": index_bytes(cuts[1]),
        "plain/label.000000.jsonl": labels[0],
        "plain/label.000000.jsonl.idx": index_bytes(labels[1]),
        "plain/audio.000000.tar": audio,
        "plain/audio.000000.tar.idx": index_bytes(places),
        "packed/cuts.000000.jsonl.gz": gzip.compress(cuts[0]),
        "packed/label.000000.jsonl": labels[0],
        "packed/audio.000000.tar.gz": gzip.compress(audio),
    }
    (folder / "plain").mkdir()
    (folder / "packed").mkdir()
    kinds = {"cuts": "jsonl", "label": "jsonl", "audio": "tar"}
    listed = {field: [f"{folder}/plain/{field}.000000.{kind}"] for field, kind in kinds.items()}
    write_shar_fields(f"{folder}/fields.json", listed)
    contents["fields.json"] = (folder / "fields.json").read_bytes()
    fields: dict[str, Sequence[int]] = {
        name: range(0, len(content), 8) for name, content in contents.items() if name.endswith(".idx")
    }
    fields["plain/audio.000000.tar"] = [at + field for at in places[:-1].tolist() for field in (124, 128, 148, 156)]
    fields |= {name: [0, -8] for name in contents if name.endswith(".gz")}
    files = Files(folder, contents, fields)

    def trial(chance: random.Random) -> str:
        name, _ = files.damage(chance)
        if name.startswith("packed") or (name.startswith("plain") and chance.random() < 0.3):
            found = find_shar(f"{folder}/{name.partition('/')[0]}", streamed=True)
            return f"streamed {min(1, len(list(stream_shar(found))))}"
        url = "fields.json" if chance.random() < 0.5 or "/" not in name else "plain"
        with SharReader(f"{folder}/{url}") as reader:
            if chance.random() < 0.5:
                list(reader)
            elif len(reader):
                reader.read_many([chance.randrange(-len(reader), len(reader))])
        return "read"

    return trial


def test_damaged_shar_folders(tmp_path: Path) -> None:
    outcomes = fuzz_briefly(shar_trial(tmp_path), 600, name=str(tmp_path))
    assert min(outcomes["IndexMismatchError"], outcomes["SourceError"], outcomes["RecordError"]) > 20
    assert min(outcomes["read"], outcomes["streamed 1"]) > 3


NPY = [*(bytes([byte]) for byte in b"(),'{}\n#\\O\xff\0"), b"[" * 60, b"(" * 200, b"-1", b"9" * 30, b"1L"]


def header_trial(_: Path) -> Trial:
    """Damage payloads whose headers become manifests."""
    wide = io.BytesIO()
    np.save(wide, np.zeros((2, 3, 1), [("a", "<u2"), ("b", "S3")]), allow_pickle=False)
    newer = io.BytesIO()
    np.lib.format.write_array(newer, np.arange(5), version=(3, 0))
    arrays = [npy(3), wide.getvalue(), newer.getvalue()]
    extended = wav(2)
    extended = extended[:12] + b"LIST" + struct.pack("<I", 5) + b"hello\0" + extended[12:]
    audio = [wav(0)[:200], wav(1, channels=2)[:80], extended[:120], wav(3)[:60].replace(b"RIFF", b"RIFX")]
    audio.append(flac(16_000, 1, 800))

    def trial(chance: random.Random) -> str:
        if chance.random() < 0.5:
            fields = [4, 16, 18, 20, 22, 24, 28, 32, 34, 40]
            data = mangled(chance.choice(audio), chance, fields, width=chance.choice([2, 4]))
            found = audio_header(data, "wav")
            assert min(found.sampling_rate, found.channels, found.samples) > 0
            assert data[:4] == b"fLaC" or found.samples <= 8 * len(data)
            return "read audio"
        data = chance.choice(arrays)
        if chance.random() < 0.6:
            at, part = chance.randrange(6, 120), chance.choice(NPY)
            data = data[:at] + part + data[at + chance.choice([0, len(part)]) :]
            if chance.random() < 0.2:
                data = damaged(data, chance)
        else:
            data = mangled(data, chance, [6, 7, 8, 9], width=chance.choice([1, 2]))
        assert all(length >= 0 for length in array_shape(data, "npy"))
        return "read an array"

    return trial


def test_damaged_headers_of_payloads(tmp_path: Path) -> None:
    outcomes = fuzz_briefly(header_trial(tmp_path), 2000)
    assert outcomes["RecordError"] > 800
    assert min(outcomes["read audio"], outcomes["read an array"]) > 20


def webdataset_trial(folder: Path) -> Trial:
    """Damage the metadata of shards: wids, Energon, DALI, and an index."""
    names = ["index.json", ".nv-meta/.info.json", ".nv-meta/split.yaml", "part-000.idx", "part-001.tar.idx"]
    shards = write_shards(folder, plain_samples(12), 5, md5=True)
    write_wids_index(f"{folder}/index.json", shards)
    write_energon(str(folder), shards, sample_table=False)
    write_dali_index(f"{folder}/part-000.tar")
    contents = {name: (folder / name).read_bytes() for name in names}
    files = Files(folder, contents, {"part-001.tar.idx": range(0, len(contents["part-001.tar.idx"]), 8)})

    def trial(chance: random.Random) -> str:
        name, _ = files.damage(chance)
        match name:
            case "index.json":
                open_wids(f"{folder}/index.json")[:]
            case "part-000.idx":
                DaliReader(f"{folder}/part-000.tar")[:]
            case _:
                try:
                    open_energon(str(folder))[:]
                except UsageError:  # the part asked for has another name now
                    return "no such part"
        return "read"

    return trial


def test_damaged_metadata_of_shards(tmp_path: Path) -> None:
    outcomes = fuzz_briefly(webdataset_trial(tmp_path), 400, name=str(tmp_path))
    assert min(outcomes["SourceError"], outcomes["IndexMismatchError"]) > 40
    assert outcomes["read"] > 5  # an undamaged meaning


MEGATRON = [
    index(),
    index(rest=b"\1\2\3"),
    index(code=8),
    index(lengths=(), pointers=(), documents=(0,)),
    index(lengths=(0, 0), pointers=(0, 0), documents=(0, 0, 1, 2)),
    fairseq(4, (3, 2, 4), 4),
    fairseq(9, (9,), 4),
]


def megatron_trial(folder: Path) -> Trial:
    prefix = f"{folder}/fuzzed"

    def trial(chance: random.Random) -> str:
        damage = mangled(chance.choice(MEGATRON), chance, [18, 26, 34, 38, 46, 54, 70])
        content = damage if chance.random() < 0.95 else MAGIC + chance.randbytes(chance.randrange(120))
        Path(f"{prefix}.idx").write_bytes(content)
        Path(f"{prefix}.bin").write_bytes(chance.randbytes(chance.choice([0, 36, 36, 36, 35, 72])))
        mmap, multimodal, compat, check = (chance.random() < 0.5 for _ in range(4))
        try:
            reader = MegatronReader(prefix, mmap=mmap, multimodal=multimodal, compat=compat, check=check)
        except UsageError:
            return "no modes"
        number = chance.choice([0, 1, 2, -1, -3, 5])
        part = slice(chance.choice([None, 0, 1, -1]), chance.choice([None, 1, 3, -1]))
        refused = 0
        for read in (
            lambda: reader[number],
            lambda: reader[part],
            lambda: reader.read_many([number] * chance.choice([1, 40])),
            lambda: list(reader),
            lambda: reader.get(number, chance.choice([0, 1, -1, 99]), chance.choice([None, 0, 1, -1, 2**40])),
            lambda: reader.document(number),
            lambda: reader.raw(number),
            reader.verify,
            reader.close,
        ):
            try:
                read()
            except (LedgerbeamError, IndexError):
                refused += 1
        return "read" if refused < 5 else "read in part"

    return trial


def test_damaged_megatron_datasets(tmp_path: Path) -> None:
    outcomes = fuzz_briefly(megatron_trial(tmp_path), 1500, most=1_000_000, name=str(tmp_path))
    assert min(outcomes["IndexMismatchError"], outcomes["read in part"]) > 400
    assert min(outcomes["read"], outcomes["no modes"]) > 30


TRIALS = {
    "lit": lit_trial,
    "lit-codecs": codec_trial,
    "shar": shar_trial,
    "shar-headers": header_trial,
    "webdataset": webdataset_trial,
    "megatron": megatron_trial,
}

if __name__ == "__main__":
    main(TRIALS[sys.argv.pop(1)])
