"""The Python blocks of docs/iterators.md run, in order, in one folder, and its node keeps the contract."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.pages import ROOT, blocks

PAGE = ROOT / "docs" / "iterators.md"


def test_the_blocks_of_the_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    module = ModuleType("page")
    monkeypatch.setitem(sys.modules, "page", module)
    found = blocks(PAGE, "python")
    assert len(found) > 6
    for _, block in found:
        exec(compile(block, str(PAGE), "exec"), module.__dict__)
    contract = module.__dict__["TestTag"]()
    tests = [name for name in dir(contract) if name.startswith("test_") and "another_process" not in name]
    assert len(tests) > 7
    for name in tests:
        getattr(contract, name)()


def test_the_page_names_every_node_and_function() -> None:
    from ledgerbeam import iterators as graph

    text = PAGE.read_text()
    helpers = {"State", "Token", "Permutation", "supports_graph_restore"}
    helpers |= {name for name in graph.__all__ if "graph_origin" in name or name == "normalize_graph_token"}
    assert not [name for name in graph.__all__ if name not in text and name not in helpers]
