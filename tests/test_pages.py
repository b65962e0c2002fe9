"""Pages of documentation print what stands on them, and name what is there."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from ledgerbeam.io.storage import client
from tests.conftest import S3Server
from tests.pages import ROOT, blocks, environment, run_page

README = ROOT / "README.md"
DOCUMENTS = sorted(
    [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("docker/*.md"), *ROOT.glob(".github/**/*.md")]
)
PAGES = {
    "compressed": 8,
    "exchanges": 23,
    "flows": 10,
    "formats": 3,
    "functions": 12,
    "how-to/feed-training": 4,
    "how-to/restart-a-job": 6,
    "how-to/tokenize-for-megatron": 10,
    "how-to/webdataset-and-shar": 14,
    "ledger": 10,
    "lit": 8,
    "megatron": 15,
    "migration/beam": 5,
    "migration/datatrove": 5,
    "migration/lhotse": 12,
    "migration/nemo-curator": 3,
    "own-pipeline": 5,
    "parquet": 16,
    "python": 18,
    "rejects": 7,
    "restart": 3,
    "shar": 8,
    "statistics": 6,
    "tokenize": 7,
    "tutorials/first-job": 15,
    "tutorials/own-node": 14,
    "tutorials/own-transform": 4,
    "webdataset": 8,
}
"""Pages of which every block runs, and how many commands and examples they have more than."""


@pytest.mark.slow
@pytest.mark.parametrize("name", PAGES)
def test_every_block_runs_and_prints_what_stands_there(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))  # examples import the files of their page
    assert run_page(ROOT / "docs" / f"{name}.md", tmp_path, environment(tmp_path / "cache")) > PAGES[name]


@pytest.mark.slow
@pytest.mark.s3
@pytest.mark.parametrize(("page", "commands"), [(README, 5), (ROOT / "docs" / "how-to" / "index-a-bucket.md", 3)])
def test_every_block_of_a_page_with_a_bucket_runs_and_prints_what_stands_there(
    page: Path, commands: int, s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    fs = client.filesystem("s3://", s3.options)

    def fill_bucket(block: str) -> None:
        if "s3://" in block and not fs.exists("corpus"):
            fs.mkdir("corpus")
            for path in Path("texts").glob("*.jsonl"):
                fs.pipe_file(f"corpus/texts/{path.name}", path.read_bytes())

    if page != README:
        write_texts(Path("texts"))
    try:
        assert run_page(page, tmp_path, environment(tmp_path / "cache") | s3.env, fill_bucket) > commands
    finally:
        if fs.exists("corpus"):
            fs.rm("corpus", recursive=True)


def write_texts(folder: Path) -> None:
    """Write what the bucket of docs/how-to/index-a-bucket.md holds."""
    folder.mkdir()
    for name, first in (("a", 1), ("b", 4001)):
        lines = [f'{{"id": {number}, "text": " Line  {number}"}}\n' for number in range(first, first + 4000)]
        (folder / f"{name}.jsonl").write_text("".join(lines))


def test_the_function_of_the_readme_stands_in_the_examples() -> None:
    ((_, block),) = blocks(README, "python")
    body = block.partition("\n")[2].replace("def squeeze_spaces(record):", "")
    assert body.strip() in (ROOT / "examples" / "cleaning.py").read_text()


def read(document: Path) -> str:
    """Return a page, with links to the repository's own site as links to files."""
    to_root = os.path.relpath(ROOT, document.parent)
    own = r"https://(?:github|raw\.githubusercontent)\.com/ledgerbeam/ledgerbeam/(?:(?:blob|tree)/)?main"
    text = re.sub(r"^\[[\w-]+\]: (\S+)$", r"[](\1)", document.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return re.sub(own, to_root, text)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_documents_name_only_files_that_exist(document: Path) -> None:
    text = read(document)
    links = re.findall(r"\]\((?!https?:)([^)#]+)(?:#[\w-]+)?\)", text)
    missing = [link for link in links if not (document.parent / link).exists()]
    # `io/index/file.py` is short for what lies in the package.
    named = re.findall(r"`((?:\w+/)+\w+\.(?:py|md|sh))`", text)
    missing += [name for name in named if not (ROOT / name).exists() and not (ROOT / "ledgerbeam" / name).exists()]
    assert not missing


def test_links_into_a_page_name_one_of_its_headings() -> None:
    for document in DOCUMENTS:
        for target, anchor in re.findall(r"\]\((?!https?:)([^)#]+)#([\w-]+)\)", read(document)):
            page = (document.parent / target).read_text()
            headings = [line.lstrip("# ") for line in page.splitlines() if line.startswith("#")]
            anchors = [re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings]
            assert anchor in anchors, f"{document.name} links to {target}#{anchor}"
