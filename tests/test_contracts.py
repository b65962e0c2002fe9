"""Every node, format, store and transform has its contract test: what is new without one fails here."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import apache_beam as beam
import pytest

import ledgerbeam.iterators
from ledgerbeam import transforms
from ledgerbeam.io.datasets.lit import CODECS
from ledgerbeam.io.formats import registry
from ledgerbeam.io.formats.registry import formats
from ledgerbeam.io.storage import urls
from ledgerbeam.iterators import IteratorNode
from tests.io.datasets.lit.test_codecs import VALUES
from tests.transforms.test_contract import TRANSFORMS

TESTS = Path(__file__).parent

STORES = {
    "file": "io/conftest.py: local",
    "memory": "io/conftest.py: memory",
    "s3": "io/conftest.py: s3",
    "gs": "io/conftest.py: gcs",
    "az": "io/conftest.py: azure",
    "abfs": "io/storage/test_urls.py: abfs",
    "http": "io/storage/test_web.py: http",
    "hf": "io/storage/test_hub.py: hf://",
}
"""Where the contract of each store is tested, and the word by which it is found there."""

SAME_CLIENT = {"https": "http", "abfss": "abfs"}  # schemes that only change how the client of another connects
NO_SERVER = {"adl", "oss", "oci"}
"""Stores that have no emulator to be tested on: the table says nothing of them that fsspec does not."""


@cache
def classes_of_tests() -> tuple[dict[str, set[str]], dict[str, set[str]]]:
    """Return the bases of all classes in tests, and all names that each class uses."""
    bases: dict[str, set[str]] = {}
    used: dict[str, set[str]] = {}
    for path in TESTS.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                bases.setdefault(node.name, set()).update(base.id for base in node.bases if isinstance(base, ast.Name))
                found = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
                used.setdefault(node.name, set()).update(found)
    return bases, used


def contract_classes(contract: str) -> dict[str, set[str]]:
    """Return the classes of tests that are derived from a contract, and all names that each of them uses."""
    bases, used = classes_of_tests()
    known = {contract}
    while more := {name for name, above in bases.items() if above & known} - known:
        known |= more
    return {name: used[name] for name in known - {contract} if name.startswith("Test")}


def used_in(*contracts: str) -> set[str]:
    return {name for contract in contracts for names in contract_classes(contract).values() for name in names}


def nodes() -> Iterator[str]:
    for info in pkgutil.walk_packages(ledgerbeam.iterators.__path__, "ledgerbeam.iterators."):
        for name, found in vars(importlib.import_module(info.name)).items():
            is_node = inspect.isclass(found) and issubclass(found, IteratorNode) and found.__module__ == info.name
            if is_node and not inspect.isabstract(found) and not name.startswith("_"):
                yield name


def test_every_node_keeps_the_contract() -> None:
    found = set(nodes())
    assert len(found) > 20
    assert found - used_in("NodeContract") == set()


def test_every_format_keeps_the_contract() -> None:
    missing = {
        name: type(kind).__name__
        for name, kind in formats().items()
        if name in registry._BUILT_IN and type(kind).__name__ not in used_in("FormatContract", "ColumnContract")
    }
    # Its records lie in two files, and an index of its own finds them: what it can do is a reader's.
    assert missing == {"megatron": "MegatronFormat"}
    assert "MegatronReader" in used_in("SequenceConformance")


@pytest.mark.parametrize("reader", ["JsonlFormat", "TarFormat", "SharReader", "LitDataset", "open_shards"])
def test_every_reader_keeps_the_contract(reader: str) -> None:
    assert reader in used_in("SequenceConformance")


def test_every_store_is_tested_or_said_not_to_be() -> None:
    assert set(urls._STORES) == set(STORES) | set(SAME_CLIENT) | NO_SERVER
    for scheme, alike in SAME_CLIENT.items():
        assert urls.store_named(scheme) == urls.store_named(alike)
    for place in STORES.values():
        path, word = place.split(": ")
        assert word in (TESTS / path).read_text(encoding="utf-8"), place


def test_every_transform_keeps_the_contract() -> None:
    exported = {name: getattr(transforms, name) for name in transforms.__all__}
    made = {name for name, found in exported.items() if inspect.isclass(found) and issubclass(found, beam.PTransform)}
    assert made == {type(transform).__name__ for transform in TRANSFORMS}


def test_every_codec_is_tested() -> None:
    assert set(CODECS) == set(VALUES)
