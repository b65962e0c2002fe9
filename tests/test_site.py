"""The site of the documentation: places of pages, references of public names, and notebooks, whose cells run."""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nbclient
import nbformat
import pytest
import yaml  # type: ignore[import-untyped]

import ledgerbeam
from ledgerbeam.pipelines.calls import MODULES
from tests.cases import each
from tests.pages import ROOT, environment

on_page_markdown = importlib.import_module("scripts.site_links").on_page_markdown
DOCS = ROOT / "docs"
REPOSITORY = "https://github.com/ledgerbeam/ledgerbeam"


class _Loader(yaml.SafeLoader):
    """Reads mkdocs.yml, in which `!!python/name` names functions of the theme."""


_Loader.add_multi_constructor("tag:yaml.org,2002:python/name:", lambda loader, suffix, node: suffix)


def settings() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.load((ROOT / "mkdocs.yml").read_text(), Loader=_Loader)
    return loaded


def pages_of(nav: Any) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    return [page for part in (nav.values() if isinstance(nav, dict) else nav) for page in pages_of(part)]


def documented() -> list[str]:
    """Return the modules of which a page of docs/api/ shows the names."""
    text = "\n".join(page.read_text() for page in (DOCS / "api").glob("*.md"))
    return re.findall(r"^::: ([\w.]+)$", text, re.MULTILINE)


def public_packages() -> list[str]:
    """Packages that export names, but for commands and jobs, which the command line is the door to."""
    packages = [ledgerbeam.__name__]
    for found in pkgutil.walk_packages(ledgerbeam.__path__, "ledgerbeam."):
        if found.ispkg and not found.name.startswith("ledgerbeam.pipelines"):
            text = (ROOT / found.name.replace(".", "/") / "__init__.py").read_text()
            packages += [found.name] if "__all__" in text else []
    return packages


def test_every_page_has_one_place_in_the_navigation() -> None:
    placed = pages_of(settings()["nav"])
    pages = [*DOCS.rglob("*.md"), *DOCS.rglob("*.ipynb")]
    assert sorted(placed) == sorted(page.relative_to(DOCS).as_posix() for page in pages)


def test_search_and_links_work_in_files_without_another_host() -> None:
    site = settings()
    assert "offline" in site["plugins"]
    polyfills = site["extra"]["polyfills"]
    assert [path for path in polyfills if "iframe-worker" in path]  # else the plugin takes one from another host
    assert all((DOCS / path).is_file() for path in polyfills)


def test_every_package_that_exports_names_has_a_reference() -> None:
    packages = public_packages()
    assert len(packages) > 5
    missing = sorted(set(packages) - set(documented()))
    assert not missing, f"add `::: PACKAGE` for {missing} to a page below docs/api/"


def test_the_reference_of_the_library_lists_every_name_that_it_exports() -> None:
    table = (DOCS / "api" / "ledgerbeam.md").read_text().partition("\n:::")[0]
    assert sorted(set(ledgerbeam.__all__) - set(re.findall(r"`(\w+)`", table))) == ["__version__"]


def test_every_call_is_listed_with_the_calls_and_has_a_reference() -> None:
    flows = {"plan_flow", "run_flow"}
    listed = (DOCS / "python.md").read_text().partition("## The calls")[2].partition("\n\nIn place of")[0]
    assert set(re.findall(r"`(\w+)`", listed)) - {"Flow"} == {*MODULES, *flows}
    reference = (DOCS / "api" / "ledgerbeam.md").read_text()
    for call in MODULES:
        assert re.search(rf"^::: ledgerbeam.pipelines.calls.{MODULES[call]}\n.*\n.*\b{call}\b", reference, re.MULTILINE)
    assert all(name in reference for name in flows)


def test_the_reference_of_a_call_comes_from_the_table_of_options() -> None:
    assert "scripts/site_calls.py" in str(settings()["plugins"])
    from ledgerbeam.pipelines.calls.call import spec_of

    assert [name for name in MODULES if "Args:" not in spec_of(name).reference("Text.")] == []


@each("name", [name for name in documented() if "torch" not in name])
def test_references_are_of_modules_with_docstrings_and_existing_names(name: str) -> None:
    module = importlib.import_module(name)
    assert module.__doc__
    assert [exported for exported in getattr(module, "__all__", ()) if not hasattr(module, exported)] == []


@each(
    ("link", "expected"),
    [
        ("../README.md", f"{REPOSITORY}/blob/main/README.md"),
        ("../examples", f"{REPOSITORY}/tree/main/examples"),
        ("../docker/README.md#top", f"{REPOSITORY}/blob/main/docker/README.md#top"),
        ("restart.md#what-a-crash-costs", "restart.md#what-a-crash-costs"),
        ("../no-such-file.md", "../no-such-file.md"),
        ("https://example.org/../x", "https://example.org/../x"),
        ("#here", "#here"),
    ],
)
def test_links_out_of_the_pages_lead_to_the_repository(link: str, expected: str) -> None:
    assert on_index(f"See [it]({link}).") == f"See [it]({expected})."


