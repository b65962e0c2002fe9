"""Extensions that the core finds by name, and install commands in messages."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

import ledgerbeam
from ledgerbeam._base.extensions import BUILT_IN, extension_names, install_command, load_extension

ROOT = Path(ledgerbeam.__file__).parent
CALL = re.compile(r"install_command\(\W*(\w+)|import_extra\([^,()]+,\s*\"(\w+)\"|extra=\"(\w+)\"")


def command(folder: Path, origin: dict[str, object] | None, *, installed: bool = True) -> list[str]:
    """Return the command of a copy of the module that is installed in a folder."""
    (folder / "ledgerbeam" / "_base").mkdir(parents=True)
    (folder / "ledgerbeam" / "_base" / "extensions.py").write_text((ROOT / "_base" / "extensions.py").read_text())
    if installed:
        noted = folder / "ledgerbeam-1.0.dist-info"
        noted.mkdir()
        (noted / "METADATA").write_text("Metadata-Version: 2.1\nName: ledgerbeam\nVersion: 1.0\n")
        if origin is not None:
            (noted / "direct_url.json").write_text(json.dumps(origin))
    program = "import sys; sys.path[:1] = [sys.argv[1]]; from extensions import install_command as c; print(c('torch'))"
    if not installed:  # hide the environment of this test
        program = program.replace("; from", "; import importlib.metadata as m; m.distribution = missing; from")
        program = f"def missing(name):\n    raise m.PackageNotFoundError\n{program}"
    env = {**os.environ, "PYTHONPATH": str(folder)}
    words = [sys.executable, "-c", program, str(folder / "ledgerbeam" / "_base")]
    return shlex.split(subprocess.run(words, env=env, capture_output=True, text=True, check=True).stdout)


@pytest.mark.parametrize(
    ("origin", "words"),
    [
        (None, ["ledgerbeam[torch]"]),
        ({"url": "file:///src/my%20code", "dir_info": {"editable": True}}, ["-e", "/src/my code[torch]"]),
        ({"url": "file:///src/code", "dir_info": {}}, ["/src/code[torch]"]),
        (
            {"url": "file:///dist/ledgerbeam-1.0-py3-none-any.whl", "archive_info": {}},
            ["ledgerbeam[torch] @ file:///dist/ledgerbeam-1.0-py3-none-any.whl"],
        ),
        (
            {"url": "https://host/lb.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}},
            ["ledgerbeam[torch] @ git+https://host/lb.git@abc"],
        ),
    ],
)
def test_an_extra_is_installed_from_where_ledgerbeam_came(
    tmp_path: Path, origin: dict[str, object] | None, words: list[str]
) -> None:
    assert command(tmp_path, origin) == ["pip", "install", *words]


def test_a_checkout_that_is_not_installed_is_installed_from_its_folder(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").touch()
    assert command(tmp_path, None, installed=False) == ["pip", "install", "-e", f"{tmp_path}[torch]"]


def test_the_command_is_one_that_pip_takes() -> None:
    words = shlex.split(install_command("metrics"))
    asked = [sys.executable, "-m", *words, "--dry-run", "--no-deps", "--no-build-isolation", "--no-index", "--quiet"]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_message_asks_for_an_extra_that_there_is() -> None:
    named: set[str] = set()
    for path in ROOT.rglob("*.py"):
        text = path.read_text()
        assert not re.search(r"^(?!.*Needs).*pip install '?ledgerbeam\[", text, re.MULTILINE), path
        if path.name != "extensions.py":
            named |= {"".join(found) for found in CALL.findall(text)}
    named -= {"store"}  # a variable in the table of stores
    project = tomllib.loads((ROOT.parent / "pyproject.toml").read_text())["project"]
    assert named <= set(project["optional-dependencies"])
    assert len(named) > 15


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
