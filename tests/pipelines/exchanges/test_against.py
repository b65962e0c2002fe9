"""``dedup --near --against``: what is near a record of an earlier one goes, also where n-grams are compared."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledgerbeam.transforms.dedup import duplicates, verify
from ledgerbeam.transforms.dedup.duplicates import SignRecords
from ledgerbeam.transforms.dedup.minhash import MinHash
from ledgerbeam.transforms.exchange.keys import RecordKeys
from tests.conftest import S3Server
from tests.pipelines.conftest import Workspace, make_workspace
from tests.pipelines.exchanges.stages import (
    Marks,
    Place,
    by_file,
    clusters_in,
    gone_in,
    in_sources,
    marks_in,
    write_jsonl,
)
from tests.pipelines.exchanges.test_near import (
    FILES,
    OPTIONS,
    Process,
    clustered,
    rows_of,
    shards,
)
from tests.pipelines.exchanges.test_verify import SHARE, Verified, near_sets
from tests.transforms.dedup.test_minhash import plain_bands

DEDUP = ("dedup", "--near", "text", *OPTIONS, "--to", "jsonl", "--task-bytes", "3000", "--bucket-bytes", "8000")
EARLIER = (*DEDUP, "old/*.jsonl", "--output", "first", "--ledger", "L1")
LATER = (*DEDUP, "in/*.jsonl", "--output", "out", "--ledger", "L", "--against", "L1")


def compared(old: dict[Place, Any], new: dict[Place, Any], *, prefer: bool = False) -> dict[Place, set[Place]]:
    """Return for each document that goes those of which one stays for it."""
    of = clustered(old | new)
    clusters: dict[Place, set[Place]] = {}
    for place in old | new:
        clusters.setdefault(of.get(place, place), set()).add(place)
    found = {}
    for cluster in clusters.values():
        stay = cluster & old.keys()
        if not stay:
            stay = {min(cluster, key=lambda one: (-new[one]["s"] if prefer else 0, one))}
        found.update(dict.fromkeys(cluster - stay - old.keys(), stay))
    return found


def require_one_of(marks: Marks, stays: Mapping[Place, set[Place]]) -> None:
    """Check marks by the records of which one stays for each that goes, as also for the others of its cluster."""
    gone = gone_in(marks)
    assert gone.keys() == stays.keys()
    assert all(gone[place] in stay for place, stay in stays.items())
    for cluster in clusters_in(marks):
        assert len({frozenset(stays.get(place, {place})) for place in cluster}) == 1


@pytest.mark.slow
@settings(deadline=None, max_examples=40)
@given(FILES, FILES, st.booleans(), st.sampled_from([1, 20, 10**6]), st.sampled_from([None, 100]))
def test_what_is_near_an_earlier_one_goes(
    first: list[Any], second: list[Any], prefer: bool, part_bytes: int, pack_bytes: int | None
) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(duplicates, "_ROWS", 3)
        # The names of the later ones come first, and theirs would stay if they were no later ones.
        old, new = (
            by_file(Path(folder) / name, {f"f{n}": rows for n, rows in enumerate(some)})
            for name, some in (("old", first), ("in", second))
        )
        process = Process(Path(folder), 3, part_bytes, prefer=prefer)
        process.earlier = old
        marks, places = process.drops(new, pack_bytes)
    documents = [
        {(url, n): row for url, found in zip(urls, some, strict=True) for n, row in enumerate(found)}
        for urls, some in ((old, first), (new, second))
    ]
    expected = compared(*documents, prefer=prefer)
    assert sorted(places) == sorted(expected)
    require_one_of(marks, expected)


def test_earlier_ones_that_a_later_one_connects_stay(tmp_path: Path) -> None:
    old = by_file(tmp_path / "old", {"a": [{"text": "be"}, {"text": "not"}]})
    new = by_file(tmp_path / "in", {"b": [{"text": "be not"}, {"text": "to"}]})
    process = Process(tmp_path, 1, 10**6, prefer=False)
    process.sign = SignRecords(RecordKeys("digest", ("text",)), MinHash(16, 1, 1))
    process.earlier = old
    marks, places = process.drops(new, None)
    assert places == [(new[0], 0)]
    assert gone_in(marks) == {(new[0], 0): (old[0], 0)}


def write_both(workspace: Workspace) -> None:
    for folder, names in (("old", "pq"), ("in", "ab")):
        for name in names:
            write_jsonl(workspace.root / folder / f"{name}.jsonl", rows_of(name, 60))


def survivors(
    workspace: Workspace, compare: Callable[..., dict[Place, set[Place]]] = compared, **how: bool
) -> list[dict[str, Any]]:
    new = in_sources(workspace.root)
    gone = compare(in_sources(workspace.root, "old"), new, **how)
    return [row for place, row in new.items() if place not in gone]


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """An earlier deduplication, and the one against it, done."""
    workspace = make_workspace(tmp_path_factory.mktemp("earlier"))
    write_both(workspace)
    workspace.succeed(*EARLIER)
    workspace.succeed(*LATER, "--json")
    assert workspace.records("out") == survivors(workspace)
    new = in_sources(workspace.root)
    assert 20 < len(workspace.records("out")) < len(new) - len(compared({}, new)), "some are near earlier ones alone"
    return workspace


@pytest.fixture
def again(earlier: Workspace, workspace: Workspace) -> Workspace:
    """A copy of the earlier deduplication alone; its ledger names the sources where they were."""
    shutil.copytree(earlier.root / "in", workspace.root / "in")
    (workspace.root / "L1").symlink_to(earlier.root / "L1")
    return workspace


@pytest.mark.slow
def test_only_signatures_are_read_and_a_rerun_does_nothing(earlier: Workspace, tmp_path: Path) -> None:
    moved = tmp_path / "old"
    (earlier.root / "old").rename(moved)
    try:
        ran = earlier.run(*LATER, "--prefer", "s", "--output", "preferred", "--ledger", "L2", "--json")
    finally:
        moved.rename(earlier.root / "old")
    assert ran.status == 0, ran.err
    assert earlier.records("preferred") == survivors(earlier, prefer=True)
    before = earlier.files("out")
    ran = earlier.run(*LATER, "--json")
    assert (ran.status, [stage["done"]["tasks"] for stage in ran.json["stages"].values()]) == (0, [0, 0, 0, 0])
    assert earlier.files("out") == before


@pytest.mark.slow
@pytest.mark.parametrize("point", [1, 2, 3])
def test_a_kill_between_any_two_stages_changes_nothing(earlier: Workspace, again: Workspace, point: int) -> None:
    assert again.run(*LATER, env={"LEDGERBEAM_FAULT": f"exchange.tabulated:{point}"}).status != 0
    again.succeed(*LATER)
    assert [row["at"] for row in again.records("out")] == [row["at"] for row in earlier.records("out")]


@pytest.mark.slow
def test_month_after_month(workspace: Workspace) -> None:
    """The third month is compared with the first two, of which the second was compared with the first."""
    write_both(workspace)
    write_jsonl(workspace.root / "third" / "c.jsonl", rows_of("c", 60))
    for command in (EARLIER, LATER):
        ran = workspace.succeed(*command)
    third = (*DEDUP, "third/*.jsonl", "--output", "last", "--ledger", "L3", "--against", "L1", "--against", "L")
    ran = workspace.succeed(*third, "--json")

    def expected() -> list[dict[str, Any]]:
        new = in_sources(workspace.root, "third")
        gone = compared(in_sources(workspace.root, "old") | in_sources(workspace.root), new)
        return [row for place, row in new.items() if place not in gone]

    assert workspace.records("last") == expected()
    kept = len(expected())
    copied = [row for row in in_sources(workspace.root, "third").values() if row["text"]][::2]
    write_jsonl(workspace.root / "old" / "r.jsonl", copied)
    workspace.succeed(*EARLIER)
    ran = workspace.succeed(*third, "--json")
    assert workspace.records("last") == expected()
    assert len(expected()) < kept
    assert ran.json["stages"]["scatter"]["done"]["tasks"] == 0
    for path in (workspace.root / "first" / "_signatures").glob("*.run"):
        path.unlink()
    write_jsonl(workspace.root / "third" / "d.jsonl", rows_of("d", 20))
    refused = workspace.run(*third, status=2)
    forget = re.search(r"ledgerbeam (ledger forget \S+ '\*')", refused.err)
    assert forget is not None, refused.err
    for again in (shlex.split(forget[1]), EARLIER, third):
        ran = workspace.succeed(*again)
    assert workspace.records("last") == expected()


@pytest.mark.slow
def test_what_cannot_be_compared_is_refused(earlier: Workspace, again: Workspace) -> None:
    number = iter(range(10, 100))

    def refused(*more: str, command: tuple[str, ...] = LATER) -> str:
        ran = again.run(*command, "--ledger", f"L{next(number)}", *more)
        assert ran.status in (1, 2), ran.err
        assert not shards(again)
        return ran.err

    assert "expected signatures made with" in refused("--minhash", "7x2")
    assert "the ledger is given twice" in refused("--against", "L1")
    assert "nowhere" in refused("--against", "nowhere")
    shutil.copytree(earlier.root / "old", again.root / "in", dirs_exist_ok=True)
    other = (*DEDUP, f"{earlier.root}/{{old,in}}/*.jsonl", "--output", "out", "--against", "L1")
    assert "would be duplicates of themselves" in refused(command=other)
    again.succeed("sort", "in/*.jsonl", "--by", "at", "--output", "sorted", "--to", "jsonl", "--ledger", "S")
    assert "found the ledger of a job 'sort'" in refused("--against", "S")
    itself = (*LATER[:-2], "--output", "itself", "--ledger", "L5")
    again.succeed(*itself)
    assert "the ledger of an earlier one" in again.run(*itself, "--against", "L5", "--on-job-change", "restart").err


VERIFIED = (
    *(*DEDUP, "in/*.jsonl", "--output", "out", "--ledger", "L", "--against", "L1"),
    *("--verify", "--threshold", str(SHARE)),
)


def compared_verified(
    old: dict[Place, Any], new: dict[Place, Any], *, share: float = SHARE, prefer: bool = False
) -> dict[Place, set[Place]]:
    """Return for each document that goes those of which one stays for it."""
    found = {}
    for place, near in near_sets(old | new, share).items():
        stay = near & old.keys() or {min(near, key=lambda one: (-new[one]["s"] if prefer else 0, one))}
        if place in new and place not in stay:
            found[place] = stay
    return found


@pytest.mark.slow
@settings(deadline=None, max_examples=40)
@given(
    st.tuples(FILES, FILES),
    st.booleans(),
    st.sampled_from([1, 100, 10**6]),
    st.sampled_from([None, 100]),
    st.sampled_from([0.2, 0.5, 0.6]),
)
def test_what_is_near_an_earlier_one_by_its_n_grams_goes(
    both: tuple[list[Any], list[Any]], prefer: bool, part_bytes: int, pack_bytes: int | None, share: float
) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(verify, "AT_ONCE", part_bytes)
        patch.setattr(verify, "FEW", 1)
        old, new = (
            by_file(Path(folder) / name, {f"f{n}": rows for n, rows in enumerate(some)})
            for name, some in zip(("old", "in"), both, strict=True)
        )
        process = Verified(Path(folder), 3, part_bytes, prefer=prefer)
        process.share, process.earlier = share, old
        marks, places = process.drops(new, pack_bytes)
    earlier, later = (
        {(url, n): row for url, rows in zip(urls, some, strict=True) for n, row in enumerate(rows)}
        for urls, some in zip((old, new), both, strict=True)
    )
    expected = compared_verified(earlier, later, share=share, prefer=prefer)
    assert sorted(places) == sorted(expected)
    require_one_of(marks, expected)


def test_any_earlier_record_of_a_band_may_be_the_near_one_and_others_are_not_read(tmp_path: Path) -> None:
    texts, later = ["p s a x e", "c z a x c"], "c z a x e"
    first, second, bands = (set(plain_bands(text, 6, 2, 2)) for text in (*texts, later))
    assert bands & second <= first, "each band that it shares with the second has the first before that"
    new = by_file(tmp_path / "in", {"b": [{"text": later}]})
    counts = []
    for more in ([], ["q r", "q r"]):
        folder = tmp_path / f"{len(more)}"
        old = by_file(folder / "old", {"a": [{"text": text} for text in (*texts, *more)]})
        process = Verified(folder, 1, 10**6, prefer=False)
        process.share, process.earlier = 0.6, old
        marks, places = process.drops(new, None)
        assert places == [(new[0], 0)]
        assert gone_in(marks) == {(new[0], 0): (old[0], 1)}
        counts.append([int.from_bytes(run.read_bytes()[-48:-40], "little") for run in folder.glob("t*.run")])
    assert sum(counts[0]) == sum(counts[1]) > 0, "records, of which each run file says at its end how many it has"


def undisturbed_verified(workspace: Workspace) -> dict[str, bytes]:
    """Return what a run leaves that nothing disturbs, after a look at all that it tells."""
    workspace.succeed(*VERIFIED, "--json")
    kept = workspace.records("out")
    assert kept == survivors(workspace, compared_verified)
    new = in_sources(workspace.root)
    without = len(new) - len(compared_verified({}, new))
    assert 20 < len(kept) < without, "some are near earlier ones alone"
    again = workspace.run(*VERIFIED, "--json")
    assert (again.status, [stage["done"]["tasks"] for stage in again.json["stages"].values()]) == (0, [0] * 6)
    return shards(workspace)


@pytest.mark.slow
@pytest.mark.parametrize("more", [(), ("--cluster-bytes", "1"), ("--prefer", "s")])
def test_marks_rounds_and_a_preference(workspace: Workspace, more: tuple[str, ...]) -> None:
    write_both(workspace)
    workspace.succeed(*EARLIER)
    words = [word for word in VERIFIED if word not in ("--to", "jsonl")]
    workspace.succeed(*words, *more, "--mark", "--output", "marks", "--ledger", "M")
    prefer = "--prefer" in more
    expected = compared_verified(in_sources(workspace.root, "old"), in_sources(workspace.root), prefer=prefer)
    require_one_of(marks_in(workspace.root / "marks"), expected)


@pytest.mark.slow
def test_an_earlier_one_that_has_changed_is_compared_as_it_is_signed_or_said_to_be_another(
    workspace: Workspace,
) -> None:
    write_both(workspace)
    workspace.succeed(*EARLIER)
    path = workspace.root / "old" / "p.jsonl"
    moved = workspace.root / "moved.jsonl"
    path.rename(moved)
    gone = workspace.run(*VERIFIED)
    assert gone.status != 0
    assert f"{path}: the file is gone: --verify must read it, because" in gone.err
    assert not shards(workspace)
    write_jsonl(path, rows_of("p", 30, seed=3))
    changed = workspace.run(*VERIFIED)
    assert changed.status != 0
    assert f"{path}: the file has changed: --verify must read" in changed.err
    path.unlink()
    moved.rename(path)
    workspace.succeed(*VERIFIED)
    assert workspace.records("out") == survivors(workspace, compared_verified)
    copied = [row for row in in_sources(workspace.root).values() if row["text"]][::2]
    write_jsonl(workspace.root / "old" / "r.jsonl", copied)
    path.unlink()
    workspace.succeed(*EARLIER)
    ran = workspace.succeed(*VERIFIED, "--json")
    assert ran.json["stages"]["scatter"]["done"]["tasks"] == 0
    assert workspace.records("out") == survivors(workspace, compared_verified)


@pytest.mark.slow
def test_a_kill_before_earlier_files_are_known_does_not_leave_those_of_another_state(workspace: Workspace) -> None:
    write_both(workspace)
    for command in (EARLIER, VERIFIED):
        workspace.succeed(*command)
    copied = [row for row in in_sources(workspace.root).values() if row["text"]]
    write_jsonl(workspace.root / "old" / "r.jsonl", copied)
    workspace.succeed(*EARLIER)
    assert workspace.run(*VERIFIED, env={"LEDGERBEAM_FAULT": "exchange.earlier:1"}).status != 0
    workspace.succeed(*VERIFIED)
    assert workspace.records("out") == survivors(workspace, compared_verified)


@pytest.mark.slow
def test_texts_that_are_found_otherwise_are_refused(workspace: Workspace) -> None:
    write_both(workspace)
    for row in (workspace.root / "old").glob("*.jsonl"):
        rows = [json.loads(line) for line in row.read_text().splitlines()]
        write_jsonl(row, [{**one, "body": one["text"]} for one in rows])
    other = tuple("body" if word == "text" else word for word in EARLIER)
    workspace.succeed(*other)
    workspace.run(*VERIFIED, status=2, err="by is text in this job and body in that ledger; give the --near")


@pytest.mark.slow
@pytest.mark.s3
def test_against_a_ledger_and_sources_on_s3(workspace: Workspace, s3: S3Server) -> None:
    write_both(workspace)
    place = s3.place()
    first = (*EARLIER[:-4], "--output", f"{place}/first", "--ledger", f"{place}/L1")
    later = tuple(f"{place}/L1" if word == "L1" else word for word in VERIFIED)
    for command in (first, later):
        workspace.succeed(*command, env=s3.env)
    assert workspace.records("out") == survivors(workspace, compared_verified)
