"""Table: writing of compressed shards, compared with plain ones, and random reads of compressed shards."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import orjson

from benchmarks.data import Data
from benchmarks.peer import ROOT
from benchmarks.table import Row, Work, absent_row, least_row, most_row, speed_row
from benchmarks.timing import alternate, best, timed
from ledgerbeam.io import JsonlFormat, JsonlReader, SeekableZstd

TITLE = "Compressed shards: texts of real packages, `--compress zstd` with the default level and frames"

CORPUS = ROOT / ".cache" / "corpus"
PROSE = (".md", ".rst", ".txt")
CHARACTERS = (300, 3_000)
"""Least and greatest number of characters of a record: texts are cut into records of random lengths."""

READS = 50_000
ROUNDS = 3
MOST_PLAIN, LEAST_SPEED, LEAST_READS = 0.35, 0.8, 30_000


def rows(data: Data) -> Iterator[Row]:
    texts = _texts()
    if not texts:
        yield absent_row("compressed shards", f"<= {MOST_PLAIN}", "scripts/fetch_corpus.sh")
        return
    yield _size("bytes of JSONL, code and prose, to plain", [text for _, text in texts])
    yield _size("bytes of JSONL, prose alone, to plain", [text for name, text in texts if name.endswith(PROSE)])
    records = _records([text for _, text in texts], data.size // 10)
    yield from _reads(data, records)
    yield from _job(data, records)


def _texts() -> list[tuple[str, str]]:
    """Return name and content of each member of the archives that is a text."""
    found = []
    for path in sorted(CORPUS.glob("*.tar")):
        with tarfile.open(path) as archive:
            for member in filter(tarfile.TarInfo.isfile, archive):
                file = archive.extractfile(member)
                content = b"" if file is None else file.read()
                try:
                    text = content.decode()
                except UnicodeDecodeError:
                    continue
                if text and "\0" not in text:
                    found.append((member.name.lower(), text))
    return found


def _records(texts: list[str], size: int) -> list[dict[str, object]]:
    """Cut texts into records of random lengths, in random order. Repeat them until they have `size` bytes."""
    chance = random.Random(17)
    pieces = []
    for text in texts:
        start = 0
        while start < len(text):
            stop = start + chance.randint(*CHARACTERS)
            pieces.append(text[start:stop])
            start = stop
    records: list[dict[str, object]] = []
    made = 0
    while made < size:
        chance.shuffle(pieces)
        for piece in pieces:
            records.append({"id": f"text-{len(records):09d}", "text": piece})
            made += len(piece)
            if made >= size:
                break
    return records


def _size(work: str, texts: list[str]) -> Row:
    records = _records(texts, sum(map(len, texts)))
    plain = JsonlFormat().encode(records)[0].data
    packed = SeekableZstd(JsonlFormat()).encode(records)[0].data
    note = f"{len(packed) / 1e6:.3g} of {len(plain) / 1e6:.3g} MB"
    return most_row(work, len(packed) / len(plain), MOST_PLAIN, "", ours=note)


def _reads(data: Data, records: list[dict[str, object]]) -> Iterator[Row]:
    plain, packed = data.work / "texts.jsonl", data.work / "texts.jsonl.zst"
    for encoder in (JsonlFormat(), SeekableZstd(JsonlFormat())):
        for file in encoder.encode(records):
            (data.work / f"texts{file.ending}").write_bytes(file.data)
    wanted = random.Random(3).choices(range(len(records)), k=data.count(READS))
    near = [number % 4_000 for number in wanted]
    with JsonlReader(str(plain)) as theirs, JsonlReader(str(packed)) as ours:

        def each(reader: JsonlReader, numbers: list[int]) -> None:
            for number in numbers:
                _ = reader[number]

        seconds = best(
            {
                "plain": timed(lambda: each(theirs, wanted)),
                "far": timed(lambda: each(ours, wanted)),
                "near": timed(lambda: each(ours, near)),
                "many": timed(lambda: ours.read_many(wanted)),
            },
            ROUNDS,
        )
    size = f" (plain {len(wanted) / seconds['plain'] / 1000:.0f} k/s)"
    for name, key in (
        ("JsonlReader[i], all over the file", "far"),
        ("JsonlReader[i], in 7 MB of it", "near"),
        ("JsonlReader.read_many, all over the file", "many"),
    ):
        yield least_row(Work(name, "records", len(wanted)), seconds[key], LEAST_READS, note=size)


def _job(data: Data, records: list[dict[str, object]]) -> Iterator[Row]:
    folder = data.work / "compressed"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    share = len(records) // 4 + 1
    for source in range(4):
        part = records[source * share : (source + 1) * share]
        (folder / f"{source}.jsonl").write_bytes(b"".join(orjson.dumps(record) + b"\n" for record in part))
    size = sum(path.stat().st_size for path in folder.glob("*.jsonl"))
    plain, packed = partial(_map, folder, []), partial(_map, folder, ["--compress=zstd"])
    found = alternate({"plain": timed(plain), "zstd": timed(packed)}, ROUNDS, warm_up=False)
    seconds = {name: min(runs) for name, runs in found.items()}
    shutil.rmtree(folder)
    workers = min(2, len(os.sched_getaffinity(0)))
    work = Work(f"map, {workers} workers, the whole command", "B", size)
    yield speed_row(work, seconds["zstd"], "plain", seconds["plain"], LEAST_SPEED)


def _map(folder: Path, options: list[str]) -> None:
    for name in ("out", "ledger"):
        shutil.rmtree(folder / name, ignore_errors=True)
    command = [sys.executable, "-m", "ledgerbeam", "map", "benchmarks.functions:keep", f"{folder}/*.jsonl"]
    places = ["--to=jsonl", f"--output={folder}/out", f"--ledger={folder}/ledger", "--workers=2", "--quiet"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [*command, *places, *options], check=False, cwd=folder, env=environment, capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr}")
