"""Answers that are kept at a URL: no stored answer is lost, whatever jobs write, pack and look up at once."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import ledgerbeam
from ledgerbeam.answers import answering
from ledgerbeam.io.storage.objects import ObjectFolder
from ledgerbeam.ledger import answer_files, answer_index
from ledgerbeam.ledger.answer_files import PACKED, AnswersPlace, block_of
from ledgerbeam.ledger.answer_index import AnswerIndex
from ledgerbeam.ledger.answers import TaskAnswers
from tests.servers.s3 import S3Server

SOURCES = [bytes([number]) * 16 for number in range(3)]


class Killed(Exception):  # noqa: N818 - stands for the end of a process
    """A launcher was killed."""


class Job:
    """A process of a job: its files, its index, and the requests that it has to find.

    `cache` is the folder of its host.
    """

    numbers = itertools.count()

    def __init__(self, folder: str, cache: Path, options: Any = None, stored: Sequence[Any] = ()) -> None:
        self.place = AnswersPlace(folder, options or {}, is_kept=True, run=str(next(self.numbers)))
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("LEDGERBEAM_CACHE", str(cache))
            self.index = AnswerIndex(self.place)
        self.stored = {*stored}
        self.own: set[tuple[int, int, Any]] = set()  # with source and start of their task
        self.tasks: dict[tuple[int, int], TaskAnswers] = {}
        self.calls = 0

    def asks(self, requests: Sequence[Any], source: int = 0, start: int = 0, *, begins: bool = True) -> None:
        """Ask the requests of a task, which begins or goes on."""
        task = self.tasks.get((source, start))
        if task is None or begins:
            task = self.tasks[source, start] = TaskAnswers(self.place, SOURCES[source], start, start + 10)
            task._index = self.index

        async def ask(request: Any) -> Any:
            self.calls += 1
            return {"to": request, "text": random.Random(next(self.numbers)).randbytes(200).hex()}

        async def together() -> list[Any]:
            with answering(task):
                return await asyncio.gather(*(ledgerbeam.remember(request, ask) for request in requests))

        found = asyncio.run(together())
        assert [one["to"] for one in found] == [*requests]
        self.own |= {(source, start, request) for request in requests}

    def must_find(self, request: Any, source: int, start: int) -> bool:
        return request in self.stored or (source, start, request) in self.own


@pytest.fixture
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"_BLOCK_BYTES": 300, "_PACK_BYTES": 800, "_LAST_BLOCK": 100, "_MERGED": 3}.items():
        monkeypatch.setattr(answer_files, name, value)
    monkeypatch.setattr(answer_files, "_MERGED_BYTES", 500)
    monkeypatch.setattr(answer_index, "_ROWS", 8)
    monkeypatch.setattr(answer_index, "_CACHED", 2)


REQUESTS = st.lists(st.integers(0, 7), min_size=1, max_size=5)
STEPS = st.one_of(
    st.tuples(st.just("start"), st.integers(0, 1)),
    st.tuples(
        *(st.just("ask"), st.integers(0, 3), REQUESTS),
        *(st.integers(0, 2), st.sampled_from([0, 10]), st.booleans()),
    ),
    st.tuples(st.just("pack"), st.sampled_from([0, 0, 1, 2, 3])),
)
GROWS = [
    *(("ask", 0, [1], 0, 0, True), ("start", 0), ("ask", 0, [2], 0, 0, False)),
    *(("start", 0), ("ask", 2, [1, 2], 1, 0, True)),
]
GONE = [
    *(("ask", 0, [1, 2], 0, 0, True), ("start", 1), ("ask", 1, [3], 1, 0, True)),
    *(("pack", 0), ("ask", 1, [1, 2], 1, 0, False), ("ask", 1, [1, 2], 2, 0, True)),
]


@pytest.mark.usefixtures("_small")
@given(st.lists(STEPS, max_size=25))
@example(GROWS)
@example(GONE)
@example([("ask", 0, range(8), 0, 0, True), ("pack", 3)])
def test_a_job_finds_all_that_was_stored_before_it_began_or_by_itself(
    tmp_path_factory: pytest.TempPathFactory, steps: list[Any]
) -> None:
    root = tmp_path_factory.mktemp("kept")
    folder, stored = str(root / "answers"), set[int]()
    jobs = [Job(folder, root / "host0")]
    for what, *values in steps:
        if what == "start":
            jobs.append(Job(folder, root / f"host{values[0]}", stored=[*stored]))
            jobs[-1].index.update()
        elif what == "ask":
            which, requests, source, start, begins = values
            job = jobs[which % len(jobs)]
            new = {request for request in requests if not job.must_find(request, source, start)}
            calls = job.calls
            job.asks(requests, source, start, begins=begins)
            assert job.calls - calls <= len(new), "a stored answer was paid again"
            stored |= {*requests}
        else:
            (kill,) = values
            reached = itertools.count(1)

            def kill_at(_: str, kill: int = kill, reached: Iterator[int] = reached) -> None:
                if next(reached) == kill:
                    raise Killed

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(answer_files, "fault_point", kill_at)
                with contextlib.suppress(Killed):
                    jobs[0].place.pack()
    last = Job(folder, root / "host2")
    last.place.pack()
    last.asks([*stored])
    assert last.calls == 0
    names = [*last.place.files()]
    assert all(name.startswith(PACKED) for name in names)
    assert sorted(path.name for path in (root / "answers").glob("*")) == ([PACKED] if stored else [])


WRITING = """
import asyncio, random, sys
import ledgerbeam
from ledgerbeam.answers import answering
from ledgerbeam.ledger.answer_files import AnswersPlace
from ledgerbeam.ledger.answers import TaskAnswers

