"""Hostile and damaged ledgers; the long forms are `python -m tests.fault.fuzz`, `hostile_rows` and `damage`."""

from __future__ import annotations

import contextlib
import random
import tracemalloc
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from unittest import mock

import pytest

from ledgerbeam.errors import LedgerDamagedError, NonDeterministicTaskError, UnsupportedShapeError
from ledgerbeam.ledger.lmdb.store import LmdbStore
from ledgerbeam.ledger.lmdb.tables import (
    CUTOFFS,
    FOLDED,
    OUTPUTS,
    PENDING,
    SOURCES,
    TABLES,
    Row,
    StoredTable,
    Transaction,
)
from ledgerbeam.ledger.model.values import encode
from ledgerbeam.ledger.remote import apply as sidecar
from ledgerbeam.ledger.remote.segment import Segment, decode_segment, encode_segment, seal
from ledgerbeam.pipelines.jobs.one_stage import IndexJob
from ledgerbeam.pipelines.jobs.sources import ListedFiles
from ledgerbeam.pipelines.outputs.recorded import remove_superseded
from tests.cases import each
from tests.fault.damage import campaign
from tests.fault.fuzz import fuzz
from tests.fault.hostile_rows import all_rows, fuzz_rows, make
from tests.ledger.builders import leaf_of, leaves_of_split, plain
from tests.ledger.stores import picture


def test_hostile_objects_give_typed_errors_and_leave_the_sidecar_consistent(tmp_path: Path) -> None:
    counts = fuzz(8000, 0, tmp_path, 0.2)
    assert counts["folded"] > 100
    assert counts["refused"] > 1000


def test_memory_is_in_proportion_to_the_object() -> None:
    lineage = [[0, 2**62]] * 2000
    leaf = ["00" * 16, lineage, "published", 1, 1, 0.0, []]
    data = seal(f'{{"number": 1, "at": 1.0, "leaves": [{leaf}]}}'.replace("'", '"').encode())
    tracemalloc.start()
    decode_segment(data, "hostile")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 40 * len(data) + 100_000


def test_rows_that_do_not_read_are_damage(tmp_path: Path) -> None:
    choice = random.Random(1)
    for number in range(60):
        store = LmdbStore(str(tmp_path / str(number)))
        store.open(create=True)
        sources = [plain(name) for name in "abc"]
        store.register(sources)
        store.commit([leaf_of(sources[0]), leaves_of_split(sources[1], 2)[0]])
        table = choice.choice([SOURCES, OUTPUTS, PENDING])

        store._open().write(partial(_spoil, table, choice))
        for look in (partial(picture, store), partial(store.commit, [leaf_of(source) for source in sources])):
            with contextlib.suppress(LedgerDamagedError, NonDeterministicTaskError):
                look()
        store.close()


def _spoil(table: str, choice: random.Random, txn: Transaction) -> None:
    key, row = choice.choice(txn.scan(table, b""))
    txn.put(table, key, choice.choice([b"", b"{}", row[:-3], choice.randbytes(len(row))]))


def test_a_superseded_index_elsewhere_is_not_deleted(tmp_path: Path) -> None:
    outside, inside = tmp_path / "outside.idx", tmp_path / "in" / "old.jsonl.idx"
    inside.parent.mkdir()
    for path in (outside, inside):
        path.write_bytes(b"precious")
    state = {"superseded": [["00" * 16, str(outside), 1], ["00" * 16, str(inside), 1]]}
    segment = decode_segment(encode_segment(Segment(1, 1.0, state=state)), "hostile")
    store = LmdbStore(str(tmp_path / "ledger"))
    store.open(create=True)
    store._open().write(lambda txn: sidecar.fold_segment(txn, "segments/x", segment))
    assert set(store.stale_outputs()) == {str(outside), str(inside)}
    spec = IndexJob(files=ListedFiles(patterns=(f"{tmp_path}/in/*.jsonl",)), ledger=str(tmp_path / "ledger"))
    remove_superseded(spec, store)
    assert (outside.exists(), inside.exists()) == (True, False)
    store.close()


@each("name", ["../x", "a/../../x", "a\0b", "..", ""])
def test_names_that_lead_elsewhere_are_damage(name: str) -> None:
    with pytest.raises(UnsupportedShapeError, match="name of an output"):
        Segment(1, 1.0, dropped=[name])
    data = seal(encode({"number": 1, "at": 1.0, "dropped": [name]}))
    with pytest.raises(LedgerDamagedError, match="name of an output"):
        decode_segment(data, "hostile")


DAMAGES = 70


@pytest.mark.slow
def test_no_damage_of_a_ledger_makes_a_run_end_well_with_other_outputs() -> None:
    found = campaign(DAMAGES, 7)
    assert not found.findings
    assert found.counts["right"] > DAMAGES // 10
    assert found.counts["refused"] > DAMAGES // 4


@pytest.mark.slow
def test_a_ledger_without_checksums_is_noticed() -> None:
    def rows(self: StoredTable, found: Sequence[Row]) -> list[Row]:
        return [(key, summed[:-4]) for key, summed in found]

    unchecked = mock.patch.multiple(StoredTable, rows=rows, value=lambda self, key, summed: summed[:-4])
    with unchecked, mock.patch.object(Transaction, "require_all"):
        found = campaign(90, 2)
    assert found.counts["wrong"] + found.counts["miscounted"]


LEDGERS = 150


def test_the_ledger_has_rows_in_every_table(tmp_path: Path) -> None:
    make(tmp_path / "whole")
    assert {table for table, _, _ in all_rows(tmp_path / "whole")} == {*TABLES} - {CUTOFFS, FOLDED}


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_hostile_rows_are_refused_by_typed_errors_only(tmp_path: Path, seed: int) -> None:
    counts = fuzz_rows(LEDGERS, seed, tmp_path)
    assert counts["refused"] > LEDGERS
    assert counts["did"] > 10 * LEDGERS
