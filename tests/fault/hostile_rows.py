"""A hostile local ledger: `python -m tests.fault.hostile_rows --ledgers N` spoils rows and looks at the rest.

Rows of a real ledger are mutated as values, or replaced by bytes. Whatever looks at the ledger then, or goes on with
its job, may raise a LedgerbeamError, and nothing else.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ledgerbeam.errors import LedgerbeamError
from ledgerbeam.ledger.lmdb.store import LmdbStore
from ledgerbeam.ledger.lmdb.tables import CUTOFFS, FOLDED, TABLES
from ledgerbeam.ledger.model.job import Job
from ledgerbeam.ledger.model.rows import Failure, Mark
from ledgerbeam.ledger.model.store import LedgerStore
from ledgerbeam.ledger.model.task import Source
from ledgerbeam.ledger.model.values import decode, encode
from ledgerbeam.ledger.summaries import dataset_manifest
from ledgerbeam.pipelines.report.run_info import retry_command
from ledgerbeam.pipelines.report.state import job_progress, shown_runs
from tests.fault.fuzz import mutate
from tests.ledger.builders import counted_leaf, leaf_of, leaves_of_split, plain
from tests.ledger.stores import rows_of

JOB = Job("map", {"to": "jsonl", "output": "/data/out", "deep": {"a": [1]}})
OPEN, DONE, CHANGED = plain("open"), plain("done"), plain("changed", "2")
NEW, COUNTED = plain("new"), plain("counted")

RUN: dict[str, Any] = {
    "pid": 1,
    "host": "h",
    "place": "ab" * 16,
    "workers": 1,
    "runner": "local",
    "folder": "/data",
    "command": ["ledgerbeam", "map"],
}


def make(folder: Path) -> None:
    """Make a ledger that has a row in every table of a local one."""
    store = LmdbStore(str(folder))
    store.open(create=True)
    store.open_job(JOB)
    run = store.begin_run(RUN)
    pack = Source.pack([plain("p"), plain("q")])
    store.register([OPEN, DONE, plain("changed", "1"), pack, plain("gone")])
    store.commit([*leaves_of_split(DONE, 2), leaf_of(plain("changed", "1"), ((0, 1),)), leaf_of(OPEN, ((0, 3),))])
    store.register([COUNTED])
    store.commit([counted_leaf(COUNTED, ((ordinal, 2),)) for ordinal in range(2)])
    store.commit([], [Failure(OPEN.id, ((1, 3),), "task", "ValueError", "bad")])
    store.withdraw_failures({OPEN.id: ["ValueError"]}, [])
    store.register([CHANGED])
    store.commit([leaf_of(CHANGED, ((0, 1),), "other"), leaf_of(pack, ((1, 3),))])
    store.record_deaths([Mark(OPEN.id, b"\1" * 16, "task")])
    store.set_gone([plain("gone").id])
    store.note_listing(run, listed=5, finished=True, gone=[plain("gone").id])
    store.end_run(run, "done")
    store.begin_run(RUN)
    store.close()


Row = tuple[str, bytes, bytes]


def all_rows(folder: Path) -> list[Row]:
    """Return every row of a ledger: its table, key and value."""
    with rows_of(folder) as txn:
        return [(name, *row) for name in TABLES for row in txn.rows(name, b"")]


def spoil(folder: Path, choice: random.Random, rows: list[Row]) -> list[Row]:
    """Replace some rows of a ledger, and return what it wrote."""
    written = [_spoilt(*choice.choice(rows), choice) for _ in range(choice.choice([1, 1, 1, 2, 5]))]
    with rows_of(folder, write=True) as txn:
        for table, key, value in written:
            txn.put(table, key, value)
    return written


def _spoilt(table: str, key: bytes, value: bytes, choice: random.Random) -> Row:
    what = choice.random()
    if what < 0.1:
        key = choice.choice([key[:-1] or b"x", key + b"x", b"\xff" * 16, choice.randbytes(len(key)), b"../x"])
    try:
        known = decode(value)
    except ValueError:
        known = None
    if known is not None and what < 0.8:
        for _ in range(choice.choice([1, 1, 2])):
            known = mutate(choice, known)
        try:
            return table, key, encode(known)
        except (ValueError, RecursionError):
            return table, key, b"[" * 5000 + b"]" * 5000
    if table == "superseded" and what < 0.6:
        name = choice.choice([b"../victim", b"/etc/passwd", b"a/../../b", b"a\0b", b"", b"\xed\xa0\x80", b"x" * 5000])
        return table, key, value[:8] + name
    bytes_of = [b"", b"{}", b"[]", b"null", value[:-3], value + b"x", b"\xff" * len(value)]
    bytes_of.append(choice.randbytes(len(value)))
    deep = b"[" * 900 + b"]" * 900
    return table, key, choice.choice([*bytes_of, deep, b'{"a":' * 900 + b"1" + b"}" * 900, b"NaN", b'"\\ud800"'])


def looks(store: LedgerStore) -> list[Callable[[], object]]:
    """Everything that looks at a ledger, each by itself."""
    ids = [source.id for source in (OPEN, DONE, CHANGED, NEW)]

    def progress() -> object:
        runs = shown_runs(store)
        return job_progress(store, store.status(), runs), [retry_command(run, store.url, "why") for run in runs]

    return [
        lambda: [list(page) for page in store.source_ids()],
        lambda: list(store.sources()),
        lambda: [(row.output.name.encode("utf-8", "surrogateescape"), row.url) for row in store.outputs()],
        lambda: list(store.outputs(ordered=False)),
        lambda: list(store.failures()),
        lambda: (store.job() or JOB).fingerprint,
        lambda: JOB.differences(store.job() or JOB),
        lambda: list(dataset_manifest(store, allow_incomplete=True)),
        lambda: store.completed_mask(ids),
        lambda: store.progress(ids),
        lambda: [(store.applied(source), store.attempts(source), store.pending(source)) for source in ids],
        store.ledger_id,
        store.status,
        store.totals,
        store.history,
        store.durations,
        store.records,
        lambda: list(store.task_counts()),
        lambda: list(store.statistics()),
        lambda: list(store.rejected_tasks("bad")),
        lambda: list(store.withdrawn()),
        store.stale_outputs,
        progress,
    ]


def changes(store: LedgerStore) -> list[Callable[[], object]]:
    return [
        lambda: store.open_job(JOB),
        lambda: store.begin_run(RUN),
        lambda: store.register([OPEN, DONE, CHANGED, NEW, plain("p")]),
        lambda: store.commit(leaves_of_split(OPEN, 3), [Failure(NEW.id, (), "task", "ValueError", "bad")]),
        lambda: store.commit([leaf_of(NEW), *leaves_of_split(DONE, 2)]),
        lambda: store.record_deaths([Mark(CHANGED.id, b"\1" * 16, "task"), Mark(OPEN.id, b"\1" * 16, "task")]),
        lambda: store.note_listing("000001", listed=4, finished=True, gone=[CHANGED.id]),
        lambda: store.withdraw(list(store.rejected_tasks())),
        lambda: store.withdraw_failures({OPEN.id: ["ValueError"]}, [OPEN.id]),
        lambda: store.commit([counted_leaf(COUNTED, ((ordinal, 2),)) for ordinal in range(2)]),
        lambda: store.drop_stale(store.stale_outputs()),
        lambda: store.forget("*d*", failures_only=True),
        lambda: store.forget("*"),
        lambda: store.end_run("000002", "done"),
        lambda: store.open_job(Job("map", {"to": "tar"}), on_change="restart"),
    ]


def fuzz_rows(ledgers: int, seed: int, folder: Path) -> Counter[str]:
    """Spoils ledgers. Raises whatever is not a typed error, with the rows as a note."""
    choice = random.Random(seed)
    make(folder / "whole")
    rows = [row for row in all_rows(folder / "whole") if row[0] not in (CUTOFFS, FOLDED)]
    counts: Counter[str] = Counter()
    for number in range(ledgers):
        place = folder / f"spoilt-{number}"
        shutil.copytree(folder / "whole", place)
        written = spoil(place, choice, rows)
        counts.update(table for table, _, _ in written)
        store = LmdbStore(str(place))
        try:
            for act in [*looks(store), *changes(store), *looks(store)]:
                try:
                    act()
                    counts["did"] += 1
                except LedgerbeamError:
                    counts["refused"] += 1
        except Exception as error:
            error.add_note(
                f"ledger {number} of seed {seed}: {[(table, key, row[:300]) for table, key, row in written]}"
            )
            raise
        finally:
            store.close()
            shutil.rmtree(place)
    return counts


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fault.hostile_rows", description=__doc__)
    parser.add_argument("--ledgers", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        counts = fuzz_rows(args.ledgers, args.seed, Path(folder))
    print(
        f"{args.ledgers} ledgers of seed {args.seed}: {', '.join(f'{n} {what}' for what, n in sorted(counts.items()))}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
