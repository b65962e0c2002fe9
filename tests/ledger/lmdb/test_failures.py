"""Failures and deaths of tasks: in any order, and in memory that their messages do not fill."""

from __future__ import annotations

import subprocess
import sys
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ledgerbeam.ledger.lmdb.store import LmdbStore
from ledgerbeam.ledger.model.identity import node_id
from ledgerbeam.ledger.model.rows import Failure
from ledgerbeam.ledger.model.store import MAX_ATTEMPTS
from ledgerbeam.ledger.remote.segment import Segment
from ledgerbeam.ledger.remote.snapshot import state_pages
from tests.ledger.builders import leaf_of, mark_of, plain
from tests.ledger.stores import folded

SOURCE = plain()
LINEAGES = ((), ((0, 2),), ((1, 2),), ((0, 2), (0, 2)), ((0, 2), (1, 2)))
LEAVES = LINEAGES[2:]


@st.composite
def segments(draw: st.DrawFn) -> list[Segment]:
    """Segments of a few runs, each with a different time."""
    made = []
    for place in range(draw(st.integers(1, 7))):
        number, at = draw(st.integers(1, 3)), float(100 * draw(st.integers(1, 3)) + place)
        leaves = draw(st.lists(st.sampled_from(LEAVES), max_size=2, unique=True))
        failed = draw(st.lists(st.tuples(st.sampled_from(LINEAGES), st.booleans()), max_size=3))
        dead = draw(st.lists(st.sampled_from(LINEAGES), max_size=3))
        failures = [Failure(SOURCE.id, path, "task", f"reason {place}", broke=broke) for path, broke in failed]
        deaths = [mark_of(SOURCE, path) for path in dead]
        made.append(
            Segment(number, at, leaves=[leaf_of(SOURCE, path) for path in leaves], failures=failures, deaths=deaths)
        )
    return made


