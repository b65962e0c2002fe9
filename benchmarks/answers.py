"""Table: answers of services, compared with the request cache of datatrove and with SQLite.

Each side stores answers to requests of which 256 are in flight, and must have each answer on the disk before the next
request takes its place; datatrove only queues it. Then a fresh process looks all of them up.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator

from benchmarks.data import Data
from benchmarks.peer import PEERS_REMEDY, Peer, peer_python
from benchmarks.table import Row, Work, absent_row, most_row, rate, speed_row

TITLE = "Answers of services: texts of 200 to 2,000 bytes, 256 requests in flight, one process"

ANSWERS = 1_000_000
ONE_EACH = 20_000  # answers that the sides store that commit each one
STORED = 1.1
"""Greatest ratio of the bytes on the disk to those of the answers."""


def rows(data: Data) -> Iterator[Row]:
    folder, count, few = data.work / "answers", data.count(ANSWERS), data.count(ONE_EACH)
    shutil.rmtree(folder, ignore_errors=True)
    environment = {"LEDGERBEAM_CACHE": f"{folder}/cache"}

    def ask(work: str, **words: object) -> list[float]:
        with Peer("benchmarks.answers_work", environment=environment) as fresh:
            found: list[float] = fresh.ask(work, **{"folder": str(folder), "count": count, **words})
        return found

    stored, plain, memory = ask("store")
    (packed,) = ask("pack")
    indexed, looked, memory_of_index, size = ask("look_up")
    together, found, size_of_groups = ask("sqlite", group=256)
    singly, _, _ = ask("sqlite", group=1, count=few)
    work = Work("store", "answers", count)
    yield speed_row(work, stored, "SQLite, 256 in a commit", together, 0.3)
    yield speed_row(work, stored, "SQLite, a commit each", singly / few * count, 1)
    python = peer_python()
    if python is None:
        yield absent_row("store", ">= 5", PEERS_REMEDY)
    else:
        with Peer("benchmarks.peer_answers", python) as peer:
            theirs, asked = peer.ask("store", folder=str(folder), count=few)
        yield speed_row(work, stored, "datatrove", theirs / few * count, 5)
        yield speed_row(Work("look up", "answers", count), looked, "datatrove", asked / few * count, 1)
    note = f"; first {rate(count / packed, 'answers')} packed, {rate(count / indexed, 'answers')} indexed"
    yield speed_row(Work("look up", "answers", count), looked, "SQLite", found, 0.15, note=note)
    yield most_row(
        "bytes on the disk, of those of answers", size / plain, STORED, "", other=f"SQLite {size_of_groups / plain:.2f}"
    )
    yield most_row("peak memory, store", memory, 300, " MB")
    yield most_row("peak memory, index and look up", memory_of_index, 300, " MB")