def test_bars_in_code_within_tables_lose_their_backslash() -> None:
    text = "`a\\|b`\n\n| option | |\n|---|---|\n| `--to jsonl\\|tar` | one \\| other |\n"
    assert on_index(text) == text.replace("jsonl\\|tar", "jsonl|tar")


def on_index(text: str) -> str:
    page = SimpleNamespace(file=SimpleNamespace(abs_src_path=os.fspath(DOCS / "index.md")))
    config = {"config_file_path": os.fspath(ROOT / "mkdocs.yml"), "docs_dir": os.fspath(DOCS)}
    config["repo_url"] = settings()["repo_url"]
    found: str = on_page_markdown(text, page=page, config=config, files=None)
    return found


site_notebooks = importlib.import_module("scripts.site_notebooks")
NOTEBOOKS = sorted(ROOT.glob("docs/**/*.ipynb"))


def outputs(notebook: Any) -> dict[str, list[Any]]:
    """Return what each cell of code has printed, by its first line."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return {
        cell.source.partition("\n")[0]: [output.get("text") or output.get("data") for output in cell.outputs]
        for cell in cells
    }


def execute(notebook: Any, folder: Path) -> None:
    client = nbclient.NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(folder)}})
    client.execute(env=environment(folder / "cache") | {"PYTHONPATH": str(ROOT), "IPYTHONDIR": str(folder / "ipython")})


def test_there_is_one() -> None:
    assert [path.name for path in NOTEBOOKS] == ["training.ipynb"]


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_cell_runs_and_prints_what_stands_there(path: Path, tmp_path: Path) -> None:
    stored, executed = nbformat.read(path, as_version=4), nbformat.read(path, as_version=4)
    for cell in executed.cells:
        if cell.cell_type == "code":
            cell.outputs = []
    execute(executed, tmp_path)
    assert outputs(executed) == outputs(stored)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_is_stored_without_anything_of_the_machine(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert [cell.id for cell in notebook.cells] == [f"cell-{number:02}" for number in range(len(notebook.cells))]
    assert all(not cell.metadata for cell in notebook.cells)
    numbers = [cell.execution_count for cell in notebook.cells if cell.cell_type == "code"]
    assert numbers == list(range(1, len(numbers) + 1)), "run all cells in their order, then save"
    assert set(notebook.metadata) == {"kernelspec", "language_info"}
    assert notebook.metadata.language_info == {"name": "python"}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_its_links_lead_to_files(path: Path) -> None:
    text = site_notebooks.as_markdown(path.read_text(encoding="utf-8"))
    links = re.findall(r"\]\((?!https?:)([^)#]+)\)", text)
    assert links
    assert [link for link in links if not (path.parent / link).exists()] == []


def test_cells_and_what_they_printed_become_blocks() -> None:
    stream = {"output_type": "stream", "text": ["one\n", "two\n"]}
    value = {"output_type": "execute_result", "data": {"text/plain": ["{'a':\n", " 1}"]}}
    cells = [
        {"cell_type": "markdown", "source": ["# Title\n", "Words"]},
        {"cell_type": "code", "source": ["print(1)\n", "x"], "outputs": [stream, value]},
        {"cell_type": "code", "source": "y = 1", "outputs": []},
    ]
    assert site_notebooks.as_markdown(json.dumps({"cells": cells})) == (
        "# Title\nWords\n\n```python\nprint(1)\nx\n```\n\n```text\none\ntwo\n{'a':\n 1}\n```\n\n```python\ny = 1\n```\n"
    )


def test_the_site_has_a_page_for_each(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="the site's packages are not installed: pip install -e '.[docs]'")
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("See [the other](run.ipynb).\n")
    cell = {"cell_type": "code", "source": "6 * 7", "outputs": [{"output_type": "stream", "text": "forty-two"}]}
    title = {"cell_type": "markdown", "source": "# A run"}
    (tmp_path / "docs" / "run.ipynb").write_text(json.dumps({"cells": [title, cell]}))
    (tmp_path / "mkdocs.yml").write_text(
        "site_name: x\nstrict: true\nplugins: []\n"
        f"hooks: [{ROOT / 'scripts' / 'site_notebooks.py'}]\nnav: [index.md, run.ipynb]\n"
    )
    build(load_config(str(tmp_path / "mkdocs.yml")))
    page = (tmp_path / "site" / "run" / "index.html").read_text()
    assert "<h1" in page
    assert "forty-two" in page
    assert 'href="run/"' in (tmp_path / "site" / "index.html").read_text()
    assert not (tmp_path / "site" / "run.ipynb").exists()
