"""``dedup --near --verify --against``: what is compared with records of an earlier one has their n-grams in common."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledgerbeam.transforms.dedup import verify
from tests.conftest import S3Server
from tests.pipelines.conftest import Workspace, make_workspace
from tests.pipelines.exchanges.killing import run_killed_at
from tests.pipelines.exchanges.stages import by_file, write_jsonl
from tests.pipelines.exchanges.test_against import DEDUP, EARLIER, documents, write_both
from tests.pipelines.exchanges.test_near import FILES, Place, rows_of, shards
from tests.pipelines.exchanges.test_verify import SHARE, Verified, near_sets
from tests.transforms.dedup.test_minhash import plain_bands

LATER = (
    *(*DEDUP, "in/*.jsonl", "--output", "out", "--ledger", "L", "--against", "L1"),
    *("--verify", "--threshold", str(SHARE)),
)


def compared(
    old: dict[Place, Any], new: dict[Place, Any], share: float, *, prefer: bool = False
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
        rows, places = process.drops(new, pack_bytes)
    earlier, later = (
        {(url, n): row for url, rows in zip(urls, some, strict=True) for n, row in enumerate(rows)}
        for urls, some in zip((old, new), both, strict=True)
    )
    expected = compared(earlier, later, share, prefer=prefer)
    assert sorted(places) == sorted(expected)
    of = {(row["source"], row["record"]): (row["of"]["source"], row["of"]["record"]) for row in rows}
    assert of.keys() == expected.keys()
    assert all(of[place] in stay for place, stay in expected.items())


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
        rows, places = process.drops(new, None)
        assert places == [(new[0], 0)]
        assert rows == [{"source": new[0], "record": 0, "of": {"source": old[0], "record": 1}}]
        counts.append([int.from_bytes(run.read_bytes()[-48:-40], "little") for run in folder.glob("t*.run")])
    assert sum(counts[0]) == sum(counts[1]) > 0, "records, of which each run file says at its end how many it has"


def survivors(workspace: Workspace, *, prefer: bool = False) -> list[dict[str, Any]]:
    new = documents(workspace, "in")
    gone = compared(documents(workspace, "old"), new, SHARE, prefer=prefer)
    return [row for place, row in new.items() if place not in gone]


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    workspace = make_workspace(tmp_path_factory.mktemp("clean"))
    write_both(workspace)
    workspace.succeed(*EARLIER)
    workspace.succeed(*LATER, "--json")
    kept = workspace.records("out")
    assert kept == survivors(workspace)
    new = documents(workspace, "in")
    without = len(new) - len(compared({}, new, SHARE))
    assert 20 < len(kept) < without, "some are near earlier ones alone"
    again = workspace.run(*LATER, "--json")
    assert (again.status, [stage["done"]["tasks"] for stage in again.json["stages"].values()]) == (0, [0] * 6)
    return shards(workspace)


@pytest.mark.slow
@pytest.mark.parametrize("point", [1, 2, 3, 4, 5])
def test_a_kill_between_any_two_stages_changes_nothing(
    workspace: Workspace, clean: dict[str, bytes], point: int
) -> None:
    write_both(workspace)
    assert workspace.run(*EARLIER).status == 0
    run_killed_at(workspace, LATER, f"exchange.tabulated:{point}")
    assert shards(workspace) == clean


@pytest.mark.slow
@pytest.mark.parametrize("more", [(), ("--cluster-bytes", "1"), ("--pack", "100000"), ("--prefer", "s")])
def test_rounds_packs_and_a_preference(workspace: Workspace, more: tuple[str, ...]) -> None:
    write_both(workspace)
    assert workspace.run(*EARLIER).status == 0
    workspace.succeed(*LATER, *more, "--mark", "--output", "marks", "--ledger", "M")
    prefer = "--prefer" in more
    expected = compared(documents(workspace, "old"), documents(workspace, "in"), SHARE, prefer=prefer)
    rows = workspace.records("marks")
    of = {(row["source"], row["record"]): (row["of"]["source"], row["of"]["record"]) for row in rows}
    assert of.keys() == expected.keys()
    assert all(of[place] in stay for place, stay in expected.items())


@pytest.mark.slow
def test_an_earlier_one_that_has_changed_is_compared_as_it_is_signed_or_said_to_be_another(
    workspace: Workspace,
) -> None:
    write_both(workspace)
    assert workspace.run(*EARLIER).status == 0
    path = workspace.root / "old" / "p.jsonl"
    moved = workspace.root / "moved.jsonl"
    path.rename(moved)
    gone = workspace.run(*LATER)
    assert gone.status != 0
    assert f"{path}: the file is gone: --verify compares with records of it that" in gone.err
    assert not shards(workspace)
    write_jsonl(path, rows_of("p", 30, seed=3))
    changed = workspace.run(*LATER)
    assert changed.status != 0
    assert f"{path}: the file has changed: --verify compares" in changed.err
    path.unlink()
    moved.rename(path)
    workspace.succeed(*LATER)
    assert workspace.records("out") == survivors(workspace)
    copied = [row for row in documents(workspace, "in").values() if row["text"]][::2]
    write_jsonl(workspace.root / "old" / "r.jsonl", copied)
    path.unlink()
    assert workspace.run(*EARLIER).status == 0
    ran = workspace.succeed(*LATER, "--json")
    assert ran.json["stages"]["scatter"]["done"]["tasks"] == 0
    assert workspace.records("out") == survivors(workspace)


@pytest.mark.slow
def test_a_kill_before_earlier_files_are_known_does_not_leave_those_of_another_state(workspace: Workspace) -> None:
    write_both(workspace)
    for command in (EARLIER, LATER):
        assert workspace.run(*command).status == 0
    copied = [row for row in documents(workspace, "in").values() if row["text"]]
    write_jsonl(workspace.root / "old" / "r.jsonl", copied)
    assert workspace.run(*EARLIER).status == 0
    assert workspace.run(*LATER, env={"LEDGERBEAM_FAULT": "exchange.earlier:1"}).status != 0
    workspace.succeed(*LATER)
    assert workspace.records("out") == survivors(workspace)


@pytest.mark.slow
def test_texts_that_are_found_otherwise_are_refused(workspace: Workspace) -> None:
    write_both(workspace)
    for row in (workspace.root / "old").glob("*.jsonl"):
        rows = [json.loads(line) for line in row.read_text().splitlines()]
        write_jsonl(row, [{**one, "body": one["text"]} for one in rows])
    other = tuple("body" if word == "text" else word for word in EARLIER)
    assert workspace.run(*other).status == 0
    refused = workspace.run(*LATER)
    assert refused.status == 2
    assert "by: expected text, found body; give the --near and --group of that ledger" in refused.err


@pytest.mark.slow
@pytest.mark.s3
def test_against_a_ledger_and_sources_on_s3(workspace: Workspace, s3: S3Server) -> None:
    write_both(workspace)
    place = s3.place()
    first = (*EARLIER[:-4], "--output", f"{place}/first", "--ledger", f"{place}/L1")
    later = tuple(f"{place}/L1" if word == "L1" else word for word in LATER)
    for command in (first, later):
        workspace.succeed(*command, env=s3.env)
    assert workspace.records("out") == survivors(workspace)
