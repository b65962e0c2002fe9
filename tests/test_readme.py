"""The README's blocks run, in order, in one folder, and print what stands there."""

from __future__ import annotations

import doctest
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from ledgerbeam.io import storage
from tests.conftest import S3Server

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("docker/*.md")])
HOME = "/home/you"
"""Stands in the README for the folder in which its commands run."""

BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Command:
    """A line that a reader types, and what is printed below it."""

    text: str
    printed: str


def blocks(document: Path, language: str) -> list[str]:
    return [text for kind, text in BLOCK.findall(document.read_text()) if kind == language]


def commands(block: str) -> Iterator[Command]:
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        text, _, printed = part.partition("\n")
        yield Command(text, printed)


def comparable(text: str, folder: Path) -> list[str]:
    """Text without what differs from run to run: progress, the folder, figures, and the width of columns of them."""
    text = re.sub(r"^.* tasks/s, .*\n", "", text, flags=re.MULTILINE)
    text = text.replace(str(folder), HOME)
    text = re.sub(r"\b[0-9a-f]{12,}\b", "HASH", text)
    text = re.sub(r"\d+(?:[.,:-]\d+)*", "N", text)
    return [re.sub(r" +", " ", line).rstrip() for line in text.splitlines()]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "LEDGERBEAM_"))}
    return {**kept, "PATH": path, "PYTHONWARNINGS": "ignore", "LEDGERBEAM_CACHE": str(tmp_path / "cache")}


def type_in(command: Command, folder: Path, environment: dict[str, str]) -> None:
    done = subprocess.run(
        ["bash", "-c", command.text],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        check=False,
    )
    assert comparable(done.stdout, folder) == comparable(command.printed, folder), f"$ {command.text}\n{done.stdout}"


@pytest.mark.slow
@pytest.mark.s3
def test_every_block_of_the_readme_runs_and_prints_what_stands_there(
    s3: S3Server, tmp_path: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = 0
    for language, block in BLOCK.findall(README.read_text()):
        if language == "python":
            write_named_file(block, tmp_path)
        elif language == "pycon":
            run_doctest(block)
        elif language == "console":
            if "s3://" in block:
                environment |= s3.env
                fill_bucket(s3, "corpus", tmp_path / "texts")
            for command in commands(block):
                type_in(command, tmp_path, environment)
                run += 1
    assert run > 5


def write_named_file(block: str, folder: Path) -> None:
    """Saves a Python block under the name in its first line: `# cleaning.py`."""
    name = re.match(r"# (\w+\.py)\n", block)
    assert name, f"a Python block of the README does not begin with the name of its file:\n{block}"
    (folder / name[1]).write_text(block)


def run_doctest(block: str) -> None:
    test = doctest.DocTestParser().get_doctest(block, {}, "README.md", str(README), 0)
    runner = doctest.DocTestRunner(optionflags=doctest.FAIL_FAST)
    runner.run(test, out=sys.stderr.write)
    assert test.examples
    assert not runner.failures


def fill_bucket(s3: S3Server, bucket: str, folder: Path) -> None:
    fs = storage.filesystem("s3://", s3.options)
    if fs.exists(bucket):
        return  # by an earlier block
    fs.mkdir(bucket)
    for path in folder.glob("*.jsonl"):
        fs.pipe_file(f"{bucket}/{folder.name}/{path.name}", path.read_bytes())


def test_the_function_of_the_readme_stands_in_the_examples() -> None:
    (block,) = blocks(README, "python")
    body = block.partition("\n")[2].replace("def squeeze_spaces(record):", "")
    assert body.strip() in (ROOT / "examples" / "cleaning.py").read_text()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_documents_name_only_files_that_exist(document: Path) -> None:
    text = document.read_text()
    links = re.findall(r"\]\((?!https?:)([^)#]+)(?:#[\w-]+)?\)", text)
    missing = [link for link in links if not (document.parent / link).exists()]
    # `io/index.py` is short for what lies in the package.
    named = re.findall(r"`((?:\w+/)+\w+\.(?:py|md|sh))`", text)
    missing += [name for name in named if not (ROOT / name).exists() and not (ROOT / "ledgerbeam" / name).exists()]
    assert not missing


def test_the_command_line_page_names_every_option_and_command() -> None:
    text = (ROOT / "docs" / "command-line.md").read_text()
    code = (ROOT / "ledgerbeam" / "pipelines" / "arguments.py").read_text()
    options = set(re.findall(r'"(--[a-z][a-z-]+)"', code)) - {"--version"}
    assert len(options) > 15
    missing = sorted(option for option in options if option not in text)
    assert not missing, f"docs/command-line.md does not name {missing}"


def test_links_into_a_page_name_one_of_its_headings() -> None:
    for document in DOCUMENTS:
        for target, anchor in re.findall(r"\]\((?!https?:)([^)#]+)#([\w-]+)\)", document.read_text()):
            page = (document.parent / target).read_text()
            headings = [line.lstrip("# ") for line in page.splitlines() if line.startswith("#")]
            anchors = [re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings]
            assert anchor in anchors, f"{document.name} links to {target}#{anchor}"
