"""Pages of documentation print what stands on them, and name what is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ledgerbeam.io.storage import client
from tests.conftest import S3Server
from tests.pages import ROOT, blocks, environment, run_page

README = ROOT / "README.md"
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("docker/*.md")])
PAGES = {
    "compressed": 8,
    "formats": 3,
    "ledger": 10,
    "lit": 8,
    "megatron": 15,
    "restart": 3,
    "shar": 8,
    "tokenize": 7,
    "webdataset": 8,
}
"""Pages of which every block runs, and how many commands and examples they have more than."""


@pytest.mark.slow
@pytest.mark.parametrize("name", PAGES)
def test_every_block_runs_and_prints_what_stands_there(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_page(ROOT / "docs" / f"{name}.md", tmp_path, environment(tmp_path / "cache")) > PAGES[name]


@pytest.mark.slow
@pytest.mark.s3
def test_every_block_of_the_readme_runs_and_prints_what_stands_there(
    s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def fill_bucket(block: str) -> None:
        fs = client.filesystem("s3://", s3.options)
        if "s3://" in block and not fs.exists("corpus"):
            fs.mkdir("corpus")
            for path in Path("texts").glob("*.jsonl"):
                fs.pipe_file(f"corpus/texts/{path.name}", path.read_bytes())

    assert run_page(README, tmp_path, environment(tmp_path / "cache") | s3.env, fill_bucket) > 5


def test_the_function_of_the_readme_stands_in_the_examples() -> None:
    ((_, block),) = blocks(README, "python")
    body = block.partition("\n")[2].replace("def squeeze_spaces(record):", "")
    assert body.strip() in (ROOT / "examples" / "cleaning.py").read_text()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_documents_name_only_files_that_exist(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    links = re.findall(r"\]\((?!https?:)([^)#]+)(?:#[\w-]+)?\)", text)
    missing = [link for link in links if not (document.parent / link).exists()]
    # `io/index/file.py` is short for what lies in the package.
    named = re.findall(r"`((?:\w+/)+\w+\.(?:py|md|sh))`", text)
    missing += [name for name in named if not (ROOT / name).exists() and not (ROOT / "ledgerbeam" / name).exists()]
    assert not missing


def test_links_into_a_page_name_one_of_its_headings() -> None:
    for document in DOCUMENTS:
        for target, anchor in re.findall(r"\]\((?!https?:)([^)#]+)#([\w-]+)\)", document.read_text()):
            page = (document.parent / target).read_text()
            headings = [line.lstrip("# ") for line in page.splitlines() if line.startswith("#")]
            anchors = [re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings]
            assert anchor in anchors, f"{document.name} links to {target}#{anchor}"