def shown(store: LmdbStore) -> Any:
    rows = [(row.node, row.reason, row.quarantined, row.last) for row in store.failures()]
    found = (rows, store.attempts(SOURCE.id), store.applied(SOURCE.id), store.status()["tasks"]["failed"])
    store.close()
    return found


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(made=segments(), data=st.data())
def test_failures_are_the_same_in_any_order(
    tmp_path_factory: pytest.TempPathFactory, made: list[Segment], data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("hosts")
    expected = shown(folded(folder / "one", *made))
    order = data.draw(st.permutations(made))
    assert shown(folded(folder / "other", *order)) == expected
    # By way of a snapshot of some of them, with the leaves as they were written, and the others before or after it.
    some = order[: data.draw(st.integers(0, len(order)))]
    rest = order[len(some) :]
    compactor = folded(folder / "compactor", *some)
    parts = [Segment(part.number, 1e9, leaves=part.leaves) for part in some]
    with compactor._open().hold() as held:
        states = [Segment(3, 1e9, state=page) for page in state_pages(held)]
    compactor.close()
    before = data.draw(st.integers(0, len(rest)))
    host = folded(folder / "host", *rest[:before])
    host.close()
    host = folded(folder / "host", *parts, *states, of_snapshot=True)
    host.close()
    assert shown(folded(folder / "host", *rest[before:])) == expected


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_a_leaf_that_comes_again_got_below_what_had_failed(tmp_path: Path, order: tuple[int, ...]) -> None:
    leaf = leaf_of(SOURCE, LINEAGES[3])
    failures = [Failure(SOURCE.id, path, "task", "ValueError") for path in (*LINEAGES[:2], LINEAGES[2])]
    made = [Segment(1, 10.0, leaves=[leaf]), Segment(2, 20.0, failures=failures), Segment(3, 30.0, leaves=[leaf])]
    store = folded(tmp_path / "ledger", *(made[place] for place in order))
    assert [row.node for row in store.failures()] == [node_id(SOURCE.id, LINEAGES[2])]
    store.close()


@pytest.mark.parametrize(
    ("number", "at", "kept"), [(1, 30.0, False), (2, 10.0, False), (2, 20.0, True), (2, 30.0, True), (3, 10.0, True)]
)
@pytest.mark.parametrize("leaf_first", [True, False])
def test_failures_and_deaths_count_unless_a_leaf_below_is_newer(
    tmp_path: Path, number: int, at: float, kept: bool, leaf_first: bool
) -> None:
    leaf = Segment(2, 20.0, leaves=[leaf_of(SOURCE, LINEAGES[3])])
    failed, died = LINEAGES[0], LINEAGES[1]
    failures = [Failure(SOURCE.id, failed, "task", "ValueError")]
    deaths = [mark_of(SOURCE, died)]
    other = Segment(number, at, failures=failures, deaths=deaths)
    store = folded(tmp_path / "ledger", *([leaf, other] if leaf_first else [other, leaf]))
    assert [row.node for row in store.failures()] == [node_id(SOURCE.id, failed)] * kept
    assert store.attempts(SOURCE.id) == ({deaths[0].node: 1} if kept else {})
    store.close()


@pytest.mark.parametrize("leaf_place", range(4))
def test_a_task_leaves_quarantine_when_a_leaf_below_is_newer_than_its_deaths(tmp_path: Path, leaf_place: int) -> None:
    mark = mark_of(SOURCE)
    made = [Segment(1, at, deaths=[mark]) for at in (10.0, 30.0, 20.0)]
    assert len(made) == MAX_ATTEMPTS
    made.insert(leaf_place, Segment(1, 25.0, leaves=[leaf_of(SOURCE, LINEAGES[1])]))
    store = folded(tmp_path / "ledger", *made)
    assert (list(store.failures()), store.attempts(SOURCE.id)) == ([], {mark.node: 1})
    assert not any(store.failed_mask([SOURCE.id]))
    store.close()


def test_of_many_deaths_the_newest_are_kept(tmp_path: Path) -> None:
    mark = mark_of(SOURCE)
    made = [Segment(1, at, deaths=[mark] * 60) for at in (30.0, 10.0, 20.0)]
    store = folded(tmp_path / "ledger", *made, Segment(1, 25.0, leaves=[leaf_of(SOURCE, LINEAGES[1])]))
    assert store.attempts(SOURCE.id) == {mark.node: 60}
    store.close()


def test_when_a_task_failed_last_and_why_is_said_by_its_failures_until_it_is_quarantined(tmp_path: Path) -> None:
    broke = Failure(SOURCE.id, (), "task", "Panic", "why", broke=True)
    died = mark_of(SOURCE)
    steps = [
        (Segment(1, 10.0, failures=[broke]), (1, "Panic", 10.0, False)),
        (Segment(1, 30.0, deaths=[died]), (2, "Panic", 10.0, False)),
        (Segment(1, 20.0, deaths=[died]), (3, "its worker died 3 times", 30.0, True)),
        (Segment(1, 40.0, failures=[broke]), (4, "its worker died 4 times", 40.0, True)),
    ]
    for number in range(len(steps)):
        store = folded(tmp_path / f"{number}", *(segment for segment, _ in steps[: number + 1]))
        (row,) = store.failures()
        assert (row.task, row.error) == ("task", "why")
        assert (row.attempts, row.reason, row.last, row.quarantined) == steps[number][1]
        store.close()
    store = folded(tmp_path / "deaths", *(Segment(1, at, deaths=[died]) for at in (10.0, 30.0, 20.0)))
    (row,) = store.failures()
    assert (row.task, row.attempts, row.reason, row.last) == ("task", 3, "its worker died 3 times", 30.0)
    store.close()


MEASURED = """
import resource, sys
from ledgerbeam.ledger.model.identity import source_id
from ledgerbeam.ledger.lmdb.store import LmdbStore
from ledgerbeam.ledger.model.store import Failure
from ledgerbeam.ledger.model.task import Source

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024

store = LmdbStore(sys.argv[1])
store.open(create=True)
for start in range(0, 40_000, 1000):
    sources = [Source(f"/data/{n:06d}.jsonl", n, "1") for n in range(start, start + 1000)]
    store.register(sources)
    messages = [f"{s.url}: {s.size} ".ljust(5000, "x") for s in sources]
    store.commit([], [Failure(s.id, (), s.url, "ValueError", text) for s, text in zip(sources, messages)])
store.close()
before = peak()
assert sum(1 for row in store.failures()) == 40_000
assert sum(store.failed_mask([source for page in store.source_ids() for source in page])) == 40_000
print(peak() - before)
"""


@pytest.mark.slow
def test_forty_thousand_failures_are_read_in_little_memory(tmp_path: Path) -> None:
    command = [sys.executable, "-c", MEASURED, str(tmp_path / "l")]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert int(run.stdout) < 64  # MiB; their messages are 160 MB
