"""Extensions that the core finds by name."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from typing import Any

import pytest

from ledgerbeam._base.extensions import BUILT_IN, extension_names, load_extension


def test_every_built_in_reference_can_be_loaded() -> None:
    for group, names in BUILT_IN.items():
        for name in names:
            assert callable(load_extension(group, name))


def test_entry_points_of_other_packages_join_the_built_in_names(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [EntryPoint("late", "os.path:join", "a"), EntryPoint("shar", "os.path:split", "a")]

    def entry_points(**wanted: Any) -> list[EntryPoint]:
        return points if wanted == {"group": "ledgerbeam.folders"} else []

    monkeypatch.setattr("importlib.metadata.entry_points", entry_points)
    assert extension_names("ledgerbeam.folders") == [*BUILT_IN["ledgerbeam.folders"], "late"]
    assert load_extension("ledgerbeam.folders", "late").__name__ == "join"
    assert load_extension("ledgerbeam.folders", "shar").__name__ == "SharFolder"
    with pytest.raises(LookupError, match="install the package"):
        load_extension("ledgerbeam.conversions", "late")
