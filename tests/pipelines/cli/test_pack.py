"""`ledgerbeam pack`: an index over unchanged datasets, with the same bytes after kills."""

from __future__ import annotations

import os
import random
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import ledgerbeam
from ledgerbeam.errors import UsageError
from ledgerbeam.iterators import Packed
from ledgerbeam.iterators.testing import through_json
from tests.iterators.data import write_documents
from tests.pipelines.conftest import Workspace

COMMAND = ("pack", "data/*", "--length", "64", "--output", "out", "--ledger", "L", "--task-bytes", "2000")


def write_data(workspace: Workspace, name: str, count: int = 300, seed: int = 1) -> str:
    (workspace.root / "data").mkdir(exist_ok=True)
    return write_documents(workspace.root / "data" / name, np.random.default_rng(seed).integers(0, 90, count).tolist())


def packs_of(folder: Path) -> list[Any]:
    return [(pack["tokens"].tolist(), pack["documents"].tolist()) for pack in Packed(str(folder))]


def test_a_job_packs_datasets_and_later_ones_add_packs_and_change_none(workspace: Workspace) -> None:
    write_data(workspace, "b")
    dataset = {name: (workspace.root / "data" / name).stat().st_mtime_ns for name in ("b.bin", "b.idx")}
    done = workspace.succeed(*COMMAND, "--json").json
    before = workspace.files("out")
    assert sorted(before)[:2] == ["_packs.arrow", "b.bin-0000000000.arrow"]
    assert done["records"]["read"] == 300
    assert done["records"]["dropped"] == {"empty document": done["records"]["read"] - done["records"]["kept"]}
    packs = packs_of(workspace.root / "out")
    assert done["records"]["written"] == {"": len(packs)}
    assert workspace.succeed(*COMMAND, "--json").json["skipped"] == 1

    write_data(workspace, "c", seed=2)
    assert workspace.succeed(*COMMAND, "--json").json["skipped"] == 1
    after = workspace.files("out")
    assert {name: after[name] for name in before if name != "_packs.arrow"} == {
        name: data for name, data in before.items() if name != "_packs.arrow"
    }
    assert packs_of(workspace.root / "out")[: len(packs)] == packs

    options = ("--length", "100", "--strategy", "concat", "--eod", "59999", "--output", "longer")
    workspace.succeed("pack", "data/*", *options)
    assert {name: (workspace.root / "data" / name).stat().st_mtime_ns for name in dataset} == dataset
    lengths = np.concatenate([np.random.default_rng(seed).integers(0, 90, 300) for seed in (1, 2)])
    longer = Packed(str(workspace.root / "longer"))
    assert longer.sizes(np.arange(len(longer))).sum() == (lengths + (lengths > 0)).sum()


def test_a_dataset_that_grows_keeps_its_packs_and_another_one_does_not(workspace: Workspace) -> None:
    lengths = np.random.default_rng(1).integers(1, 90, 300).tolist()
    prefix = write_data(workspace, "a", 300)
    write_documents(Path(prefix), lengths)
    workspace.succeed(*COMMAND)
    before = rows_of(workspace.root / "out")
    write_documents(Path(prefix), [*lengths, 5, 70, 31])
    assert workspace.run(*COMMAND, env={"LEDGERBEAM_FAULT": "published.before:1"}).status == -signal.SIGKILL
    workspace.succeed(*COMMAND)
    after = rows_of(workspace.root / "out")
    assert before.items() <= after.items()
    assert len(after) == len(before) + 1

    write_documents(Path(prefix), lengths[::-1])
    for place in (), ("--output", "fresh", "--ledger", "L2"):
        workspace.succeed(*COMMAND, *place)
    assert rows_of(workspace.root / "out") == rows_of(workspace.root / "fresh")


