"""Places where user code raised, in the same words on every host."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

from ledgerbeam.user_code.guards import raised_at

CODE = "def fall():\n    raise ValueError('down')\n"


@pytest.mark.parametrize(
    ("module", "path"),
    [
        ("stumbling", "stumbling.py"),
        ("stumbled.over", "stumbled/over.py"),
        ("stumbled.deep.over", "stumbled/deep/over.py"),
        ("stumbled.deep", "stumbled/deep/__init__.py"),
    ],
)
def test_the_folder_of_an_installation_is_no_part_of_a_place(
    module: str, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / path
    for folder in file.relative_to(tmp_path).parents[:-1]:
        (tmp_path / folder).mkdir(exist_ok=True, parents=True)
        (tmp_path / folder / "__init__.py").touch()
    file.write_text(CODE)
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.startswith("stumbl")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(ValueError, match="down") as caught:
        importlib.import_module(module).fall()
    assert raised_at(caught.value) == f"{path}:2"


def test_what_was_never_raised_has_no_place() -> None:
    assert raised_at(ValueError("down")) == ""


def test_the_place_is_that_of_the_innermost_call() -> None:
    names: dict[str, Any] = {"__name__": "deep.down"}
    source = "def first(): second()\ndef second(): third()\ndef third(): raise ValueError\nfirst()\n"
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - it has no message
        exec(compile(source, "/a/b/deep/down.py", "exec"), names)
    assert raised_at(caught.value) == "deep/down.py:3"


@pytest.mark.parametrize("names", [{}, {"__name__": 5}, {"__name__": None}])
def test_of_code_without_a_module_the_file_alone_is_told(names: dict[str, Any]) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - it has no message
        exec(compile("raise ValueError", "/a/b/cell.py", "exec"), dict(names))
    assert raised_at(caught.value) == "cell.py:1"
