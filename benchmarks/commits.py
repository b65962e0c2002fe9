"""Table: rates of the ledger's store, compared with SQLite, marker files and a set in memory."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

from benchmarks.data import Data
from benchmarks.peer import Peer
from benchmarks.table import Row, Work, least_row, most_row, rate, speed_row

TITLE = "The ledger's store: every task a leaf with one output, durable in the groups of the group commit"

TASKS = 200_000
MARKERS = 20_000
ROUNDS = 3
COMMITS = 50_000
FOLDS = 20_000
COMPACTS = 20_000
MEMORY_MB = 400
START_RATE = 250_000
DISK_BYTES = 1_000
_MODULE = "benchmarks.commit_work"


def rows(data: Data) -> Iterator[Row]:
    folder, tasks, markers = str(data.work / "commits"), data.count(TASKS), data.count(MARKERS)
    ours = {}
    with Peer(_MODULE) as maker:
        for processes in (1, 2, 4):
            ours[processes] = min(_commit(maker, f"{folder}-ledger", tasks, processes) for _ in range(ROUNDS))
            work = Work(f"commit, {processes} process{'es' if processes > 1 else ''}", "tasks", tasks)
            yield least_row(work, ours[processes], COMMITS)
        sqlite = min(float(maker.ask("commit_sqlite", folder=folder, count=tasks)) for _ in range(ROUNDS))
        yield speed_row(Work("commit, 1 process", "tasks", tasks), ours[1], "SQLite WAL FULL", sqlite, 0.5)
        made, listed = maker.ask("mark_files", folder=folder, count=markers)
        one = ours[1] * markers / tasks
        yield speed_row(Work("commit, 1 process", "tasks", markers), one, "a marker file a task", made, 5)
        folded, compacted = maker.ask("fold_and_compact", folder=folder, count=tasks)
        yield least_row(Work("fold segments of as many rows", "rows", tasks), folded, FOLDS)
        yield least_row(Work("compact them", "rows", tasks), compacted, COMPACTS)
    yield from _start_up(data, listed / markers)


def _start_up(data: Data, listing: float) -> Iterator[Row]:
    count = data.finished
    ledger = str(data.folder / f"ledger-done-{count}")
    with Peer(_MODULE) as maker:
        maker.ask("make_done", ledger=ledger, count=count)
    with Peer(_MODULE) as fresh:
        seconds, memory, disk = fresh.ask("start_up", ledger=ledger, count=count)
    with Peer(_MODULE) as fresh:
        of_set, memory_of_set = fresh.ask("set_of_names", count=count)
    others = f"; a set of names {rate(count / of_set, 'sources')}, marker files {rate(1 / listing, 'sources')}"
    work = Work(f"start with {count:,} finished sources", "sources", count)
    yield least_row(work, seconds, START_RATE, note=others)
    yield most_row("peak memory of it", memory, MEMORY_MB, " MB", other=f"a set of names {memory_of_set:.0f} MB")
    yield most_row("bytes a finished source on disk", disk / count, DISK_BYTES, " B")


def _commit(maker: Peer, ledger: str, tasks: int, processes: int) -> float:
    """Commit with several concurrent processes. Return the seconds from the first start to the last end."""
    maker.ask("register", ledger=ledger, count=tasks)
    share = tasks // processes
    with ExitStack() as stack:
        peers = [stack.enter_context(Peer(_MODULE)) for _ in range(processes)]
        start = time.time() + 3 + 20e-6 * share
        with ThreadPoolExecutor(processes) as pool:
            asked = [
                pool.submit(peer.ask, "commit", ledger=ledger, first=rank * share, count=share, start=start)
                for rank, peer in enumerate(peers)
            ]
            times = [future.result() for future in asked]
    return float(max(ended for _, ended in times) - min(began for began, _ in times))
