"""Marks: the columns of a command that decides about records select what the command writes."""

from __future__ import annotations

import json
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import ledgerbeam
from ledgerbeam.errors import ChangedSourceError, LedgerbeamError, UsageError
from ledgerbeam.io.listing.left_out import MARKS_FOLDER
from ledgerbeam.sources.columns import CATALOG
from tests.pipelines.exchanges.in_process import call_here, marking
from tests.pipelines.exchanges.stages import in_sources, marks_in, require_marks
from tests.pipelines.exchanges.test_dedup import stays_for
from tests.pipelines.exchanges.test_near import rows_of

FILES = ["in/*.jsonl"]
HOW: dict[str, Any] = {"to": "jsonl", "task_bytes": 3000, "workers": 1}
dedup = partial(ledgerbeam.dedup, FILES, by="k", prefer="s", bucket_bytes=8000, **HOW)
near = partial(ledgerbeam.dedup, FILES, near="text", minhash="6x2", ngram=2, bucket_bytes=8000, **HOW)
split = partial(ledgerbeam.split, FILES, by="k", parts="train=3,val=1", **HOW)


def write(folder: Path, name: str, count: int = 80) -> None:
    """Write a source with a blank line before every fifth record."""
    rows = [{**row, "k": None if n % 9 == 4 else n % 31} for n, row in enumerate(rows_of(name, count))]
    lines = ["\n" * (n % 5 == 0) + json.dumps(row) + "\n" for n, row in enumerate(rows)]
    (folder / "in").mkdir(exist_ok=True)
    (folder / "in" / f"{name}.jsonl").write_text("".join(lines))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in "abc":
        write(tmp_path, name)
    return tmp_path


def lines_in(folder: Path) -> list[bytes]:
    return [line for path in sorted(folder.glob("*.jsonl")) for line in path.read_bytes().splitlines(keepends=True)]


def select(where: str, output: str = "chosen") -> list[bytes]:
    options = {"with_": "marks", "where": where, "output": output, "ledger": f"{output}.ledger", **HOW}
    call_here(partial(ledgerbeam.select, FILES, **options)).raise_for_failures()
    return lines_in(Path(output))


@pytest.mark.parametrize(
    "call", [dedup, near, partial(near, threshold=0.75, verify=True)], ids=["exact", "near", "verify"]
)
def test_records_that_are_no_duplicates_are_what_a_deduplication_writes(folder: Path, call: partial[Any]) -> None:
    call_here(partial(call, output="out", ledger="L"))
    call_here(marking(call, output="marks", ledger="M"))
    found = lines_in(folder / "out")
    assert 0 < len(found) < 240
    assert select("duplicate_of IS NULL") == found


def test_marks_of_a_split_are_the_parts_that_it_writes(folder: Path) -> None:
    call_here(partial(split, output="out", ledger="L"))
    call_here(marking(split, output="marks", ledger="M"))
    for part in ("train", "val"):
        found = [json.loads(line) for line in select(f"part = '{part}'", part)]
        assert found == [json.loads(line) for line in lines_in(folder / "out" / part)] != []
    assert select("part IS NULL", "none") == [], "blank lines alone have no part"


def test_columns_and_records_replace_each_other_in_a_folder_only_by_a_restart(folder: Path) -> None:
    records, columns = partial(split, output="out", ledger="L"), marking(split, output="out", ledger="L")
    call_here(columns)
    for _ in range(2):
        written = sorted((folder / "out").rglob("*"))
        other = records if (folder / "out" / CATALOG).exists() else columns
        with pytest.raises(UsageError, match=r"its outputs have the form (columns|records), and this job writes"):
            call_here(partial(other, on_job_change="accept"))
        assert sorted((folder / "out").rglob("*")) == written
        call_here(partial(other, on_job_change="restart"))
        assert (folder / "out" / CATALOG).exists() == (other is columns)
        assert not [path for path in written if path.exists() and path.suffix and path.parent.name != MARKS_FOLDER]


@pytest.mark.slow
def test_marks_of_sources_that_change_are_refused_until_they_are_written_again(folder: Path) -> None:
    mark = marking(dedup, output="marks", ledger="M")

    def marked() -> int:
        done = call_here(mark).raise_for_failures().summary["stages"]["dedup"]["done"]["tasks"]
        rows = in_sources(folder)
        places = [
            (str(path), number)
            for path in (folder / "in").glob("*.jsonl")
            for number in range(path.read_bytes().count(b"\n"))
        ]
        stays = stays_for(rows, prefer=True)
        require_marks(marks_in(folder / "marks"), places, stays)
        kept = [row for place, row in rows.items() if place not in stays]
        assert [json.loads(line) for line in select("duplicate_of IS NULL", f"chosen-{len(rows)}")] == kept
        return int(done)

    marked()
    time.sleep(0.01)
    write(folder, "b", 70)
    with pytest.raises(ChangedSourceError, match=r"b\.jsonl in version .*, which is now in version"):
        select("duplicate_of IS NULL")
    assert marked() > 0
    write(folder, "0", 12)
    with pytest.raises(LedgerbeamError, match=r"has no columns for .*0\.jsonl"):
        select("duplicate_of IS NULL", "more")
    assert marked() > 0
    for path in (folder / "in").glob("0.jsonl*"):
        path.unlink()
    marked()
    assert call_here(mark).tasks == 0
