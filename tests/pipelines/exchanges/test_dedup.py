"""``dedup``: what stays is what plain Python keeps, after any kill and any change."""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ledgerbeam.io.exchange.order import KeyOrder
from ledgerbeam.io.exchange.slices import Partition
from ledgerbeam.ledger import NoneTask, Source
from ledgerbeam.sources.listed import file_key
from ledgerbeam.transforms.dedup import duplicates
from ledgerbeam.transforms.dedup.duplicates import FindDuplicates
from ledgerbeam.transforms.exchange.keys import RecordKeys
from tests.pipelines.conftest import Workspace
from tests.pipelines.exchanges.stages import (
    Marks,
    Place,
    Stages,
    by_file,
    gone_in,
    in_sources,
    listed_marks,
    listed_places,
    marks_in,
    portable_marks,
    require_marks,
    write_jsonl,
)

DEDUP = (
    *("dedup", "in/*.jsonl", "--by", "k", "--output", "out", "--to", "jsonl", "--ledger", "L"),
    *("--task-bytes", "3000", "--bucket-bytes", "8000"),
)


def stays_for(rows: Mapping[Place, dict[str, Any]], *, prefer: bool = False) -> dict[Place, Place]:
    """Return for each record that goes the one that stays."""
    best: dict[str, Place] = {}
    keys = {place: repr(row["k"]) for place, row in rows.items() if row["k"] is not None}
    for place, key in keys.items():
        if key not in best or (prefer and rows[place]["s"] > rows[best[key]]["s"]):
            best[key] = place
    return {place: best[key] for place, key in keys.items() if best[key] != place}


def survivors(workspace: Workspace, *, prefer: bool = False) -> list[dict[str, Any]]:
    """Return what stays, in order."""
    rows = in_sources(workspace.root)
    gone = stays_for(rows, prefer=prefer)
    return [row for place, row in rows.items() if place not in gone]


KEYS = st.none() | st.integers(0, 4) | st.text("ab", max_size=1)
FILES = st.lists(st.lists(st.tuples(KEYS, st.integers(0, 2)), max_size=12), min_size=1, max_size=4)


@settings(deadline=None, max_examples=25)
@given(FILES, st.booleans(), st.sampled_from([1, 5, 10**6]), st.sampled_from([None, 100]), st.sampled_from([2, 10**6]))
def test_duplicates_are_all_but_the_first_or_the_best(
    keys: list[list[tuple[Any, int]]], prefer: bool, part_bytes: int, pack_bytes: int | None, at_once: int
) -> None:
    files = {f"f{n}": [{"k": k, "s": s} for k, s in some] for n, some in enumerate(keys)}
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(duplicates, "_ROWS", at_once)
        score = RecordKeys("key", ("s",), order=KeyOrder(descending=True)) if prefer else None
        stages = Stages(
            Path(folder), RecordKeys("digest", ("k",)), Partition(3).cuts(), part_bytes, within_keys=False, score=score
        )
        urls = by_file(Path(folder) / "in", files)
        stages.scatter(urls, pack_bytes=pack_bytes)
        lists, noted = (
            [done.records for done in stages.gather(FindDuplicates(mark)) if not isinstance(done, NoneTask)]
            for mark in (False, True)
        )
    rows = {(url, n): row for url, some in zip(urls, files.values(), strict=True) for n, row in enumerate(some)}
    expected = stays_for(rows, prefer=prefer)
    assert sorted(place for some in lists for place in listed_places(some, urls)) == sorted(expected)
    marks: Marks = dict.fromkeys(rows, (None, None))
    for some in noted:
        marks |= listed_marks(some, urls)
    require_marks(marks, rows, expected)


def test_a_source_whose_name_is_no_unicode_can_be_marked(tmp_path: Path) -> None:
    stages = Stages(tmp_path, RecordKeys("digest", ("k",)), [])
    (url,) = by_file(tmp_path / "in", {"a\udcff": [{"k": 1}, {"k": 1}]})
    stages.scatter([url])
    (done,) = stages.gather(FindDuplicates(mark=True))
    assert gone_in(listed_marks(done.records, [url])) == {(url, 1): (f"{tmp_path}/in/a\\udcff.jsonl", 0)}


