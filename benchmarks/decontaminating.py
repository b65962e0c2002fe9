"""Table: `decontaminate`, compared with datatrove's filter by n-grams, and with a plain loop in memory.

Each program drops the documents that share an n-gram with an evaluation set, and writes the others. The plain loop is
`python -m benchmarks.decontaminating SOURCES SETS OUT`. It decides which documents are contaminated.
"""

from __future__ import annotations

import json
import random
import re
import shutil
import sys
from collections.abc import Iterable, Iterator
from itertools import accumulate
from multiprocessing import get_context
from pathlib import Path

from benchmarks.columns import shown
from benchmarks.data import Data
from benchmarks.measured import Measured, best_of, measure
from benchmarks.peer import PEERS_REMEDY, peer_python
from benchmarks.table import Row, absent_row, most_row

TITLE = (
    "Decontamination: documents of 1 kB in 8 files, n-grams of 13 words of 5 evaluation sets with 10,000 questions, "
    "start-up included"
)

DOCUMENTS, FILES = 100_000, 8
SETS, QUESTIONS = 5, 2_000  # evaluation sets, and questions of each
NGRAM = 13
WORDS = (75, 225)  # of a document
ASKED = (13, 60)  # words of a question
VOCABULARY = 50_000
PLANTED = 1 / 150
"""Share of documents with a part of a question. A part has at least 13 words."""

NEARLY = 1 / 150
"""Share of documents with 12 words of a question, which is one too few."""

PROCESSES = 2
ROUNDS = 2
LIMIT, PLAIN_LIMIT = 0.2, 1.0
"""Greatest ratio of the CPU time to that of datatrove and to that of the plain loop, start-up included."""

NEW_LIMIT = 0.3
"""Greatest ratio of the CPU time for one more set to that of a new job with all sets, both with ``--mark``. From each,
the CPU time for ten documents is subtracted."""


def rows(data: Data) -> Iterator[Row]:
    folder, count = data.work / "decontaminating", data.count(DOCUMENTS)
    shutil.rmtree(folder, ignore_errors=True)
    planted = write_sources(folder, count)
    commands = {
        "ours": _ours(folder, "ours", "--to", "jsonl"),
        "plain": [sys.executable, "-m", __name__, f"{folder}/in", f"{folder}/sets", f"{folder}/plain"],
    }
    best = best_of(folder, commands, ROUNDS)
    if python := peer_python():
        module = [str(python), "-m", "benchmarks.peer_datatrove", "decontaminate"]
        command = [*module, f"{folder}/in", f"{folder}/sets", f"{folder}/datatrove", str(NGRAM)]
        best["datatrove"] = measure(command, folder / "datatrove")  # it takes minutes, so one run
    dropped = {name: {*range(1, count + 1)} - _ids(folder / name) for name in best}
    label = f"drop the contaminated of {count:,} documents, CPU time"
    yield _row(f"{label}, vs a plain loop", best["ours"], "plain loop", best["plain"], PLAIN_LIMIT)
    if python is None:
        yield absent_row(f"{label}, vs datatrove", f"<= {LIMIT:g} x", PEERS_REMEDY)
    else:
        yield _row(f"{label}, vs datatrove", best["ours"], "datatrove", best["datatrove"], LIMIT)
    found = {name: _found(some, dropped["plain"], planted) for name, some in dropped.items()}
    yield most_row(
        "documents that the plain loop decides otherwise",
        len(dropped["ours"] ^ dropped["plain"]),
        0,
        "",
        ours=found["ours"],
        other="; ".join(f"{name} {text}" for name, text in found.items() if name != "ours"),
    )
    yield _new_set(folder)
    shutil.rmtree(folder)


def _new_set(folder: Path) -> Row:
    """Mark with all sets but one, then with all; and compare with a new job, whose columns must be the same."""
    write_sources(folder / "few", 10)
    measured: dict[str, list[Measured]] = {"new": [], "again": []}
    for place in (folder / "few", folder):
        measure(_ours(place, "marked", "--mark", sets=SETS - 1), place / "marked")
        more = ("--mark", "--on-job-change", "restart")
        measured["again"].append(measure(_ours(place, "marked", *more), place / "marked"))
        measured["new"].append(measure(_ours(place, "whole", "--mark"), place / "whole"))
    columns = [{path.name: path.read_bytes() for path in (folder / name).glob("*.parquet")} for name in _MARKED]
    if columns[0] != columns[1]:
        raise RuntimeError(f"{folder}: the columns of a job with one more set differ from those of a new job")
    costs = {name: whole.cpu - few.cpu for name, (few, whole) in measured.items()}
    size = sum(path.stat().st_size for path in (folder / "whole-ledger" / "work" / "anchors").glob("*.parquet"))
    share = size / sum(path.stat().st_size for path in (folder / "in").glob("*.jsonl"))
    return most_row(
        "one more set, CPU time, vs a new job with all sets",
        costs["again"] / costs["new"],
        NEW_LIMIT,
        " x",
        ours=f"{shown(measured['again'][1])}, anchors {share:.0%} of the documents",
        other=f"new job {shown(measured['new'][1])}, the same columns",
    )


