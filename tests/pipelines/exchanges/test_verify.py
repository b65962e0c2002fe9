"""``dedup --near --verify``: near is what shares a band and has enough n-grams in common, counted with plain sets."""

from __future__ import annotations

import re
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ledgerbeam
from ledgerbeam.io.exchange.slices import EARLIER, Partition, RunLayout, SliceTables, SomeUrls
from ledgerbeam.sources.listed import ChosenSources, ListBuckets, with_lists
from ledgerbeam.transforms.dedup import verify
from ledgerbeam.transforms.dedup.duplicates import FindCandidates, HashEncoder, PairRecords
from ledgerbeam.transforms.dedup.verify import CollectGrams, VerifiedTrees
from tests.pipelines.conftest import Workspace
from tests.pipelines.exchanges.stages import (
    Marks,
    Place,
    by_file,
    in_sources,
    listed,
    marks_in,
    placed_files,
    require_marks,
    run_again,
    source_tasks,
    write_jsonl,
)
from tests.pipelines.exchanges.test_near import (
    FILES,
    NEAR,
    OPTIONS,
    Process,
    rows_of,
    shards,
    write_sources,
)
from tests.transforms.dedup.test_minhash import plain_bands, plain_words

SHARE = 0.75
VERIFY = (
    *("dedup", "in/*.jsonl", "--near", "text", *OPTIONS, "--threshold", str(SHARE), "--verify", "--output", "out"),
    *("--to", "jsonl", "--ledger", "L", "--task-bytes", "3000", "--bucket-bytes", "8000"),
)
STAGES = ["cluster/pairs/scatter", "cluster/pairs", "cluster", "texts", "verify"]


def grams_of(text: str) -> set[tuple[bytes, ...]]:
    words = plain_words(text)
    return {tuple(words[at : at + 2]) for at in range(max(1, len(words) - 1))} if words else set()


def near_sets(rows: dict[Place, Any], share: float) -> dict[Place, set[Place]]:
    """Return for each document all that are near it, or near by way of others, by sets and bands of plain Python."""
    bands = {place: set(plain_bands(row.get("text") or "", 6, 2, 2)) for place, row in rows.items()}
    grams = {place: grams_of(row.get("text") or "") for place, row in rows.items()}
    of: dict[Place, set[Place]] = {place: {place} for place in rows}
    for one, other in combinations(rows, 2):
        if bands[one] & bands[other] and of[one] is not of[other]:
            ours, theirs = grams[one], grams[other]
            if len(ours & theirs) / len(ours | theirs) >= share:
                whole = of[one] | of[other]
                of.update(dict.fromkeys(whole, whole))
    return of


def verified(rows: dict[Place, Any], share: float, *, prefer: bool = False) -> dict[Place, Place]:
    """Return for each document that goes the one that stays."""
    of = near_sets(rows, share)
    best = {place: min(some, key=lambda one: (-rows[one]["s"] if prefer else 0, one)) for place, some in of.items()}
    return {place: stays for place, stays in best.items() if place != stays}


class Verified(Process):
    """The stages in this process, without Beam and a ledger."""

    share = 0.5

    def drops(self, urls: Sequence[str], pack_bytes: int | None) -> tuple[Marks, list[Place]]:
        """Return the marks of the records of clusters, and the places of those that go."""
        forests = self._forests(urls, pack_bytes, PairRecords(among_earlier=bool(self.earlier)))
        if not forests:
            return {}, []
        (lists,) = self._write("l", [(FindCandidates()(forests[0]), HashEncoder(Partition(4).cuts()), ())])
        buckets = SliceTables(str(self.folder), "l").write(RunLayout.of_one([lists], 4))
        listing = self.folder / "lists.json"
        listing.write_bytes(orjson.dumps({"versions": [row.version for row in buckets]}))
        every = [*urls, *self.earlier]
        texts = [
            run._replace(
                sources=SomeUrls.of([f"{EARLIER}{url}" if url in self.earlier else url for url in run.sources])
            )
            for run in self._write("t", self._texts(every, pack_bytes, ListBuckets(str(listing))))
        ]
        trees = VerifiedTrees(self.sign.minhash, self.share, self.sign.score is not None)
        return self._found(self._tasks(texts, len(self.cuts) + 1, "t"), urls, trees)

    def _texts(
        self, urls: Sequence[str], pack_bytes: int | None, buckets: ListBuckets
    ) -> Iterator[tuple[Any, Any, tuple[str, ...]]]:
        opened = ChosenSources(placed_files(self.folder), SliceTables(str(self.folder), "l"), buckets)
        collect = CollectGrams(self.sign.text, self.sign.minhash, self.sign.score)
        for task in source_tasks(opened, with_lists(listed(urls), buckets, pack_bytes), 3):
            yield collect(task), HashEncoder(self.cuts, 150), task.source.urls