folder, number = sys.argv[1], int(sys.argv[2])
place = AnswersPlace(folder, {}, is_kept=True, run=str(number))

async def ask(request):
    return {"to": request, "text": "x" * 50}

async def main():
    for task in range(30):
        with answering(TaskAnswers(place, bytes([task % 3]) * 16, task, task + 1)):
            for part in range(4):
                first = number * 1000 + task * 20 + part * 5
                await asyncio.gather(*(ledgerbeam.remember(one, ask) for one in range(first, first + 5)))
            if number == 0 or task % 7 == 6:
                place.pack()

asyncio.run(main())
"""


def test_processes_write_and_pack_at_once_and_lose_nothing(tmp_path: Path) -> None:
    folder, environment = str(tmp_path / "answers"), {**os.environ, "LEDGERBEAM_CACHE": str(tmp_path / "cache")}
    words = [sys.executable, "-c", WRITING, folder]
    writing = [subprocess.Popen([*words, str(number)], env=environment) for number in range(3)]
    assert [process.wait() for process in writing] == [0, 0, 0]
    job = Job(folder, tmp_path / "other-host")
    job.place.pack()
    job.asks([number * 1000 + one for number in range(3) for one in range(600)])
    assert job.calls == 0
    assert all(name.startswith(PACKED) for name in job.place.files())


def packed(folder: str, requests: Sequence[Any], cache: Path, options: Any = None) -> Job:
    """Return a job that has stored and packed answers."""
    job = Job(folder, cache, options)
    job.asks(requests)
    job.place.pack()
    return job


@pytest.mark.usefixtures("_small")
def test_many_small_files_become_one_without_repeated_answers(tmp_path: Path) -> None:
    place, keys = AnswersPlace(str(tmp_path), {}, is_kept=True), [bytes([number]) * 16 for number in range(3)]
    (tmp_path / PACKED).mkdir()

    def blocks(answer: bytes) -> dict[str, bytes]:
        """Return a file with all keys, as a launcher that was killed has made it, and files with one each."""
        made = [block_of([(key, answer) for key in some]) for some in (keys, *([key] for key in keys))]
        return {f"{blake2b(block, digest_size=16).hexdigest()}.answers": block for block in made}

    numbered = (blocks(b"%d" % number) for number in itertools.count())
    for name, block in next(files for files in numbered if min(files) == next(iter(files))).items():
        (tmp_path / PACKED / name).write_bytes(block)
    place.pack()
    assert sorted(key for _, key, *_ in place.entries()) == keys


@pytest.mark.s3
def test_answers_in_a_bucket_are_read_by_blocks(s3: S3Server, tmp_path: Path) -> None:
    folder = f"{s3.place()}/answers"
    packed(folder, range(300), tmp_path / "one", s3.options)
    (name,) = ObjectFolder(folder, s3.options).names("")
    assert name.startswith(PACKED)
    other = Job(folder, tmp_path / "two", s3.options)
    other.asks(range(310), source=1)
    assert other.calls == 10
    packed(folder, range(310, 400), tmp_path / "three", s3.options)
    other.place.forget({name: None})
    other.index._blocks.cache_clear()
    other.asks(range(390, 400), source=2)
    other.asks(range(300), source=2, start=10)
    assert other.calls == 310, "those that were packed meanwhile are found; those that were forgotten are asked again"


def test_a_damaged_block_costs_its_own_calls_and_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "answers"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(answer_files, "_BLOCK_BYTES", 1000)
        packed(str(folder), range(100), tmp_path / "one")
    (path,) = folder.rglob("*.answers")
    data = bytearray(path.read_bytes())
    data[60] ^= 1
    path.write_bytes(data)
    for cache in ("one", "two"):  # with an index from before the damage, and without
        caplog.clear()
        job = Job(str(folder), tmp_path / cache)
        job.asks(range(100), source=1 if cache == "one" else 2, start=10)
        assert 0 < job.calls < 50 if cache == "one" else job.calls == 0
        assert "damaged at byte 0" in caplog.text
    job.place.pack()
    assert path.exists(), "a damaged file is not packed"


def test_other_files_are_reported_and_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "answers"
    text = b"text of another program, with more than a few words\n" * 10
    others = [
        "notes.txt",
        f"{SOURCES[0].hex()}/0000000000-0000000010-{'a' * 32}.answers",
        f"{PACKED}/{'b' * 32}.answers",
    ]
    for name in others:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(text)
    packed(str(folder), ["x"], tmp_path)
    assert "expected a folder of answers, found another file, notes.txt" in caplog.text
    assert caplog.text.count("damaged at byte 0") >= 2
    assert all((folder / name).read_bytes() == text for name in others)
    last = Job(str(folder), tmp_path)
    last.asks(["x"], source=1)
    assert last.calls == 0


@pytest.mark.parametrize("content", [b"", b"answers1", b"\0" * 100, b"answers1" + b"\xff" * 100])
def test_a_lost_index_is_made_again(tmp_path: Path, content: bytes) -> None:
    packed(str(tmp_path / "answers"), ["x"], tmp_path)
    (index,) = tmp_path.rglob("sidecars/*/index")
    index.write_bytes(content)
    job = Job(str(tmp_path / "answers"), tmp_path)
    job.asks(["x"], source=1)
    assert job.calls == 0


def test_a_key_that_begins_as_another_is_another(tmp_path: Path) -> None:
    folder = tmp_path / "answers" / PACKED
    folder.mkdir(parents=True)
    keys = [b"12345678" + bytes([number]) * 8 for number in range(4)]
    entries = [(key, json.dumps(number).encode()) for number, key in enumerate(keys[:3])]
    (folder / f"{'0' * 32}.answers").write_bytes(block_of(entries[:2]) + block_of(entries[2:]))
    index = Job(str(tmp_path / "answers"), tmp_path).index
    found = [asyncio.run(index.find(key)) for key in keys]
    assert found == [b"0", b"1", b"2", None]
