"""The pages of iterator graphs are complete."""

from __future__ import annotations

from tests.pages import ROOT

NAMES = ("iterators", "iterator-nodes", "iterator-shuffle", "training-loaders", "materialize", "write-a-node")


def test_the_pages_name_every_node_and_function() -> None:
    from ledgerbeam import iterators as graph

    text = "\n".join((ROOT / "docs" / f"{name}.md").read_text() for name in NAMES)
    helpers = {"State", "Token", "Permutation"}
    assert not [name for name in graph.__all__ if name not in text and name not in helpers]
