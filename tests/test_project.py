"""Files of the repository agree, and `make setup` survives interrupts and dropped downloads."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

import ledgerbeam
from tests.pages import ROOT

PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())


def targets() -> list[str]:
    return re.findall(r"^([a-z]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE)


def workflow() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    return loaded


def commands(jobs: dict[str, Any]) -> list[str]:
    return [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]


def test_python_versions_are_the_same_everywhere() -> None:
    prefix = "Programming Language :: Python :: "
    versions = [name.removeprefix(prefix) for name in PROJECT["project"]["classifiers"] if name.startswith(prefix)]
    first, last = versions[0], versions[-1]
    major, minor = map(int, last.split("."))
    assert PROJECT["project"]["requires-python"] == f">={first},<{major}.{minor + 1}"
    assert workflow()["jobs"]["python"]["strategy"]["matrix"]["python"] == versions
    for page in ("README.md", "CONTRIBUTING.md"):
        assert f"Python {first} to {last}" in (ROOT / page).read_text(), page
    assert PROJECT["tool"]["mypy"]["python_version"] == first
    assert PROJECT["tool"]["ruff"]["target-version"] == "py" + first.replace(".", "")


def test_contributing_tells_of_every_target() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    assert len(targets()) > 15
    assert [target for target in targets() if f"`make {target}" not in text] == []


def test_hosted_ci_runs_what_a_change_must_pass_and_nothing_that_is_not_there() -> None:
    run = commands(workflow()["jobs"])
    assert ".ci/run" in run
    made = [command.removeprefix("make ") for command in run if command.startswith("make ")]
    assert set(made) <= set(targets())
    steps = re.findall(r"^ *step [\w-]+ (?:make (\w+)|(\S+))", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)
    assert steps
    assert {target for target, _ in steps if target} <= set(targets())
    assert [script for _, script in steps if script and not (ROOT / script).exists()] == []


def test_hooks_run_tools_that_make_setup_installs() -> None:
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    hooks = [hook for repo in config["repos"] for hook in repo["hooks"]]
    assert {"ruff", "ruff-format", "mypy", "end-of-file"} <= {hook["id"] for hook in hooks}
    assert all(hook["entry"].startswith(".venv/bin/") and hook["language"] == "system" for hook in hooks)
    brings = {"end-of-file-fixer": "pre-commit-hooks", "trailing-whitespace-fixer": "pre-commit-hooks"}
    names = {re.split(r"[=<>\[]", need)[0] for need in PROJECT["project"]["optional-dependencies"]["dev"]}
    tools = {hook["entry"].split()[0].removeprefix(".venv/bin/") for hook in hooks}
    assert {brings.get(tool, tool) for tool in tools} <= names


def test_the_citation_is_of_this_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == ledgerbeam.__version__
    assert citation["license"] == PROJECT["project"]["license"]
    assert citation["repository-code"] == PROJECT["project"]["urls"]["Source"]


@pytest.mark.parametrize("name", ["bug", "idea"])
def test_issue_templates_ask_for_something(name: str) -> None:
    form = yaml.safe_load((ROOT / ".github" / "ISSUE_TEMPLATE" / f"{name}.yml").read_text())
    fields = [field for field in form["body"] if field["type"] != "markdown"]
    assert [field["id"] for field in fields if field.get("validations", {}).get("required")]


@pytest.mark.skipif(shutil.which("git") is None, reason="no git")
def test_files_end_with_one_newline() -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False).stdout
    names = [name for name in listed.split("\0") if name.endswith((".py", ".md", ".yml", ".yaml", ".toml", ".sh"))]
    wrong = [name for name in names if (content := _content(name)) and not re.search(rb"[^\n]\n\Z", content)]
    assert not wrong, (
        f"expected one newline at the end, found none or several: {wrong}; .pre-commit-config.yaml mends it"
    )


def _content(name: str) -> bytes:
    path = ROOT / name
    return path.read_bytes() if path.exists() and not name.startswith("tests/golden/") else b""


PYTHON = """#!/bin/bash
# Stands in for Python: makes an environment, and installs as the files beside the Makefile say.
if [[ "$1 $2" == "-m venv" ]]; then mkdir -p "$3/bin" && cp "$0" "$3/bin/python"; exit; fi
echo "$@" >> calls
if [[ "$*" == *editable* ]]; then
  if [ -e drops ]; then rm drops; exit 1; fi
  if [ -e broken ]; then exit 1; fi
  if [ -e waits ]; then touch .venv/half; sleep 600; fi
fi
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copy(ROOT / "Makefile", tmp_path)
    for name in ("pyproject.toml", "setup.py", "ledgerbeam/io/_native.c"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "python").write_text(PYTHON)
    (tmp_path / "python").chmod(0o755)
    return tmp_path


def make(folder: Path, target: str = "setup") -> subprocess.CompletedProcess[str]:
    command = ["make", target, "PYTHON=./python"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_set_up_that_was_interrupted_starts_anew(folder: Path, number: signal.Signals) -> None:
    (folder / "waits").touch()
    with subprocess.Popen(
        ["env", "--default-signal=INT", "make", "setup", "PYTHON=./python"], cwd=folder, start_new_session=True
    ) as process:
        while not (folder / ".venv/half").exists():
            assert process.poll() is None
            time.sleep(0.01)
        while process.poll() is None:  # a signal between two commands of a shell can be lost
            os.killpg(process.pid, number)
            time.sleep(0.1)
    (folder / "waits").unlink()
    assert make(folder).returncode == 0
    assert not (folder / ".venv/half").exists()
    calls = (folder / "calls").read_text()
    assert make(folder).returncode == 0
    assert (folder / "calls").read_text() == calls, "a second call does nothing"


@pytest.mark.slow
def test_a_dropped_download_is_tried_again_and_told_if_it_stays_away(folder: Path) -> None:
    (folder / "drops").touch()
    assert make(folder).returncode == 0
    (folder / "broken").touch()
    os.utime(folder / ".venv/.ready", (1, 1))  # older than pyproject.toml
    failed = make(folder)
    assert failed.returncode != 0
    assert "run the same command again" in failed.stderr
    (folder / "broken").unlink()
    assert make(folder).returncode == 0
