"""The page's matrix names every test of a change, and no other."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tests.servers import pins

PAGE = Path(pins.ROOT) / "docs" / "tested-changes.md"


def _tests() -> set[str]:
    found: set[str] = set()
    for path in Path(__file__).parent.glob("test_*.py"):
        if path.name != Path(__file__).name:
            nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            found.update(node.name for node in nodes if isinstance(node, ast.FunctionDef))
    return {name for name in found if name.startswith("test_")}


def test_each_change_is_in_the_matrix() -> None:
    section = PAGE.read_text(encoding="utf-8").partition("## Changes of one job")[2].partition("\n## ")[0]
    assert set(re.findall(r"`(test_\w+)`", section)) == _tests()
