from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ledgerbeam.errors import (
    DiskFullError,
    JobMismatchError,
    LedgerError,
    NegativePendingCountError,
    NonDeterministicTaskError,
    UsageError,
)
from ledgerbeam.ledger.lmdb.store import LmdbStore
from ledgerbeam.ledger.lmdb.tables import Transaction
from ledgerbeam.ledger.model import faults
from ledgerbeam.ledger.model.accounts import Statistic
from ledgerbeam.ledger.model.job import Job
from ledgerbeam.ledger.model.rows import CommitResult, Failure, Leaf
from ledgerbeam.ledger.model.store import LedgerSink
from ledgerbeam.ledger.model.task import Source
from ledgerbeam.ledger.opening import open_local_store
from ledgerbeam.ledger.remote.sink import RemoteSink
from ledgerbeam.ledger.worker import writer as worker_writer
from ledgerbeam.ledger.worker.writer import LedgerPlace, LedgerWriter, close_shared_writers, shared_writer
from tests.cases import each
from tests.ledger.builders import ONE, TWO, filtered_leaf, leaf_of, leaves_of_split, plain
from tests.ledger.remote.test_store import Hosts
from tests.ledger.stores import in_threads, is_complete, numbered, registered, several

# Python 3.12 and later warn of every fork beside threads; forks are tested here.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")

NEVER = 3600.0


class FragileStore(LmdbStore):
    """A store whose disk is full while `full` is set; it counts commits."""

    full = False
    commits = 0

    def commit(self, leaves: Sequence[Leaf], failures: Sequence[Failure] = ()) -> CommitResult:
        self.commits += 1
        if self.full:
            raise DiskFullError("no space")
        return super().commit(leaves, failures)


Writing = Callable[..., LedgerWriter]


@pytest.fixture
def writing() -> Iterator[Writing]:
    """Make writers that commit when they are full or flushed; they are closed behind the test."""
    made: list[LedgerWriter] = []

    def make(sink: LedgerSink, *, interval: float = NEVER, **settings: Any) -> LedgerWriter:
        made.append(LedgerWriter(sink, interval=interval, **settings))
        return made[-1]

    yield make
    for writer in made:
        writer.close()


@pytest.fixture
def fragile(store: LmdbStore) -> FragileStore:
    return FragileStore(store.url)


def test_nothing_is_committed_before_its_time_and_flush_commits_all(writing: Writing, store: LmdbStore) -> None:
    source = registered(store)
    writer = writing(store)
    one, two, three = leaves_of_split(source, 3)
    writer.add(one)
    writer.add(two)
    writer.add(Failure(source.id, three.lineage, "task", "ValueError"))
    assert store.totals().tasks == 0
    result = writer.flush()
    assert (result.completed, result.fresh) == ([], 2)
    assert store.totals().tasks == 2
    assert len(list(store.failures())) == 1
    writer.add(three)
    result = writer.flush()
    assert (result.completed, result.fresh) == ([source.id], 1)
    assert result.seconds > 0
    assert writer.flush() == CommitResult([])


def test_the_oldest_entry_decides_when_time_is_up(writing: Writing, store: LmdbStore) -> None:
    source = registered(store)
    writer = writing(store, interval=0.2)
    started = time.monotonic()
    sent = 0
    for leaf in leaves_of_split(source, 200):  # an entry every 10 ms must not push the commit away
        writer.add(leaf)
        sent += 1
        if store.totals().tasks:
            break
        time.sleep(0.01)
    assert time.monotonic() - started > 0.15
    assert sent < 100


def test_enough_entries_are_committed_at_once(writing: Writing, store: LmdbStore) -> None:
    source = registered(store)
    writer = writing(store, max_entries=4)
    leaves = leaves_of_split(source, 6)
    for leaf in leaves[:3]:
        writer.add(leaf)
    assert store.totals().tasks == 0
    writer.add(leaves[3])
    assert store.totals().tasks == 4


