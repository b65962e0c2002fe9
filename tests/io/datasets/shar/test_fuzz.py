"""Damaged Shar folders, by index, by list and streamed: `python -m tests.io.datasets.shar.test_fuzz INPUTS [SEED]`."""

from __future__ import annotations

import gzip
import random
from collections.abc import Sequence
from pathlib import Path

from ledgerbeam.io import Sample, encode_jsonl
from ledgerbeam.io.datasets.shar.reader import SharReader, find_shar, stream_shar, write_shar_fields
from ledgerbeam.io.index.file import index_bytes
from ledgerbeam.io.tar.writer import encode_tar
from tests.io.fuzzing import Files, Trial, fuzz_briefly, main

IDS = ["cut-0", "a/cut-1", "cut-2"]


def shar_trial(folder: Path) -> Trial:
    cuts = encode_jsonl([{"id": name, "duration": 1.5, "custom": {"x": number}} for number, name in enumerate(IDS)])
    labels = encode_jsonl([{"cut_id": name, "label": [number]} for number, name in enumerate(IDS)])
    payloads = [
        {"wav": b"RIFF" * 9, "json": b'{"id": 1}'},
        {"nodata": b"", "nometa": b""},
        {"npy": b"x", "json": b"{}"},
    ]
    audio, places = encode_tar([Sample(name, pair) for name, pair in zip(IDS, payloads, strict=True)])
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
    listed = {field: [f"{folder}/plain/{field}.000000.{kind}"] for field, kind in _KINDS.items()}
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
        with SharReader(
            f"{folder}/fields.json" if chance.random() < 0.5 or "/" not in name else f"{folder}/plain"
        ) as reader:
            if chance.random() < 0.5:
                list(reader)
            elif len(reader):
                reader.read_many([chance.randrange(-len(reader), len(reader))])
        return "read"

    return trial


_KINDS = {"cuts": "jsonl", "label": "jsonl", "audio": "tar"}


def test_damaged_folders_give_typed_errors(tmp_path: Path) -> None:
    outcomes = fuzz_briefly(shar_trial(tmp_path), 600, name=str(tmp_path))
    assert min(outcomes["IndexMismatchError"], outcomes["SourceError"], outcomes["RecordError"]) > 20
    assert min(outcomes["read"], outcomes["streamed 1"]) > 3


if __name__ == "__main__":
    main(shar_trial)