def test_a_folder_has_one_length_and_end_and_its_catalog_can_be_lost(workspace: Workspace) -> None:
    prefix = write_data(workspace, "a")
    workspace.succeed(*COMMAND)
    write_data(workspace, "b")
    for other in ("--length", "200"), ("--eod", "59999"):
        name = other[0].removeprefix("--")
        found = workspace.run(*COMMAND, *other, "--on-job-change", "accept", status=2)
        assert f"and this job writes {name} {other[1]}" in found.err

    catalog = workspace.root / "out" / "_packs.arrow"
    catalog.write_bytes(b"damaged")
    write_documents(Path(prefix), [20] * 400)
    found = workspace.run(*COMMAND, status=3)
    assert "delete it to pack all documents of this dataset anew" in found.out + found.err
    catalog.unlink()
    workspace.succeed(*COMMAND)
    packed = Packed(str(workspace.root / "out"))
    assert packed.sizes(np.arange(len(packed))).sum() == 400 * 20 + np.random.default_rng(1).integers(0, 90, 300).sum()


def rows_of(folder: Path) -> dict[str, Any]:
    """Return the rows of each file of packs, without its metadata, which name the version of the dataset."""
    names = sorted(path.name for path in folder.glob("*-*.arrow"))
    return {name: pa.ipc.open_file(str(folder / name)).read_all().to_pylist() for name in names}


def test_a_changed_dataset_is_refused_until_it_is_packed_again(workspace: Workspace) -> None:
    prefix = write_data(workspace, "a")
    workspace.succeed(*COMMAND)
    leaf = Packed(str(workspace.root / "out"), shuffle=True)
    next(iter(leaf))
    state = through_json(leaf.state_dict())
    os.utime(f"{prefix}.bin", ns=(1, 1))
    code = "from ledgerbeam.iterators import Packed; next(iter(Packed('out')))"
    workspace.call(sys.executable, "-c", code, status=1, err="run the same ledgerbeam pack again")
    workspace.succeed(*COMMAND)
    again = Packed(str(workspace.root / "out"), shuffle=True)
    again.load_state_dict(state, trust_data=True)
    assert next(iter(again))["tokens"].tolist() == leaf.records[int(leaf.order(np.array([1]))[0])]["tokens"].tolist()


def test_what_cannot_be_packed_is_refused(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(workspace.root)
    write_data(workspace, "a")
    lines = workspace.jsonl("in/a.jsonl", 3)
    for options, problem in (
        ({"length": 0}, "length"),
        ({"length": 2**31}, "at most 2,147,483,647 tokens"),
        ({"length": 8, "weight": -1}, "weight"),
        ({"length": 8, "eod": -1}, "eod"),
        ({"length": 8, "strategy": "concat", "longest": "cut"}, "leave --longest out"),
        ({"length": 8, "strategy": "best"}, "strategy"),
    ):
        with pytest.raises(UsageError, match=problem):
            ledgerbeam.pack("data/a", output="out", **options)
    lines.rename(lines.with_suffix(".bin"))
    ran = workspace.run("pack", "in/a", "--length", "8", "--output", "o", status=3)
    assert "in/a.bin has no index: expected" in ran.out + ran.err
    workspace.run("pack", "none", "--length", "8", "--output", "o", status=1)


@pytest.mark.slow
def test_killed_jobs_end_with_the_same_bytes(workspace: Workspace) -> None:
    """40 kills of the launcher with its workers, at random times and before the catalog is written."""
    for number in range(4):
        write_data(workspace, f"d{number}", 400, number)
    short = (*COMMAND[:4], *COMMAND[-2:], "--flush-interval", "0.01", "--workers", "2")
    workspace.succeed(*short, "--output", "clean")
    expected = workspace.files("clean")
    kills, ended, chance = 0, 0, random.Random(7)
    while kills < 40:
        command = (*short, "--output", f"out-{ended}", "--ledger", f"L-{ended}")
        if (
            workspace.is_killed(chance.uniform(0.4, 1.0), *command)
            or workspace.run(*command, env={"LEDGERBEAM_FAULT": "published.before:1"}).status == -signal.SIGKILL
        ):
            kills += 1
        else:
            assert workspace.files(f"out-{ended}") == expected
            ended += 1
    workspace.succeed(*command)
    assert workspace.files(command[command.index("--output") + 1]) == expected
