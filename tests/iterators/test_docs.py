"""The page of iterators is complete."""

from __future__ import annotations

from tests.pages import ROOT

PAGE = ROOT / "docs" / "iterators.md"


def test_the_page_names_every_node_and_function() -> None:
    from ledgerbeam import iterators as graph

    text = PAGE.read_text()
    helpers = {"State", "Token", "Permutation", "supports_graph_restore"}
    helpers |= {name for name in graph.__all__ if "graph_origin" in name or name == "normalize_graph_token"}
    assert not [name for name in graph.__all__ if name not in text and name not in helpers]
