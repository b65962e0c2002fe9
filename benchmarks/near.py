"""Table: near duplicates, compared with rensa, which keeps signatures and index in memory, and with datatrove."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path

from benchmarks.data import Data
from benchmarks.measured import measure
from benchmarks.near_clusters import write_ours, write_theirs
from benchmarks.peer import PEERS_REMEDY, Peer, peer_python
from benchmarks.peer_near import texts_of
from benchmarks.table import Row, Work, absent_row, most_row, speed_row
from ledgerbeam.transforms.dedup.minhash import MinHash

TITLE = (
    "Near duplicates: documents of 900 bytes in 8 files, 14 bands of 8 of sequences of 5 words, seconds of processors"
)

DOCUMENTS, FILES = 100_000, 8
BANDS, ROWS, NGRAM = 14, 8, 5
WORDS = (75, 225)  # of a document
VOCABULARY = 50_000
COPIED, CHANGED = 0.2, 8
"""Share of documents that are copies of others, and the greatest number of words that are changed in a copy."""

AT_ONCE = 4096
ROUNDS = 3
SIGN_TARGET = 1.0
JOB_LIMIT = 1.5
"""Greatest ratio of the CPU time of all stages, without that of a job of ten documents, to the CPU time of rensa."""

WHOLE_TARGET, CLUSTER_TARGET = 20, 5
"""Least ratio of the speed to that of datatrove: for all stages, and for clustering alone."""

CLUSTERED = 10_000_000
"""Number of documents whose pairs are clustered, for clustering alone."""


def rows(data: Data) -> Iterator[Row]:
    python = _python("rensa")
    if python is None:
        yield absent_row("near duplicates, vs rensa", f"<= {JOB_LIMIT:g} x", PEERS_REMEDY)
        return
    folder = data.work / "near"
    shutil.rmtree(folder, ignore_errors=True)
    count = data.count(DOCUMENTS)
    _write(folder / "in", list(_texts(count)))
    _write(folder / "few", list(_texts(10)))
    with Peer("benchmarks.peer_near", python) as peer:
        options = {"folder": str(folder / "in"), "bands": BANDS, "rows": ROWS, "ngram": NGRAM}
        ours = min(_sign(str(folder / "in")) for _ in range(ROUNDS))
        theirs = min(peer.ask("signatures", **options) for _ in range(ROUNDS))
        yield speed_row(Work("lines of JSON to signatures", "documents", count), ours, "rensa", theirs, SIGN_TARGET)
        seconds, kept = min(peer.ask("clusters", **options) for _ in range(ROUNDS))
    start = min(measure(_dedup(folder, "few", name), folder / name).cpu for name in ("few-0", "few-1"))
    jobs = [measure(_dedup(folder, "in", name), folder / name) for name in ("out-0", "out-1")]
    job = min(jobs, key=lambda one: one.cpu)
    yield most_row(
        "dedup --near: sign, pair, cluster and filter, vs sign, index and join in memory",
        (job.cpu - start) / seconds,
        JOB_LIMIT,
        " x",
        ours=f"{job.cpu - start:.1f} s and {start:.1f} s of start; {job.wall:.1f} s wall, {job.memory / 1e6:.0f} MB",
        other=f"rensa {seconds:.1f} s, {kept:,} stay of {count:,}; ours {_kept(folder / 'out-1'):,}",
    )
    datatrove = _python("datatrove.pipeline.dedup.minhash")
    if datatrove is None:
        yield absent_row("near duplicates, vs datatrove", f">= {WHOLE_TARGET:g}", PEERS_REMEDY)
    else:
        yield _whole(datatrove, folder, count, min(one.wall for one in jobs))
        yield _clusters(datatrove, folder, data.count(CLUSTERED))
    shutil.rmtree(folder)


def _whole(python: str, folder: Path, count: int, ours: float) -> Row:
    """Compare the wall time of all stages. Each side starts two processes, and writes durable results."""
    sizes = (str(BANDS), str(ROWS), str(NGRAM))
    command = [python, "-m", "benchmarks.peer_datatrove", "dedup", f"{folder}/in", f"{folder}/theirs", *sizes]
    theirs = measure(command, folder / "theirs")
    work = Work("dedup --near, from the documents to those that stay", "documents", count)
    note = f", {theirs.wall:.0f} s, {_kept(folder / 'theirs' / 'kept'):,} stay by its own words and hashes"
    return speed_row(work, ours, "datatrove", theirs.wall, WHOLE_TARGET, note=note)


def _clusters(python: str, folder: Path, documents: int) -> Row:
    """Compare clustering alone, of the same pairs. Each side is a program of one process."""
    pairs = write_theirs(folder / "dups", documents, BANDS)
    write_ours(folder / "forests", documents, BANDS)
    gone = str(folder / "gone")
    ours = measure([sys.executable, "-m", "benchmarks.near_clusters", str(folder / "forests"), gone], Path(gone))
    sizes = (str(BANDS), str(ROWS))
    command = [python, "-m", "benchmarks.peer_datatrove", "cluster", f"{folder}/dups", f"{folder}/theirs-gone", *sizes]
    theirs = measure(command, folder / "theirs-gone")
    return speed_row(
        Work(f"clusters of {documents:,} documents, of pairs in files", "pairs", pairs),
        ours.wall,
        "datatrove",
        theirs.wall,
        CLUSTER_TARGET,
        note=f", {theirs.wall:.0f} s in {theirs.memory / 1e6:.0f} MB; ours {ours.wall:.1f} in {ours.memory / 1e6:.0f}",
    )


def _python(module: str) -> str | None:
    """Return the name of a Python interpreter that can import a module; None if there is no such interpreter."""
    with contextlib.suppress(ModuleNotFoundError):  # a package above it
        if importlib.util.find_spec(module):
            return sys.executable
    python = peer_python()
    has_it = (
        python and not subprocess.run([python, "-c", f"import {module}"], capture_output=True, check=False).returncode
    )
    return str(python) if has_it else None


def _texts(count: int) -> Iterator[str]:
    chance = random.Random(11)
    letters = "abcdefghijklmnopqrstuvwxyz"
    vocabulary = ["".join(chance.choices(letters, k=chance.randint(2, 9))) for _ in range(VOCABULARY)]
    cumulative = list(accumulate(1 / rank for rank in range(1, VOCABULARY + 1)))
    made: list[list[str]] = []
    for _ in range(count):
        if made and chance.random() < COPIED:
            words = list(chance.choice(made))
            for _ in range(chance.randint(0, CHANGED)):
                words[chance.randrange(len(words))] = chance.choice(vocabulary)
        else:
            words = chance.choices(vocabulary, cum_weights=cumulative, k=chance.randint(*WORDS))
        made.append(words)
        yield " ".join(words)


def _write(folder: Path, texts: Sequence[str]) -> None:
    folder.mkdir(parents=True)
    for number in range(FILES):
        some = texts[number * len(texts) // FILES : (number + 1) * len(texts) // FILES]
        lines = [json.dumps({"id": place, "text": text}) + "\n" for place, text in enumerate(some)]
        (folder / f"{number}.jsonl").write_text("".join(lines), encoding="utf-8")


def _sign(folder: str) -> float:
    minhash = MinHash(BANDS, ROWS, NGRAM)
    started = time.process_time()
    texts = texts_of(folder)
    for first in range(0, len(texts), AT_ONCE):
        minhash.sign(texts[first : first + AT_ONCE])
    return time.process_time() - started


def _dedup(folder: Path, sources: str, name: str) -> list[str]:
    command = (
        "dedup",
        f"{folder}/{sources}/*.jsonl",
        "--near",
        "text",
        "--output",
        f"{folder}/{name}",
        "--to",
        "jsonl",
    )
    chosen = ("--minhash", f"{BANDS}x{ROWS}", "--ngram", str(NGRAM), "--ledger", f"{folder}/{name}.ledger", "--quiet")
    return [sys.executable, "-m", "ledgerbeam", *command, *chosen]


def _kept(folder: Path) -> int:
    return sum(path.read_bytes().count(b"\n") for path in folder.glob("*.jsonl"))
