"""Work that the table `answers` runs in separate processes: store, pack and look up answers."""

from __future__ import annotations

import asyncio
import os
import random
import sqlite3
import time
from collections.abc import Callable, Iterator
from functools import cache
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any

import orjson

import ledgerbeam
from benchmarks.serve import serve
from ledgerbeam.answers import answering
from ledgerbeam.ledger.answer_files import AnswersPlace
from ledgerbeam.ledger.answer_index import index_of
from ledgerbeam.ledger.answers import TaskAnswers

IN_FLIGHT = 256
TASK = 10_000  # requests of a task
POOL = 16_000_000  # characters from which answers are cut


@cache
def _pool() -> str:
    chosen = random.Random(1)
    words = [f"{chosen.getrandbits(40):x}"[: chosen.randrange(2, 11)] for _ in range(20_000)]
    return " ".join(chosen.choices(words, weights=[1 / (rank + 10) for rank in range(len(words))], k=POOL // 7))


def answer_of(number: int) -> dict[str, Any]:
    """Return an answer with 200 to 2,000 bytes of text."""
    chosen = random.Random(number)
    start, size = chosen.randrange(POOL // 2), int(200 * 10 ** chosen.random())
    return {"text": _pool()[start : start + size]}


def request_of(number: int) -> dict[str, Any]:
    """Return a request."""
    return {"model": "m1", "temperature": 0, "prompt": f"Rate the page with the number {number}."}


async def _ask_all(folder: str, count: int, ask: Callable[..., Any]) -> float:
    """Ask all requests. Return seconds."""
    place = AnswersPlace(f"{folder}/kept", {}, is_kept=True, run=str(os.getpid()))
    index_of(place).update()
    began = time.perf_counter()
    for first in range(0, count, TASK):
        with answering(TaskAnswers(place, first.to_bytes(16, "big"), 0, TASK)):
            numbers = iter(range(first, min(first + TASK, count)))
            await asyncio.gather(*(_ask_some(numbers, ask) for _ in range(IN_FLIGHT)))
    return time.perf_counter() - began


async def _ask_some(numbers: Iterator[int], ask: Callable[..., Any]) -> None:
    for number in numbers:
        await ledgerbeam.remember(request_of(number), ask)


def store(folder: str, count: int) -> list[float]:
    """Store the answers. Return seconds, bytes of the answers and peak memory in MB."""
    size = 0
    _pool()

    async def ask(request: Any) -> Any:
        nonlocal size
        answer = answer_of(int(request["prompt"].split()[-1][:-1]))
        size += len(orjson.dumps(answer))
        return answer

    return [asyncio.run(_ask_all(folder, count, ask)), size, _peak_mb()]


def pack(folder: str, count: int) -> list[float]:
    """Pack the answers. Return seconds."""
    del count
    began = time.perf_counter()
    AnswersPlace(f"{folder}/kept", {}, is_kept=True).pack()
    return [time.perf_counter() - began]


def look_up(folder: str, count: int) -> list[float]:
    """Index and look up. Return the seconds of both, peak memory in MB, and bytes on the disk."""
    began = time.perf_counter()

    async def ask() -> Any:
        raise RuntimeError("a stored answer was not found")

    seconds = asyncio.run(_ask_all(folder, count, ask))
    files = [path for path in Path(folder, "kept").rglob("*") if path.is_file()]
    return [time.perf_counter() - began - seconds, seconds, _peak_mb(), sum(path.stat().st_size for path in files)]


def sqlite(folder: str, count: int, group: int) -> list[float]:
    """Store and look up in SQLite, each group in a commit. Return the seconds of both, and bytes on the disk."""
    _pool()
    path = Path(folder, f"sqlite-{group}.db")
    base = sqlite3.connect(path, isolation_level=None)
    base.execute("PRAGMA journal_mode=WAL")
    base.execute("PRAGMA synchronous=FULL")
    base.execute("CREATE TABLE answers (request BLOB PRIMARY KEY, answer BLOB)")
    numbers = iter(range(count))
    began = time.perf_counter()
    while some := [*islice(numbers, group)]:
        base.execute("BEGIN")
        rows = [(_key(number), orjson.dumps(answer_of(number))) for number in some]
        base.executemany("INSERT INTO answers VALUES (?, ?)", rows)
        base.execute("COMMIT")
    stored = time.perf_counter()
    for number in range(count):
        (answer,) = base.execute("SELECT answer FROM answers WHERE request = ?", (_key(number),)).fetchone()
        orjson.loads(answer)
    found = time.perf_counter()
    base.close()
    size = path.stat().st_size
    path.unlink()
    return [stored - began, found - stored, size]


def _key(number: int) -> bytes:
    return blake2b(orjson.dumps(request_of(number), option=orjson.OPT_SORT_KEYS), digest_size=16).digest()


def _peak_mb() -> float:
    return int(Path("/proc/self/status").read_text(encoding="utf-8").partition("VmHWM:")[2].split()[0]) * 1024 / 1e6


if __name__ == "__main__":
    serve({work.__name__: work for work in (store, pack, look_up, sqlite)})
