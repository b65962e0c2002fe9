"""Pages of documentation, typed in as a reader would: what stands below a command is what it prints."""

from __future__ import annotations

import doctest
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["ROOT", "blocks", "environment", "run_page"]

ROOT = Path(__file__).resolve().parents[1]
HOME, HOST = "/home/you", "node7"
"""Stand on pages for the folder and the host on which their commands run."""

_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class _Command:
    """A line that a reader types, and what is printed below it."""

    text: str
    printed: str


def blocks(page: Path, language: str | None = None) -> list[tuple[str, str]]:
    """Return the blocks of a page, or those of a language: language and text."""
    found = _BLOCK.findall(page.read_text(encoding="utf-8"))
    return [(kind, text) for kind, text in found if language in (None, kind)]


def environment(cache: Path) -> dict[str, str]:
    """Return the environment of a reader who has installed the package, and nothing set."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "LEDGERBEAM_"))}
    return {**kept, "PATH": path, "PYTHONWARNINGS": "ignore", "LEDGERBEAM_CACHE": str(cache)}


def run_page(
    page: Path, folder: Path, env: Mapping[str, str], prepare: Callable[[str], None] = lambda block: None
) -> int:
    """Run the blocks of a page in order: saves files, types commands, and examples at one Python prompt.

    Args:
        page: Its blocks `python` and `toml` that begin with `# name.py` or `# name.toml` are files, those of `console`
            have commands behind `$`, those of `pycon` examples. Others are not run.
        folder: Where commands run. The Python prompt is in the working folder.
        env: Of the commands.
        prepare: Called with each block of commands before they are typed.

    Returns:
        How many commands and examples there were.

    Raises:
        AssertionError: Something else was printed than stands there.
    """
    names: dict[str, object] = {}
    ran = 0
    for language, block in blocks(page):
        if language in ("python", "toml"):
            _save(block, folder)
        elif language == "pycon":
            ran += _prompt(block, names, page)
        elif language == "console":
            prepare(block)
            for command in _commands(block):
                _type(command, folder, env)
                ran += 1
    return ran


def _save(block: str, folder: Path) -> None:
    name = re.match(r"# (\w+\.(?:py|toml))\n", block)
    if name:
        (folder / name[1]).write_text(block)


def _prompt(block: str, names: dict[str, object], page: Path) -> int:
    test = doctest.DocTestParser().get_doctest(block, names, page.name, str(page), 0)
    runner = doctest.DocTestRunner(optionflags=doctest.FAIL_FAST | doctest.ELLIPSIS)
    runner.run(test, out=sys.stderr.write, clear_globs=False)
    assert not runner.failures, f"{page.name}: an example prints something else than stands there:\n{block}"
    names.update(test.globs)
    return len(test.examples)


def _commands(block: str) -> Iterator[_Command]:
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        text, _, printed = part.partition("\n")
        yield _Command(text, printed.replace(HOST, os.uname().nodename))


def _type(command: _Command, folder: Path, env: Mapping[str, str]) -> None:
    done = subprocess.run(
        ["bash", "-c", command.text],
        cwd=folder,
        env=dict(env),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        check=False,
    )
    assert _comparable(done.stdout, folder) == _comparable(command.printed, folder), f"$ {command.text}\n{done.stdout}"


def _comparable(text: str, folder: Path) -> list[str]:
    """Text without what differs from run to run: progress, the folder, figures, what is counted by the second (of which
    there may be one), and the width of columns."""
    text = re.sub(r"^(listing|starting workers|indexing|working)\b.*\n", "", text, flags=re.MULTILINE)
    text = text.replace(str(folder), HOME)
    text = re.sub(r"\b[0-9a-f]{12,}\b", "HASH", text)
    text = re.sub(r"\b1 row\b", "1 rows", text)
    text = re.sub(r"\d+(?:[.,:-]\d+)*", "N", text)
    return [re.sub(r" +", " ", line).rstrip() for line in text.splitlines()]
