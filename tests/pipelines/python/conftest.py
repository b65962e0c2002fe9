"""Programs in Python that call for jobs, each in a process of its own."""

from __future__ import annotations

import json
import os
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.pipelines.conftest import Ran, Workspace

HEAD = """
import json, sys
import ledgerbeam as lb

def show(**values):
    print(json.dumps(values, default=str), file=sys.__stdout__, flush=True)

"""


@dataclass(frozen=True)
class Programs:
    """Runs programs in a workspace; `show(name=value, ...)` in them makes a row."""

    workspace: Workspace

    def write(self, text: str, name: str = "program.py") -> Path:
        path = self.workspace.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(HEAD + textwrap.dedent(text))
        return path

    def command(self, text: str, name: str = "program.py") -> list[str]:
        return [sys.executable, str(self.write(text, name))]

    def run(self, text: str, *, name: str = "program.py", **how: Any) -> Ran:
        env = {"PYTHONPATH": os.getcwd()}
        return self.workspace.call(*self.command(text, name), env=env, timeout=240, **how)

    def rows(self, text: str, **more: Any) -> list[Any]:
        return [json.loads(line) for line in self.run(text, **more, status=0).out.splitlines()]


@pytest.fixture
def programs(workspace: Workspace) -> Programs:
    return Programs(workspace)
