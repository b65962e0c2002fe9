"""Programs in Python that call for jobs, each in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Mapping
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

    def run(self, text: str, *, name: str = "program.py", env: Mapping[str, str] | None = None) -> Ran:
        done = subprocess.run(
            self.command(text, name),
            cwd=self.workspace.root,
            env={**self.workspace.env, "PYTHONPATH": os.getcwd(), **(env or {})},
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        return Ran(done.returncode, done.stdout, done.stderr)

    def rows(self, text: str, **more: Any) -> list[Any]:
        ran = self.run(text, **more)
        assert ran.status == 0, ran.err
        return [json.loads(line) for line in ran.out.splitlines()]


@pytest.fixture
def programs(workspace: Workspace) -> Programs:
    return Programs(workspace)
