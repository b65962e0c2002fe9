"""Table: CPU seconds with and without the compiled loops, in the same process."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from benchmarks.data import Data
from benchmarks.table import Row, Work, absent_row, speed_row
from benchmarks.timing import Contender, best, timed
from ledgerbeam.io import JsonlReader, Sample, TarReader, native, write_index
from ledgerbeam.io.datasets.megatron.packs import copy_ranges
from ledgerbeam.io.index.newlines import build_jsonl_index
from ledgerbeam.io.lines.rows import ByteRows
from ledgerbeam.io.storage.objects import list_files
from ledgerbeam.io.tar.grouping import group_key
from ledgerbeam.io.tar.reader import build_tar_index
from ledgerbeam.io.tar.walk import walk_bytes, walk_tar
from ledgerbeam.io.tar.writer import encode_tar
from ledgerbeam.sources.forms import PlacedPart, PlacedRecords
from ledgerbeam.transforms.exchange.keys import RecordKeys

TITLE = "Compiled loops against the same work in Python, warm cache, processor time"

LEAST = 1.5
"""Least speed-up that justifies a compiled loop."""

READS = 100_000
SAMPLES = 5_000
SMALL_MEMBERS = 200_000
FILES = 100_000
RANGES, RANGE = 20_000, 250  # ranges of tokens, and the tokens of each
IN_MEMORY = 64 * 1024 * 1024
ROUNDS = 7


def rows(data: Data) -> Iterator[Row]:
    if native.compiled is None:
        yield absent_row("compiled loops", f">= {LEAST:g}", "make setup where there is a C compiler")
        return
    for work, run in _works(data):
        on, off = (_switched(run, on=on) for on in (True, False))
        seconds = best({"on": on, "off": off}, ROUNDS)
        yield speed_row(work, seconds["on"], "Python", seconds["off"], LEAST)


def _works(data: Data) -> Iterator[tuple[Work, Callable[[], object]]]:
    members, lines, index = str(data.members), str(data.jsonl), str(data.work / "lines.idx")
    found = walk_tar(members)
    count = len(found)
    yield Work("headers of a tar, 20 kB members", "members", count), lambda: walk_tar(members)
    yield Work("grouping of its members", "members", count), lambda: group_key(found, members)
    yield Work("index of it: both", "members", count), lambda: build_tar_index(members, group="key")
    with open(members, "rb") as file:
        content = file.read(IN_MEMORY)
    held = sum(1 for end in found.header_offset.tolist() if end + 32_768 < len(content))
    content = content[: int(found.header_offset[held])] + bytes(1024)
    yield Work("headers of a tar in memory", "members", held), lambda: walk_bytes(content, members)

    small = str(_small_members(data.work / "small.tar", data.count(SMALL_MEMBERS)))
    yield Work("headers of a tar, 500 B members", "members", data.count(SMALL_MEMBERS)), lambda: walk_tar(small)

    archive = str(data.work / "members.idx")
    starts = build_tar_index(members, group="key")
    write_index(archive, starts)
    chosen = random.Random(3).choices(range(1, len(starts) - 2), k=data.count(SAMPLES))
    with TarReader(members, archive) as samples:
        yield Work("TarReader.read_many", "samples", len(chosen)), lambda: samples.read_many(chosen)

    offsets = build_jsonl_index(lines)
    write_index(index, offsets)
    size = data.jsonl.stat().st_size
    yield Work("newlines of a JSONL file", "B", size), lambda: build_jsonl_index(lines)
    wanted = random.Random(3).choices(range(len(offsets) - 1), k=data.count(READS))
    with JsonlReader(lines, index) as reader:
        yield Work("JsonlReader.read_many", "records", len(wanted)), lambda: reader.read_many(wanted)

    with data.jsonl.open("rb") as file:
        text = file.read(IN_MEMORY)
    held_lines = ByteRows.lines(text[: text.rindex(b"\n") + 1])
    numbers = np.arange(len(held_lines), dtype=np.uint64)
    records = PlacedRecords([PlacedPart("lines.jsonl", numbers, None, held_lines)])
    keys = RecordKeys("key", ("id",))
    yield Work("keys of JSONL lines", "lines", len(held_lines)), lambda: keys.of(records)
    mixed = held_lines.at(np.random.default_rng(3).permutation(len(held_lines)))
    yield Work("lines in another order", "lines", len(mixed)), mixed.joined

    tokens, into = np.arange(RANGES * RANGE, dtype=np.uint16), np.empty(RANGES * RANGE, np.int64)
    begins = np.random.default_rng(4).permutation(RANGES) * RANGE
    ranges, places = np.stack([begins, begins + RANGE]), np.arange(RANGES) * RANGE
    yield Work("tokens of packs", "tokens", len(tokens)), lambda: copy_ranges(tokens, ranges, into, places)

    folder = _folder(data.work / "many", data.count(FILES))
    described = Work("sizes of the files of a folder", "files", data.count(FILES))
    yield described, lambda: sum(len(page.names) for page in list_files(str(folder)))


def _small_members(path: Path, count: int) -> Path:
    if not path.exists():
        samples = (Sample(f"{number:08d}", {"txt": bytes(500), "cls": bytes(500)}) for number in range(count // 2))
        path.write_bytes(encode_tar(list(samples), group="key")[0])
    return path


def _folder(folder: Path, count: int) -> Path:
    if not folder.is_dir():
        folder.mkdir()
        for number in range(count):
            (folder / f"source-{number:08d}.jsonl").touch()
    return folder


def _switched(run: Callable[[], object], *, on: bool) -> Contender:
    work = timed(run, time.process_time)  # both do the same system calls, and a busy machine must not decide

    def switched() -> float:
        with _compiled(on=on):
            return work()

    return switched


@contextmanager
def _compiled(*, on: bool) -> Iterator[None]:
    """Switch the compiled loops on or off in the body, as `LEDGERBEAM_PURE_PYTHON` does for a whole process."""
    before = native.compiled
    native.compiled = before if on else None
    try:
        yield
    finally:
        native.compiled = before