@pytest.mark.slow
@settings(deadline=None, max_examples=40)
@given(
    FILES,
    st.booleans(),
    st.sampled_from([1, 100, 10**6]),
    st.sampled_from([None, 100]),
    st.sampled_from([0.2, 0.5, 0.6]),
)
def test_what_goes_is_all_but_one_of_what_is_near_by_its_n_grams(
    some: list[list[dict[str, Any]]], prefer: bool, part_bytes: int, pack_bytes: int | None, share: float
) -> None:
    files = {f"f{n}": rows for n, rows in enumerate(some)}
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(verify, "AT_ONCE", part_bytes)
        patch.setattr(verify, "FEW", 1)
        urls = by_file(Path(folder) / "in", files)
        process = Verified(Path(folder), 3, part_bytes, prefer=prefer)
        process.share = share
        marks, places = process.drops(urls, pack_bytes)
    documents = {(url, n): row for url, found in zip(urls, files.values(), strict=True) for n, row in enumerate(found)}
    expected = verified(documents, share, prefer=prefer)
    require_marks(dict.fromkeys(documents, (None, None)) | marks, documents, expected)
    assert sorted(places) == sorted(expected)


def test_more_n_grams_of_one_cluster_than_are_held_fail_their_task_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (url,) = by_file(tmp_path / "in", {"a": [{"text": "x"}, *({"text": "a b c d"} for _ in range(4)), {"text": "y"}]})
    process = Verified(tmp_path, 1, 10**6, prefer=False)
    held = 4 * verify.RECORD_BYTES + 3 * 8  # the equal ones have one set of three n-grams
    monkeypatch.setattr(verify, "MOST_BYTES", held)
    assert len(process.drops([url], None)[1]) == 3
    monkeypatch.setattr(verify, "MOST_BYTES", held - 1)
    with pytest.raises(
        AssertionError, match=rf"{url}, record 1: .* n-grams .* at most 279, found more; remove equal records first"
    ):
        process.drops([url], None)


def survivors(workspace: Workspace, *, prefer: bool = False) -> list[dict[str, Any]]:
    rows = in_sources(workspace.root)
    gone = verified(rows, SHARE, prefer=prefer)
    return [row for place, row in rows.items() if place not in gone]


def undisturbed(workspace: Workspace) -> dict[str, bytes]:
    """Return what a run leaves that nothing disturbs, after a look at all that it tells."""
    ran = workspace.succeed(*VERIFY, "--workers", "2", "--json")
    kept = workspace.records("out")
    assert kept == survivors(workspace)
    assert 180 < len(kept) < 230, "fewer go than share a band"
    assert sorted(path.name for path in (workspace.root / "out").glob("_*")) == ["_ledgerbeam", "_signatures"]
    assert ran.json["records"]["dropped"] == {"duplicate": 240 - len(kept)}
    assert list(ran.json["stages"]) == ["scatter", "pairs", "cluster", "texts", "verify", "dedup"]
    candidates = ran.json["stages"]["texts"]["records"]["read"]
    assert 240 - len(kept) < candidates < 240, "no others are read"
    again = workspace.run(*VERIFY, "--json")
    assert (again.status, [stage["done"]["tasks"] for stage in again.json["stages"].values()]) == (0, [0] * 6)
    status = workspace.run("ledger", "status", "L", "--json").json
    assert status["complete"] is True
    assert list(status["stages"]) == STAGES
    workspace.succeed("ledger", "verify", "L")
    shown = workspace.run("ledger", "watch", "L", "--once", "--json").json
    assert (shown["complete"], list(shown["stages"])) == (True, STAGES)
    stats = workspace.run("ledger", "stats", "L", "--json").json
    stays = set((of := verified(in_sources(workspace.root), SHARE)).values())
    sizes = stats["records of a cluster"]
    assert (sizes["count"], sizes["mean"] * sizes["count"]) == (len(stays), pytest.approx(len(stays) + len(of)))
    before = stats["records of a cluster before it is verified"]
    assert before["mean"] * before["count"] == pytest.approx(candidates)
    return shards(workspace)


@pytest.mark.slow
def test_of_new_files_alone_signatures_are_made_and_the_result_is_that_of_a_run_from_nothing(
    workspace: Workspace,
) -> None:
    write_sources(workspace)

    changed = partial(run_again, workspace, VERIFY, survivors)

    first = changed()
    assert first["scatter"] >= 3
    write_jsonl(workspace.root / "in" / "0.jsonl", rows_of("0", 40))
    second = changed()
    assert second["scatter"] <= 4, "the others are signed"
    assert second["pairs"] <= first["pairs"] + 1, "nothing is done twice"
    assert second["texts"] <= first["texts"] + 4
    assert second["cluster"] == 1
    time.sleep(0.01)
    write_jsonl(workspace.root / "in" / "b.jsonl", rows_of("b", 60, seed=1))
    assert 0 < changed()["scatter"] < first["scatter"]
    for path in (workspace.root / "in").glob("0.jsonl*"):
        path.unlink()
    assert changed()["scatter"] == 0
    shutil.rmtree(workspace.root / "out" / "_signatures")
    assert sum(changed().values()) == 0, "nothing has changed, so nothing is looked for"
    whole = shards(workspace)
    found = workspace.records("out")
    shutil.rmtree(workspace.root / "out")
    shutil.rmtree(workspace.root / "L")
    assert changed()["scatter"] > 0
    assert workspace.records("out") == found
    assert shards(workspace) == whole