def test_enough_statistics_are_committed_at_once(
    writing: Writing, store: LmdbStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.register([plain()])
    monkeypatch.setattr(worker_writer, "MAX_SKETCH_BYTES", 1000)
    writer = writing(store)
    sizes = (500, 499, 1, 500, 499, 2)
    leaves = [
        replace(leaf, statistics={"words": Statistic("top", b"x" * size)})
        for leaf, size in zip(leaves_of_split(plain(), len(sizes)), sizes, strict=True)
    ]
    for leaf, expected in zip(leaves, (0, 0, 3, 3, 3, 6), strict=True):
        writer.add(leaf)
        assert store.totals().tasks == expected


def test_a_process_ends_though_nobody_closes_its_writer(store: LmdbStore) -> None:
    script = (
        "import sys; from ledgerbeam.ledger.lmdb.store import LmdbStore; "
        "from ledgerbeam.ledger.worker.writer import LedgerPlace, shared_writer; "
        "shared_writer(LedgerPlace.of(sys.argv[1]), lambda: LmdbStore(sys.argv[1]))"
    )
    subprocess.run([sys.executable, "-c", script, store.url], check=True, timeout=60)


@pytest.mark.parametrize("took", [0.0, 2.0, 2.1])
def test_late_adds_commit_unless_that_is_slow(
    writing: Writing, store: LmdbStore, monkeypatch: pytest.MonkeyPatch, took: float
) -> None:
    now, names = [1000.0], []

    class NamedStore(LmdbStore):
        def commit(self, leaves: Sequence[Leaf], failures: Sequence[Failure] = ()) -> CommitResult:
            names.append(threading.current_thread().name)
            now[0] += took
            return super().commit(leaves, failures)

    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    source = registered(store)
    writer = writing(NamedStore(store.url), interval=100)
    mine = threading.current_thread().name
    leaves = iter(leaves_of_split(source, 6))
    for begins, expected in ((1000.0, [mine]), (2000.0, [mine] if took > 2 else [mine, mine])):
        for late in (0.0, 74.9, 75.0):
            assert len(names) == (begins > 1000)
            now[0] = begins + late
            writer.add(next(leaves))
        assert names == expected
    now[0] = 2100.0
    with writer._changed:
        writer._changed.notify_all()  # its time is up
    while store.totals().tasks < 6:
        time.sleep(0.002)
    assert names == [mine, "ledger-writer" if took > 2 else mine]


def test_after_some_commits_in_the_background_who_adds_late_commits_again(
    writing: Writing, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, names = [1000.0], list[str]()

    class NamedSink(CountingSink):
        def commit(self, leaves: Sequence[Leaf], failures: Sequence[Failure] = ()) -> CommitResult:
            names.append(threading.current_thread().name)
            now[0] += 50 if len(names) == 1 else 0
            return super().commit(leaves, failures)

    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(worker_writer, "_SLOW_COMMITS", 2)
    writer = writing(NamedSink(), interval=100)
    mine = threading.current_thread().name

    def add_late() -> list[str]:
        writer.add(leaf_of(plain()))
        now[0] += 75
        writer.add(leaf_of(plain()))
        return list(names)

    assert add_late() == [mine]
    for left in (1, 0):
        so_far = [mine] + ["ledger-writer"] * (1 - left)
        assert add_late() == so_far
        now[0] += 25
        with writer._changed:
            writer._changed.notify_all()  # its time is up
        until = time.perf_counter() + 5
        while writer._slow != left and time.perf_counter() < until:
            time.sleep(0.002)
        assert (names, writer._slow) == ([*so_far, "ledger-writer"], left)
    assert add_late()[-1] == mine


def test_waiting_looks_at_the_clock_once_for_each_first_entry(
    writing: Writing, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, looks = time.monotonic, Counter[str]()

    def noted() -> float:
        looks[threading.current_thread().name] += 1
        return real()

    monkeypatch.setattr(time, "monotonic", noted)
    sink = CountingSink()
    writer = writing(sink)
    for number in (1, 2):
        writer.add(leaf_of(plain()))
        until = real() + 10
        while looks["ledger-writer"] < number and real() < until:
            time.sleep(0.002)
        time.sleep(0.02)
        assert (looks["ledger-writer"], sink.leaves) == (number, number - 1)
        writer.flush()


def test_a_full_group_that_is_slow_leaves_nothing_behind(
    writing: Writing, store: LmdbStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]

    class SlowStore(LmdbStore):
        def commit(self, leaves: Sequence[Leaf], failures: Sequence[Failure] = ()) -> CommitResult:
            now[0] += 50
            return super().commit(leaves, failures)

    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    store.register([plain()])
    writer = writing(SlowStore(store.url), interval=100, max_entries=3)
    *first, last = leaves_of_split(plain(), 5)
    for leaf in first:
        writer.add(leaf)
    assert store.totals().tasks == 3
    now[0] += 75
    writer.add(last)
    assert store.completed_count() == 1


@pytest.mark.parametrize("error", [NonDeterministicTaskError, DiskFullError])
def test_who_adds_early_in_an_interval_is_told_of_an_error_in_the_background(
    writing: Writing, fragile: FragileStore, monkeypatch: pytest.MonkeyPatch, error: type[LedgerError]
) -> None:
    now, source = [1000.0], plain()
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    fragile.register([source])
    fragile.commit([leaf_of(source, ((0, 2),))])
    fragile.full = issubclass(error, DiskFullError)
    writer = writing(fragile, interval=100)
    writer.add(leaf_of(source, ((0, 2 if fragile.full else 3),)))
    now[0] += 100
    with writer._changed:
        writer._changed.notify_all()  # its time is up
    while fragile.commits < 2 or writer._committing.locked():
        time.sleep(0.002)
    with pytest.raises(error):
        writer.add(leaf_of(source, ((1, 2),)))
    fragile.full = False
    writer.flush()
    assert fragile.completed_count() == 1


def test_what_could_not_be_committed_is_kept_and_committed_later(writing: Writing, fragile: FragileStore) -> None:
    sources = several(fragile, *"abc")
    writer = writing(fragile, interval=0.01)
    fragile.full = True
    writer.add(leaf_of(sources[0]))
    while not fragile.commits:
        time.sleep(0.01)
    time.sleep(0.1)
    assert fragile.commits == 1  # the background does not hammer a full disk
    with pytest.raises(DiskFullError):
        writer.add(leaf_of(sources[1]))
    with pytest.raises(DiskFullError):
        writer.flush()
    fragile.full = False
    writer.add(leaf_of(sources[2]))
    writer.flush()
    assert fragile.completed_count() == 3


def test_closing_raises_what_could_not_be_committed(fragile: FragileStore) -> None:
    fragile.register([plain()])
    writer = LedgerWriter(fragile, interval=NEVER)
    writer.add(leaf_of(plain()))
    fragile.full = True
    with pytest.raises(DiskFullError):
        writer.close()
    writer.close()  # the error was raised before


def test_flush_waits_for_a_commit_that_another_thread_has_begun(writing: Writing, store: LmdbStore) -> None:
    begun, go_on = threading.Event(), threading.Event()

    class SlowStore(LmdbStore):
        def commit(self, leaves: Sequence[Leaf], failures: Sequence[Failure] = ()) -> CommitResult:
            begun.set()
            go_on.wait()
            return super().commit(leaves, failures)

    store.register([plain()])
    writer = writing(SlowStore(store.url), interval=0.01)
    writer.add(leaf_of(plain()))
    begun.wait()
    flusher = threading.Thread(target=writer.flush)
    flusher.start()
    flusher.join(0.1)
    assert flusher.is_alive()
    go_on.set()
    flusher.join()
    assert store.completed_count() == 1


def test_many_threads_share_a_writer(store: LmdbStore) -> None:
    sources = numbered(store, 8)
    writer = LedgerWriter(store, interval=0.01, max_entries=16)

    def work(source: Source) -> None:
        for leaf in leaves_of_split(source, 50):
            writer.add(leaf)
        writer.flush()
        assert is_complete(store, source)

    in_threads(*(lambda source=source: work(source) for source in sources))
    writer.close()
    assert store.totals().tasks == 400


class CountingSink:
    """A sink for counting leaves only: its commits are faster than any disk."""

    def __init__(self) -> None:
        self.leaves = 0

    def commit(self, leaves: Sequence[Leaf], failures: Sequence[Failure] = ()) -> CommitResult:
        self.leaves += len(leaves)
        return CommitResult([])

    def close(self) -> None:
        pass


def test_no_leaf_is_lost_that_comes_as_a_commit_begins() -> None:
    """Commits of other threads begin at any moment, also between two steps of `add`."""
    sink = CountingSink()
    writer = LedgerWriter(sink, interval=1e-5, max_entries=3)
    leaf = leaf_of(plain())

    def add_all() -> None:
        for _ in range(5_000):
            writer.add(leaf)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        in_threads(*[add_all] * 4)
        writer.close()
    finally:
        sys.setswitchinterval(before)
    assert sink.leaves == 20_000


def test_a_closed_writer_refuses_and_its_thread_is_gone(store: LmdbStore) -> None:
    writer = LedgerWriter(store)
    writer.close()
    writer.close()
    with pytest.raises(UsageError, match="closed"):
        writer.add(leaf_of(plain()))
    assert all(thread.name != "ledger-writer" for thread in threading.enumerate())


class KeepingSink(CountingSink):
    """Keeps committed leaves, and raises the set error after calling `before`."""

    def __init__(self) -> None:
        super().__init__()
        self.given: list[tuple[list[Leaf], list[Failure]]] = []
        self.errors: list[BaseException] = []
        self.before: Callable[[], None] = lambda: None

    def commit(self, leaves: Sequence[Leaf], failures: Sequence[Failure] = ()) -> CommitResult:
        self.given.append((list(leaves), list(failures)))
        before, self.before = self.before, lambda: None
        before()
        if self.errors:
            raise self.errors.pop()
        return super().commit(leaves, failures)


FAILURE = Failure(plain().id, (), "task", "ValueError")


def test_failures_count_as_entries_and_are_committed_without_leaves(writing: Writing) -> None:
    sink = KeepingSink()
    writer = writing(sink, max_entries=2)
    writer.add(FAILURE)
    assert sink.given == []
    writer.add(FAILURE)
    assert sink.given == [([], [FAILURE, FAILURE])]
    writer.add(FAILURE)
    writer.flush()
    assert sink.given[1:] == [([], [FAILURE])]


def test_failures_alone_are_committed_when_their_time_is_up(writing: Writing) -> None:
    sink = KeepingSink()
    writer = writing(sink, interval=0.01)
    writer.add(FAILURE)
    until = time.monotonic() + 30
    while not sink.given and time.monotonic() < until:
        time.sleep(0.002)
    assert sink.given == [([], [FAILURE])]


def test_a_writer_is_not_for_a_forked_process(monkeypatch: pytest.MonkeyPatch) -> None:
    sink = KeepingSink()
    writer = LedgerWriter(sink, interval=NEVER)
    writer.add(leaf_of(plain()))
    with monkeypatch.context() as forked:
        forked.setattr(os, "getpid", lambda: 1)
        for act in (lambda: writer.add(leaf_of(plain())), lambda: writer.add(FAILURE), writer.flush):
            with pytest.raises(UsageError, match="in a forked process; call shared_writer there"):
                act()
    assert sink.given == []
    writer.close()
    assert sink.given == [([leaf_of(plain())], [])]


@pytest.mark.parametrize("error", [NonDeterministicTaskError, NegativePendingCountError])
def test_a_leaf_in_error_is_told_and_not_offered_again(writing: Writing, error: type[LedgerError]) -> None:
    sink = KeepingSink()
    writer = writing(sink)
    writer.add(leaf_of(plain()))
    sink.errors.append(error("contradiction"))
    with pytest.raises(error):
        writer.flush()
    writer.flush()
    assert len(sink.given) == 1


def test_what_came_while_a_commit_failed_waits_behind_what_is_kept(writing: Writing) -> None:
    one, two = leaves_of_split(plain(), 2)
    other = replace(FAILURE, reason="KeyError")
    sink = KeepingSink()
    writer = writing(sink)
    writer.add(one)
    writer.add(FAILURE)
    sink.errors.append(DiskFullError("no space"))

    def meanwhile() -> None:
        writer.add(two)
        writer.add(other)

    sink.before = meanwhile
    with pytest.raises(DiskFullError):
        writer.flush()
    assert writer.flush() == CommitResult([])
    assert sink.given == [([one], [FAILURE]), ([one, two], [FAILURE, other])]


@each(
    "error", [JobMismatchError("of another"), UsageError("read only"), LedgerError("x"), OSError(5, "x"), SystemExit(1)]
)
def test_whatever_else_ends_a_commit_what_it_was_to_record_is_kept(writing: Writing, error: BaseException) -> None:
    sink = KeepingSink()
    writer = writing(sink)
    writer.add(leaf_of(plain()))
    sink.errors.append(error)
    with pytest.raises(type(error)):
        writer.flush()
    writer.flush()
    assert sink.given == [([leaf_of(plain())], [])] * 2


def test_while_nothing_can_be_recorded_each_entry_tries_again_and_is_told(writing: Writing) -> None:
    leaves = leaves_of_split(plain(), 3)
    sink = KeepingSink()
    writer = writing(sink)
    sink.errors += [DiskFullError("no space"), DiskFullError("no space")]
    writer.add(leaves[0])
    with pytest.raises(DiskFullError):
        writer.flush()
    with pytest.raises(DiskFullError):
        writer.add(leaves[1])
    writer.add(leaves[2])
    assert [given for given, _ in sink.given] == [leaves[:1], leaves[:2], leaves]


def test_a_leaf_in_error_is_told_though_nothing_can_be_recorded_by_then(writing: Writing) -> None:
    one, two = leaves_of_split(plain(), 2)
    sink = KeepingSink()
    writer = writing(sink)
    sink.errors += [DiskFullError("no space"), DiskFullError("no space"), NonDeterministicTaskError("contradiction")]
    writer.add(one)
    writer._commit()  # as the background does
    with pytest.raises(NonDeterministicTaskError):
        writer.add(two)
    with pytest.raises(DiskFullError):
        writer.flush()
    writer.flush()
    assert [given for given, _ in sink.given] == [[one], [two], [two], [two]]


def test_what_was_committed_in_the_background_is_told_though_a_flush_fails_meanwhile(
    writing: Writing, fragile: FragileStore
) -> None:
    one, other = several(fragile, "a", "b")
    writer = writing(fragile)
    writer.add(leaf_of(one))
    writer._commit()  # as the background does
    fragile.full = True
    writer.add(leaf_of(other))
    with pytest.raises(DiskFullError):
        writer.flush()
    fragile.full = False
    result = writer.flush()
    assert (result.completed, result.fresh) == ([one.id, other.id], 2)


@pytest.mark.parametrize(("point", "committed"), [("flush.begin", 0), ("flush.after_commit", 1)])
def test_a_commit_can_be_killed_before_or_after(
    writing: Writing, monkeypatch: pytest.MonkeyPatch, point: str, committed: int
) -> None:
    sink, killed = CountingSink(), list[int]()
    monkeypatch.setattr(os, "kill", lambda *_: killed.append(sink.leaves))
    writer = writing(sink)
    writer.add(leaf_of(plain()))
    faults.arm(f"{point}:1")
    writer.flush()
    faults.arm("")
    assert killed == [committed]


@pytest.mark.parametrize("arguments", [{"interval": 0}, {"max_entries": 0}])
def test_limits_out_of_range_are_refused(store: LmdbStore, arguments: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="interval > 0"):
        LedgerWriter(store, **arguments)


def shared(place: LedgerPlace | str, **limits: Any) -> LedgerWriter:
    """Return the shared writer of a local ledger."""
    found = LedgerPlace.of(place) if isinstance(place, str) else place
    opened = partial(open_local_store, found.url, create=False, job=found.job, run=found.run)
    return shared_writer(found, opened, **limits)


def test_a_process_has_one_shared_writer_for_a_ledger(store: LmdbStore, tmp_path: Path) -> None:
    store.register([plain()])
    writer = shared(store.url)
    assert shared(f"{store.url}/") is writer
    assert shared(f"file://{store.url}") is writer
    writer.add(leaf_of(plain()))
    close_shared_writers()
    assert store.completed_count() == 1
    again = shared(store.url)
    assert again is not writer
    close_shared_writers()
    with pytest.raises(LedgerError):
        shared(str(tmp_path / "missing"))


def test_a_shared_writer_records_for_the_job_and_the_run_of_its_place(store: LmdbStore) -> None:
    job = Job("map", {})
    store.open_job(job)
    store.register([plain()])
    first, _ = store.begin_run({}), store.begin_run({})
    writer = shared(LedgerPlace.of(store.url, job=job.fingerprint, run=first))
    writer.add(leaf_of(plain()))
    writer.flush()
    assert [row.run for row in store.history()] == [first]
    other = shared(LedgerPlace.of(store.url, job=Job("index", {}).fingerprint, run=first))
    other.add(leaf_of(plain("b")))
    with pytest.raises(JobMismatchError):
        other.flush()
    with pytest.raises(JobMismatchError):
        close_shared_writers()


def test_a_ledger_has_one_place_however_its_path_is_given(store: LmdbStore, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, name = os.path.split(store.url)
    monkeypatch.chdir(folder)
    for url in (name, f"./{name}", f"{folder}//{name}/", f"file://{store.url}"):
        assert LedgerPlace.of(url) == LedgerPlace.of(store.url)
    assert LedgerPlace.of(name, options={}) == LedgerPlace.of(name, options=None) == LedgerPlace.of(store.url)
    assert LedgerPlace.of("s3://bucket/ledger//").url == "s3://bucket/ledger"


def test_what_decides_where_rows_go_has_a_writer_of_its_own(store: LmdbStore) -> None:
    places = [
        LedgerPlace.of(store.url),
        LedgerPlace.of(store.url, job="a"),
        LedgerPlace.of(store.url, run="000001"),
        LedgerPlace.of(store.url, options={"key": "a", "client": {"b": 1, "c": object}}),
        LedgerPlace.of(store.url, options={"key": "b"}),
        LedgerPlace.of("memory://bucket/ledger"),
    ]
    writers = [shared_writer(place, open_sink=lambda: store) for place in places]
    assert len({id(writer) for writer in writers}) == len(places)
    same = [
        LedgerPlace.of(f"file://{store.url}/"),
        LedgerPlace.of(store.url, job="a"),
        LedgerPlace.of(store.url, run="000001"),
        LedgerPlace.of(store.url, options={"client": {"c": object, "b": 1}, "key": "a"}),
        LedgerPlace.of(store.url, options={"key": "b"}),
        LedgerPlace.of("memory://bucket/ledger/"),
    ]
    assert [shared(place, interval=NEVER) for place in same] == writers
    close_shared_writers()


def in_fork(act: Callable[[], object]) -> int:
    """Run a function in a forked process; gives its exit status, 0 if it returned."""
    child = os.fork()
    if child == 0:
        try:
            act()
            os._exit(0)
        except UsageError:
            os._exit(2)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_results_of_several_commits_add_up_until_they_are_taken(writing: Writing, store: LmdbStore) -> None:
    sources = several(store, *"abc")
    writer = writing(store, max_entries=1)
    for place, source in enumerate(sources, start=1):
        writer.add(leaf_of(source))
        assert store.totals().tasks == place
    result = writer.flush()
    assert result.completed == [source.id for source in sources]
    assert result.fresh == 3
    assert writer.flush() == CommitResult([])


def test_an_error_of_the_background_is_raised_by_a_flush_and_by_a_close_too(store: LmdbStore) -> None:
    source = registered(store)
    store.commit([leaf_of(source, ((0, 2),))])
    for end in (LedgerWriter.flush, LedgerWriter.close):
        writer = LedgerWriter(store, interval=0.01)
        writer.add(leaf_of(source, ((0, 3),)))
        while writer._refused is None:
            time.sleep(0.005)
        with pytest.raises(NonDeterministicTaskError):
            end(writer)
        writer.close()


def test_all_shared_writers_are_closed_though_one_of_them_fails(store: LmdbStore) -> None:
    sources = several(store, *"abc")
    busy = FragileStore(store.url)
    busy.full = True
    stores = (store, busy, LmdbStore(store.url))
    places = [LedgerPlace.of(store.url, run=run) for run in ("1", "2", "3")]
    writers = []
    for place, sink, source in zip(places, stores, sources, strict=True):
        writers.append(shared_writer(place, interval=NEVER, open_sink=lambda sink=sink: sink))  # type: ignore[misc]
        writers[-1].add(leaf_of(source))
    with pytest.raises(DiskFullError):
        close_shared_writers()
    assert store.completed_mask([source.id for source in sources]) == [True, False, True]
    assert shared_writer(places[1], open_sink=lambda: store) is not writers[1]
    close_shared_writers()


def test_a_shared_writer_has_the_limits_that_its_first_user_gave(store: LmdbStore) -> None:
    sources = several(store, *"abc")
    for source in sources:
        shared(store.url, interval=NEVER, max_entries=2).add(leaf_of(source))
    assert store.completed_count() == 2
    close_shared_writers()


def test_a_refused_task_after_a_full_disk_is_told_once(writing: Writing, store: LmdbStore) -> None:
    source = registered(store)
    busy = FragileStore(store.url)
    writer = writing(busy)
    busy.full = True
    writer.add(leaf_of(source, ((0, 2),)))
    with pytest.raises(DiskFullError):
        writer.flush()
    with pytest.raises(DiskFullError):
        writer.add(filtered_leaf(source, ((0, 2),)))
    busy.full = False
    with pytest.raises(NonDeterministicTaskError):
        writer.flush()
    assert writer.flush().completed == []
    writer.add(leaf_of(source, ((1, 2),)))
    assert writer.flush().completed == [source.id]


def test_a_writer_is_refused_in_a_forked_process_which_gets_a_shared_one_of_its_own(store: LmdbStore) -> None:
    source = registered(store)
    writer = shared(store.url, interval=NEVER)
    mine, its = leaves_of_split(source, 2)
    writer.add(mine)
    for use in (lambda: writer.add(its), writer.flush):
        assert in_fork(use) == 2

    def child() -> None:
        shared(store.url, interval=NEVER).add(its)
        close_shared_writers()

    assert in_fork(child) == 0
    assert store.totals().tasks == 1  # the entries of the parent stay with the parent
    close_shared_writers()
    assert store.completed_count() == 1


def test_parent_and_child_record_with_one_sink_or_store_and_lose_nothing(hosts: Hosts) -> None:
    sources = [plain("a"), plain("b")]
    launcher = hosts.launcher(*sources)
    sinks: list[LedgerSink] = [RemoteSink(hosts.objects, run="1"), launcher]
    for source, shared in zip(sources, sinks, strict=True):
        first, second, third = leaves_of_split(source, 3)
        shared.commit([first])
        assert in_fork(lambda shared=shared, leaf=second: shared.commit([leaf])) == 0  # type: ignore[misc]
        shared.commit([third])
    launcher.refresh()
    assert launcher.completed_count() == 2


def test_a_ledger_taken_as_a_commit_begins_records_nothing(store: LmdbStore, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = store._open()
    store.open_job(ONE)
    store.register([plain()])

    def taken_first(change: Callable[[Transaction], object]) -> object:
        monkeypatch.undo()
        LmdbStore(store.url).open_job(TWO, "accept")
        return environment.write(change)

    monkeypatch.setattr(environment, "write", taken_first)
    with pytest.raises(JobMismatchError):
        store.commit([leaf_of(plain())])
    assert store.completed_count() == 0


def test_a_sink_in_two_threads_names_every_segment_anew(hosts: Hosts) -> None:
    launcher = hosts.launcher(plain())
    sink = RemoteSink(hosts.objects, run="1")
    leaves = leaves_of_split(plain(), 40)
    in_threads(*(lambda part=part: [sink.commit([leaf]) for leaf in part] for part in (leaves[:20], leaves[20:])))
    launcher.refresh()
    assert launcher.completed_count() == 1
