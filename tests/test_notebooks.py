"""Notebooks of the documentation: their cells run and print what stands there, and they are pages of the site."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path
from typing import Any

import nbclient
import nbformat
import pytest

from tests.pages import ROOT, environment

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
