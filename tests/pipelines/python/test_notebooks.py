"""What a notebook shows of a result and of a ledger: few facts, escaped and without secrets."""

from __future__ import annotations

import json
from pathlib import Path

from ledgerbeam import open_ledger
from ledgerbeam.ledger.lmdb.store import LmdbStore
from ledgerbeam.ledger.model.accounts import RecordCounts
from ledgerbeam.pipelines.calls.result import Result
from ledgerbeam.pipelines.report.ledger import Ledger


def test_a_result_is_shown_escaped_and_without_secrets() -> None:
    shown = Result(
        "convert",
        sources=2,
        records=RecordCounts(5, 4, {"empty": 1}, {}, {"": 4}),
        complete=False,
        ledger="s3://user:pass-word@bucket/ledger",
        output="/data/<script>alert(1)</script>\udcff\x1b[31m",
    )._repr_html_()
    assert "not complete, 2 sources, 0 tasks, 5 records read, 4 written" in shown
    assert "<script>" not in shown
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in shown
    assert "pass-word" not in shown
    assert "\x1b" not in shown
    assert json.loads(json.dumps(shown).encode()) == shown


def test_a_result_of_a_long_name_stays_small() -> None:
    assert len(Result("convert", output="/" + "x" * 100_000)._repr_html_()) < 2_000


def test_a_ledger_is_shown_with_its_counts(tmp_path: Path) -> None:
    url = str(tmp_path / "<b>ledger")
    made = LmdbStore(url)
    made.open(create=True)
    made.close()
    shown = open_ledger(url)._repr_html_()
    for text in ("0 complete, 0 open, 0 failed", "0 read, 0 kept, 0 dropped, 0 rejected", "&lt;b&gt;ledger"):
        assert text in shown
    assert "<b>" not in shown


def test_a_ledger_that_cannot_be_read_is_shown_with_its_error(tmp_path: Path) -> None:
    store = LmdbStore(str(tmp_path / "ledger"))
    shown = Ledger(store)._repr_html_()
    assert "error" in shown