_MARKED = ("marked", "whole")


def _row(work: str, ours: Measured, name: str, other: Measured, limit: float) -> Row:
    return most_row(work, ours.cpu / other.cpu, limit, " x", ours=shown(ours), other=f"{name} {shown(other)}")


def _found(dropped: set[int], expected: set[int], planted: set[int]) -> str:
    """Describe dropped documents. Words that datatrove splits otherwise may have other n-grams."""
    known, false = len(dropped & planted), len(dropped - expected)
    return f"dropped {len(dropped):,}: {known:,} of {len(planted):,} planted, {false:,} false"


def _ours(folder: Path, name: str, *more: str, sets: int = SETS) -> list[str]:
    against = [word for number in range(sets) for word in ("--against", f"{folder}/sets/set-{number}.jsonl")]
    places = ("--output", f"{folder}/{name}", "--ledger", f"{folder}/{name}-ledger", f"--workers={PROCESSES}")
    words = ("decontaminate", f"{folder}/in/*.jsonl", *against, "--ngram", str(NGRAM), *places, "--quiet")
    return [sys.executable, "-m", "ledgerbeam", *words, *more]


def _ids(folder: Path) -> set[int]:
    """Return the numbers of the documents that a program has written."""
    return {int(json.loads(line)["id"]) for path in folder.glob("*.jsonl") for line in path.open("rb")}


def write_sources(folder: Path, count: int) -> set[int]:
    """Write documents and evaluation sets, and return the numbers of the documents with a part of a question.

    The part is written with other capitals and punctuation than in the question.
    """
    chance = random.Random(13)
    vocabulary = [
        "".join(chance.choices("abcdefghijklmnopqrstuvwxyz", k=chance.randint(2, 9))) for _ in range(VOCABULARY)
    ]
    cumulative = list(accumulate(1 / rank for rank in range(1, VOCABULARY + 1)))

    def words(least: int, most: int) -> list[str]:
        return chance.choices(vocabulary, cum_weights=cumulative, k=chance.randint(least, most))

    asked = [[words(*ASKED) for _ in range(QUESTIONS)] for _ in range(SETS)]
    for place in ("in", "sets"):
        (folder / place).mkdir(parents=True)
    for number, questions in enumerate(asked):
        lines = [json.dumps({"question": " ".join(one).capitalize() + "?"}) + "\n" for one in questions]
        (folder / "sets" / f"set-{number}.jsonl").write_text("".join(lines), encoding="utf-8")
    planted = set()
    for number in range(FILES):
        with (folder / "in" / f"{number}.jsonl").open("w", encoding="utf-8") as file:
            for document in range(number * count // FILES, (number + 1) * count // FILES):
                text, draw = words(*WORDS), chance.random()
                if draw < PLANTED + NEARLY:
                    question = chance.choice(chance.choice(asked))
                    size = chance.randint(NGRAM, len(question)) if draw < PLANTED else NGRAM - 1
                    first, at = chance.randint(0, len(question) - size), chance.randrange(len(text))
                    text[at:at] = " ".join(question[first : first + size]).upper().replace(" ", ", ").split()
                    if draw < PLANTED:
                        planted.add(document + 1)
                file.write(json.dumps({"id": document + 1, "text": " ".join(text)}) + "\n")
    return planted


def plain(sources: str, sets: str, out: str) -> None:
    """Drop documents with a set of all n-grams in memory. A process has a file at a time."""
    grams = {
        gram
        for path in Path(sets).glob("*.jsonl")
        for line in path.open()
        for gram in _grams(json.loads(line)["question"])
    }
    _known.update(grams)
    with get_context("fork").Pool(PROCESSES) as pool:
        pool.starmap(_filter, [(path, Path(out) / path.name) for path in sorted(Path(sources).glob("*.jsonl"))])


_known: set[tuple[str, ...]] = set()  # n-grams of evaluation sets


def _grams(text: str) -> Iterable[tuple[str, ...]]:
    words = re.findall(r"\w+", text.lower())
    return zip(*(words[start:] for start in range(NGRAM)), strict=False)


def _filter(source: Path, output: Path) -> None:
    with source.open(encoding="utf-8") as lines, output.open("w", encoding="utf-8") as kept:
        kept.writelines(line for line in lines if _known.isdisjoint(_grams(json.loads(line)["text"])))


if __name__ == "__main__":
    Path(sys.argv[3]).mkdir(parents=True)
    plain(*sys.argv[1:])