def rows_of(name: str, count: int, *, seed: int = 0) -> list[dict[str, Any]]:
    chosen = random.Random(f"{name}{seed}")
    return [{"k": chosen.choice([None, chosen.randrange(90)]), "s": n % 7, "at": f"{name}{n}"} for n in range(count)]


def write_sources(workspace: Workspace) -> None:
    for name in "abc":
        write_jsonl(workspace.root / "in" / f"{name}.jsonl", rows_of(name, 150))


def undisturbed(workspace: Workspace) -> dict[str, bytes]:
    """Return what a run leaves that nothing disturbs, after a look at all that it tells."""
    ran = workspace.succeed(*DEDUP, "--workers", "2", "--json")
    assert workspace.records("out") == survivors(workspace)
    assert not [path for path in (workspace.root / "out").iterdir() if path.name in ("_runs", "_drops")]
    counts = ran.json["records"]
    assert counts["read"] == 450
    assert counts["dropped"] == {"duplicate": 450 - counts["kept"]}
    stages = ran.json["stages"].values()
    assert len(stages) == 3
    assert ran.json["done"]["tasks"] == ran.json["tasks"]["done"] == sum(stage["done"]["tasks"] for stage in stages)
    assert ran.json["seconds"] == pytest.approx(sum(stage["seconds"] for stage in stages), abs=0.01)
    again = workspace.run(*DEDUP, "--json")
    assert (again.status, again.json["done"]["tasks"]) == (0, 0)
    status = workspace.run("ledger", "status", "L", "--json").json
    assert status["complete"] is True
    assert list(status["stages"]) == ["decide/scatter", "decide"]
    workspace.succeed("ledger", "verify", "L")
    return workspace.files("out")


MARKS = (*DEDUP[:6], *DEDUP[8:], "--prefer", "s", "--mark")


def undisturbed_marks(workspace: Workspace) -> dict[str, Any]:
    """Return the marks that a run leaves that nothing disturbs."""
    ran = workspace.succeed(*MARKS, "--workers", "2", "--json")
    assert list(ran.json["stages"]) == ["scatter", "decide", "dedup"]
    rows = in_sources(workspace.root)
    require_marks(marks_in(workspace.root / "out"), rows, stays_for(rows, prefer=True))
    assert workspace.succeed(*MARKS, "--json").json["done"]["tasks"] == 0
    return portable_marks(workspace.root)


@pytest.mark.slow
def test_a_run_after_any_change_is_a_run_from_nothing(workspace: Workspace) -> None:
    write_sources(workspace)

    def changed(*options: str) -> dict[str, Any]:
        ran = workspace.succeed(*DEDUP, *options, "--json")
        assert workspace.records("out") == survivors(workspace)
        return dict(ran.json["stages"])

    changed("--keep-runs")
    write_jsonl(workspace.root / "in" / "0.jsonl", [{"k": 3, "s": 0, "at": "new"}])
    stages = changed("--keep-runs")
    assert stages["scatter"]["done"]["tasks"] == 1
    assert stages["dedup"]["done"]["tasks"] < stages["dedup"]["tasks"]["done"]
    time.sleep(0.01)
    write_jsonl(workspace.root / "in" / "b.jsonl", rows_of("b", 100, seed=1))
    changed()
    for path in (workspace.root / "in").glob("0.jsonl*"):
        path.unlink()
    changed()
    assert not list((workspace.root / "out").glob("0.jsonl*"))
    write_jsonl(workspace.root / "in" / "0.jsonl", [{"k": 3, "s": 0, "at": "back"}])
    changed()


@pytest.mark.slow
def test_content_and_preference(workspace: Workspace) -> None:
    rows = [{"a": 1, "b": [1.5]}, {"b": [1.5], "a": 1}, {"a": 1.0, "b": [1.5]}, {"a": 1, "b": [1.5], "c": None}]
    write_jsonl(workspace.root / "other" / "a.jsonl", rows)
    workspace.succeed("dedup", "other/*.jsonl", "--content", "--output", "one", "--to", "jsonl")
    assert workspace.records("one") == [rows[0], rows[2], rows[3]]
    write_sources(workspace)
    workspace.succeed(*DEDUP, "--prefer", "s")
    assert workspace.records("out") == survivors(workspace, prefer=True)
    assert workspace.run(*DEDUP, "--content").status == 2


def test_no_two_files_share_a_key() -> None:
    assert len({file_key(Source(f"s3://b/{n}", 1, "").url) for n in range(1000)}) == 1000
