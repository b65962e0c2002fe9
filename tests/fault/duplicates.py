"""``python -m tests.fault.duplicates --documents N --kills K``: near deduplication on S3, killed all over its stages.

Which documents are duplicates is known from how they are made, so what must stay is not computed by the library. Each
process may have a gigabyte of memory of its own. Ends with one line of JSON; the status is 1 if anything is wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any

import s3fs

from benchmarks.scale_runs import tree
from ledgerbeam.errors import LedgerNotFoundError
from ledgerbeam.ledger.places import open_store
from tests.servers import s3

FILES = 40
WORDS = 50
"""Of a document: a copy with one more shares 46 of 47 n-grams with it, and all of its bands with them but by a chance
of less than one to a thousand million."""

VOCABULARY = 200_000
COPIES = 0.2
"""Of the documents, those that are an earlier one; a half of them have one more word."""

MEMORY = 1_000_000_000
TASK_BYTES = 2_000_000
STAGES = {"scatter": "cluster/pairs/scatter", "pairs": "cluster/pairs", "cluster": "cluster", "dedup": ""}
"""The stages, and their ledgers below that of the job."""

_PATIENCE = 6.0
_MOST_TASKS = 40

SEEN = "SEEN_DOCUMENTS"
"""Environment variable: the file to which `text_of` writes which documents it was given."""

ID_BYTES = 8


def text_of(record: dict[str, Any]) -> str:
    """Return the text of a document, and note that it was asked for."""
    if not _seen:
        _seen.append(os.open(os.environ[SEEN], os.O_WRONLY | os.O_APPEND))
    os.write(_seen[0], record["id"].to_bytes(ID_BYTES, "little"))
    text: str = record["text"]
    return text


_seen: list[int] = []


@dataclass
class Found:
    """What a campaign has found.

    Attributes:
        documents: How many there were.
        stay: How many must stay.
        kills: How many were made.
        killed: How many while each stage was at work.
        again: Documents that were signed more than once, counted once for each time.
        again_at_most: How many that may be: those of the tasks that kills interrupted, and of those not yet recorded.
        seconds: Of all starts.
        memory: The largest peak of resident memory of a process, in bytes.
        wrong: What was wrong.
    """

    documents: int
    stay: int
    kills: int = 0
    killed: dict[str, int] = field(default_factory=dict)
    again: int = 0
    again_at_most: int = 0
    seconds: float = 0.0
    memory: int = 0
    wrong: list[str] = field(default_factory=list)


def documents(count: int, chance: random.Random) -> Iterator[tuple[int, str, bool]]:
    """Yield the number, text and fate of each document: whether it stays."""
    letters = "abcdefghijklmnopqrstuvwxyz"
    vocabulary = ["".join(chance.choices(letters, k=chance.randint(3, 9))) for _ in range(VOCABULARY)]
    made: list[str] = []  # of those that others are copies of
    for number in range(count):
        if made and chance.random() < COPIES:
            more = f" {chance.choice(vocabulary)}" if chance.random() < 0.5 else ""
            yield number, chance.choice(made) + more, False
            continue
        text = " ".join(chance.choices(vocabulary, k=WORDS))
        if chance.random() < COPIES:
            made.append(text)
        yield number, text, True


def run(count: int, kills: int, seed: int, folder: Path) -> Found:
    """Deduplicate documents with so many kills, then again in one piece; return what was found."""
    chance = random.Random(seed)
    with s3.s3_server() as server:
        place = server.place()
        store = s3fs.S3FileSystem(**server.options)
        stay = []
        each = -(-count // FILES)
        made = documents(count, chance)
        for number in range(FILES):
            some = list(islice(made, each))
            lines = [json.dumps({"id": one, "text": text}) + "\n" for one, text, _ in some]
            store.pipe_file(f"{place}/in/{number:03d}.jsonl", "".join(lines).encode())
            stay += [one for one, _, stays in some if stays]
        found = Found(count, len(stay))
        job = _Job(place, server.env, folder, found)
        job.kill_all_over(kills, chance)
        written = _written(store, f"{place}/out")
        if written[0] != stay:
            odd = sorted(set(written[0]) ^ set(stay))[:5]
            found.wrong.append(f"expected {len(stay)} documents to stay, found {len(written[0])}; differ in {odd}")
        job.count_again(count)
        whole = _Job(place, server.env, folder / "whole", Found(count, len(stay)), name="whole")
        whole.start().wait()
        if _written(store, f"{place}/whole")[1] != written[1]:
            found.wrong.append("a run in one piece has written other bytes")
    return found


class _Job:
    """The command, with what it is started with."""

    def __init__(self, place: str, env: dict[str, str], folder: Path, found: Found, name: str = "out") -> None:
        folder.mkdir(exist_ok=True)
        self._seen = folder / "seen"
        self._seen.touch()
        self._log = folder / "log"
        self._ledger = str(folder / "ledger")
        self._found = found
        self._env = {**os.environ, **env, SEEN: str(self._seen)}
        sources = (f"{place}/in/*.jsonl", "--output", f"{place}/{name}", "--to", "jsonl", "--ledger", self._ledger)
        sizes = ("--task-bytes", str(TASK_BYTES), "--bucket-bytes", "64M", "--workers", "2")
        near = ("--near", f"{__name__ if __name__ != '__main__' else 'tests.fault.duplicates'}:text_of")
        self._command = [
            sys.executable,
            "-m",
            "ledgerbeam",
            "dedup",
            *sources,
            *near,
            *sizes,
            "--flush-interval",
            "0.2",
        ]

    def start(self) -> subprocess.Popen[bytes]:
        """Start it; each of its processes may have `MEMORY` bytes of its own."""
        with self._log.open("ab") as log:
            return subprocess.Popen(self._command, env=self._env, stdout=log, stderr=log, start_new_session=True)

    def kill_all_over(self, kills: int, chance: random.Random) -> None:
        """Start it until it ends, and kill it in each stage as often, after some tasks or a while.

        A stage that ends too soon leaves its kills to the next one.
        """
        started = time.monotonic()
        quota, patience = 0, _PATIENCE
        while True:
            before, process = self._done(), self.start()
            most, until = chance.randint(1, _MOST_TASKS), time.monotonic() + chance.uniform(1.0, patience)
            while process.poll() is None:
                self._look(process.pid)
                done, stage = self._done(), self._stage()
                quota = kills * (list(STAGES).index(stage) + 1) // len(STAGES)
                enough = sum(done) >= sum(before) + most or time.monotonic() > until
                if enough and self._found.kills < quota:
                    break
                time.sleep(0.02)
            if process.poll() is not None:
                break
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            self._found.killed[stage] = self._found.killed.get(stage, 0) + 1
            self._found.kills += 1
            patience = _PATIENCE if sum(done) > sum(before) else patience * 1.3
        self._found.seconds = round(time.monotonic() - started, 1)
        if process.returncode:
            tail = self._log.read_bytes()[-2000:].decode(errors="replace")
            self._found.wrong.append(f"it ended with {process.returncode}: {tail}")

    def _stage(self) -> str:
        """Return the last stage that has begun a run."""
        begun = [name for name, below in STAGES.items() if _has_run(f"{self._ledger}/{below}".rstrip("/"))]
        return begun[-1] if begun else next(iter(STAGES))

    def count_again(self, count: int) -> None:
        """Count the documents that were signed more than once."""
        seen = self._seen.stat().st_size // ID_BYTES
        self._found.again = seen - count
        # In each kill while documents are signed: a task of each worker, one that it has drawn ahead, and those of a
        # flush interval.
        task = count // max(1, self._done()[0])
        self._found.again_at_most = (1 + self._found.killed.get("scatter", 0)) * 6 * task
        if not 0 <= self._found.again <= self._found.again_at_most:
            self._found.wrong.append(
                f"expected at most {self._found.again_at_most} documents to be signed again, found {self._found.again}"
            )

    def _done(self) -> list[int]:
        return [_tasks(f"{self._ledger}/{below}".rstrip("/")) for below in STAGES.values()]

    def _look(self, pid: int) -> None:
        for one in tree(pid):
            with suppress(OSError):  # it has ended
                status = Path(f"/proc/{one}/status").read_text(encoding="utf-8")
                if "VmHWM:" in status:
                    peak = int(status.partition("VmHWM:")[2].split()[0]) * 1024
                    self._found.memory = max(self._found.memory, peak)


def _tasks(ledger: str) -> int:
    try:
        return open_store(ledger, create=False, read_only=True).totals().tasks
    except (FileNotFoundError, LedgerNotFoundError):
        return 0


def _has_run(ledger: str) -> bool:
    try:
        return bool(open_store(ledger, create=False, read_only=True).runs())
    except (FileNotFoundError, LedgerNotFoundError):
        return False


def _written(store: s3fs.S3FileSystem, folder: str) -> tuple[list[int], str]:
    """Return the numbers of the documents of a folder, in order, and a hash of its files."""
    store.invalidate_cache()
    numbers: list[int] = []
    digest = blake2b()
    for name in sorted(store.glob(f"{folder}/*.jsonl")):
        data = store.cat_file(name)
        digest.update(f"{Path(name).name} {len(data)}\n".encode() + data)
        numbers += [json.loads(line)["id"] for line in data.splitlines()]
    return numbers, digest.hexdigest()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=2_000_000)
    parser.add_argument("--kills", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="duplicates-") as folder:
        found = run(args.documents, args.kills, args.seed, Path(folder))
    print(json.dumps(asdict(found)))
    return 1 if found.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