@pytest.mark.slow
def test_n_grams_that_are_kept_are_not_made_again(workspace: Workspace) -> None:
    write_sources(workspace)
    first = workspace.succeed(*VERIFY, "--keep-runs", "--json")
    bases = [row for row in rows_of("c", 80) if row["text"]]
    write_jsonl(workspace.root / "in" / "d.jsonl", [bases[0], *rows_of("other", 3, seed=5)])
    second = workspace.succeed(*VERIFY, "--keep-runs", "--json")
    assert workspace.records("out") == survivors(workspace)
    tasks = [ran.json["stages"]["texts"]["done"]["tasks"] for ran in (first, second)]
    assert 0 < tasks[1] < tasks[0]


@pytest.mark.slow
def test_signatures_stay_when_what_shares_a_band_is_verified_from_now_on(workspace: Workspace) -> None:
    write_sources(workspace)
    plain = [word for word in VERIFY if word not in ("--threshold", str(SHARE), "--verify")]
    workspace.succeed(*plain)
    refused = workspace.run(*VERIFY, status=1)
    assert re.search(rf"verify: was .*, is {SHARE}", refused.err)
    ran = workspace.succeed(*VERIFY, "--on-job-change", "restart", "--json")
    assert ran.json["stages"]["scatter"]["done"]["tasks"] == 0
    assert workspace.records("out") == survivors(workspace)
    assert list(workspace.run("ledger", "status", "L", "--json").json["stages"]) == STAGES
    back = workspace.succeed(*plain, "--on-job-change", "restart", "--json")
    assert back.json["stages"]["scatter"]["done"]["tasks"] == 0
    assert list(workspace.run("ledger", "status", "L", "--json").json["stages"]) == STAGES[:3]


@pytest.mark.slow
def test_preference_marks_and_a_call(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    write_sources(workspace)
    workspace.succeed(*VERIFY, "--prefer", "s")
    assert workspace.records("out") == survivors(workspace, prefer=True)
    ran = workspace.succeed(*VERIFY[:11], "--mark", "--output", "marks", "--prefer", "s", "--json")
    rows = in_sources(workspace.root)
    require_marks(marks_in(workspace.root / "marks"), rows, verified(rows, SHARE, prefer=True))
    assert list(ran.json["stages"]) == ["scatter", "pairs", "cluster", "texts", "verify", "dedup"]
    assert list(workspace.run("ledger", "status", ran.json["ledger"], "--json").json["stages"]) == STAGES
    assert sorted(path.name for path in (workspace.root / "marks").glob("_*/")) == ["_ledgerbeam", "_signatures"]
    monkeypatch.chdir(workspace.root)
    called = ledgerbeam.dedup(
        "in/*.jsonl", near="text", minhash="6x2", ngram=2, threshold=SHARE, verify=True, output="called", to="jsonl"
    )
    assert called.complete
    assert workspace.records("called") == survivors(workspace)


@pytest.mark.slow
@pytest.mark.parametrize("command", [NEAR, VERIFY])
def test_a_dry_run_says_what_would_be_signed(workspace: Workspace, command: tuple[str, ...]) -> None:
    write_sources(workspace)
    before = workspace.run(*command, "--dry-run", "--json")
    assert (before.status, before.json["sources"]["new"]) == (0, 3), before.err
    assert not (workspace.root / "L").exists()
    workspace.succeed(*command)
    write_jsonl(workspace.root / "in" / "0.jsonl", rows_of("0", 5))
    after = workspace.run(*command, "--dry-run", "--json")
    found = after.json["sources"]
    assert (after.status, found["complete"], found["new"]) == (0, 3, 1), after.err


@pytest.mark.slow
@pytest.mark.parametrize("rows", [[], [{"text": "a b c"}, {"text": "x y z"}]])
def test_without_candidates_all_stay(workspace: Workspace, rows: list[Any]) -> None:
    write_jsonl(workspace.root / "in" / "a.jsonl", [*rows, {"text": None}])
    workspace.succeed(*VERIFY)
    assert workspace.records("out") == [*rows, {"text": None}]
    assert workspace.run("ledger", "status", "L", "--json").json["complete"] is True
